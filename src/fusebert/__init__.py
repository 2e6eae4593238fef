"""fusebert: BERT-family inference on CPUs with one fused native encoder.

A public name is imported when it is first used, so that importing the package costs next to nothing. A verb and its
file share a name: `fusebert.optimize` is the function."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
_PLACES = {
    "FusebertError": "errors", "Model": "engine.model", "UnsupportedError": "errors", "accuracy": "measure.accuracy",
    "bench": "measure.bench", "calibrate": "measure.calibrate", "compare": "measure.compare",
    "embed": "verbs.embed", "find": "match", "load": "engine.load", "open": "source", "optimize": "verbs.optimize",
    "read": "source",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("fusebert")
    if name not in _PLACES:
        raise AttributeError(f"module 'fusebert' has no attribute {name!r}")
    return getattr(import_module(f"fusebert.{_PLACES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
