"""fusebert: BERT-family inference on CPUs with one fused native encoder.

The public names are bound at once, because a verb and its file share a name: `fusebert.optimize` is the function."""

from fusebert.engine.load import load
from fusebert.engine.model import Model
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.match import find
from fusebert.measure.accuracy import accuracy
from fusebert.measure.bench import bench
from fusebert.measure.calibrate import calibrate
from fusebert.measure.compare import compare
from fusebert.source import open, read
from fusebert.verbs.embed import embed
from fusebert.verbs.optimize import optimize

__all__ = [
    "FusebertError", "Model", "UnsupportedError", "accuracy", "bench", "calibrate", "compare", "embed", "find", "load",
    "open", "optimize", "read",
]  # fmt: skip
