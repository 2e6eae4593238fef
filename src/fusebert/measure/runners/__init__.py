"""Runners: models of any kind, told by content and run by their own framework: ONNX Runtime runs ONNX files, TensorFlow
its own, transformers checkpoints; fusebert artifacts, and all in a precision.

Frameworks are imported by the runner that needs them; one that is missing is an error that says what to install,
unless our own evaluator may stand in for it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from fusebert.engine.model import load
from fusebert.errors import FusebertError
from fusebert.formats import artifact, huggingface
from fusebert.formats.files import map_file
from fusebert.formats.onnx import read as onnx_files
from fusebert.formats.tensorflow import read as tensorflow_files
from fusebert.measure.runners.evaluator import Evaluator
from fusebert.measure.runners.fusebert import Fusebert
from fusebert.measure.runners.onnxruntime import OnnxRuntime
from fusebert.measure.runners.runner import Runner, Told
from fusebert.measure.runners.tensorflow import TensorFlow
from fusebert.measure.runners.torch import Torch

__all__ = ["Fusebert", "OnnxRuntime", "Runner", "Told", "open_runner"]


def open_runner(
    path: str | Path,
    precision: str | None = None,
    threads: int | None = None,
    level: int = 99,
    traced: bool = False,
    told: Told | None = None,
    in_torch: bool = False,
    stand_in: bool = False,
) -> Runner:
    """A runner of a model by its own framework; by fusebert, if a precision is given or the model is an artifact.

    threads: as many as this process may use, or the framework's own choice, unless given.
    level: ONNX Runtime's optimisation, one of LEVELS.
    traced: a checkpoint is traced and frozen by torch.
    told: names of inputs by role (ids, mask, types), which are found otherwise.
    in_torch: a checkpoint in a precision stays in torch, where fusebert runs its encoder.
    stand_in: a TensorFlow model is computed by fusebert where TensorFlow is missing."""
    path = Path(path)
    checkpoint = path.is_dir() and huggingface.is_checkpoint(path) and not artifact.is_artifact(path)
    if (precision is not None and not (in_torch and checkpoint)) or (path.is_dir() and artifact.is_artifact(path)):
        return Fusebert(load(path, precision, threads), str(path))
    if path.is_dir() and tensorflow_files.is_saved_model(path):
        return _tensorflow(path, threads, told, stand_in)
    if checkpoint:
        return Torch(path, threads, traced, precision)
    if path.is_file():
        data = map_file(path)
        if onnx_files.looks_like(data):
            return OnnxRuntime(path, threads, level, told)
        if tensorflow_files.looks_like(data):
            return _tensorflow(path, threads, told, stand_in)
    raise FusebertError(
        f"{path} was not found, or is not a supported model. Supported: an ONNX file, a frozen TensorFlow graph, or a "
        "folder with saved_model.pb, config.json (a Hugging Face checkpoint) or fusebert.json (an artifact)"
    )


def _tensorflow(path: Path, threads: int | None, told: Told | None, stand_in: bool) -> Runner:
    if stand_in and find_spec("tensorflow") is None:
        return Evaluator(path, told)
    return TensorFlow(path, threads, told)
