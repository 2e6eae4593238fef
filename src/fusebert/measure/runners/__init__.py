"""Runners: models of any kind, told by content and run by their own framework: ONNX Runtime runs ONNX files, TensorFlow
its own, transformers checkpoints; fusebert artifacts, and all in a precision.

Frameworks are imported by the runner that needs them; one that is missing is an error that says what to install,
unless our own evaluator may stand in for it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusebert.engine.load import load
from fusebert.measure.inputs import Told, UnknownInputError
from fusebert.measure.runners.evaluator import Evaluator, Unrounded
from fusebert.measure.runners.fusebert import Fusebert
from fusebert.measure.runners.onnxruntime import OnnxRuntime
from fusebert.measure.runners.runner import Runner
from fusebert.measure.runners.tensorflow import TensorFlow
from fusebert.measure.runners.torch import Torch
from fusebert.source import Artifact, Checkpoint, OnnxFile, Source, TensorFlowSource, open

__all__ = ["Fusebert", "OnnxRuntime", "Runner", "Unrounded", "open_runner", "open_told"]


def open_runner(
    path: str | Path | Source,
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
    stand_in: a graph is computed by fusebert's evaluator where its framework is missing."""
    source = open(path)
    stays_in_torch = in_torch and isinstance(source, Checkpoint)
    if isinstance(source, Artifact) or (precision is not None and not stays_in_torch):
        return Fusebert(load(source, precision, threads), str(source.path))
    if isinstance(source, Checkpoint):
        return Torch(source.path, threads, traced, precision)
    assert isinstance(source, OnnxFile | TensorFlowSource)
    if stand_in and find_spec("onnxruntime" if isinstance(source, OnnxFile) else "tensorflow") is None:
        return Evaluator(source, told)
    if isinstance(source, OnnxFile):
        return OnnxRuntime(source, threads, level, told)
    return TensorFlow(source, threads, told)


def open_told(
    source: Source, told: Told | None, unknown: list[UnknownInputError], models: int, **options: Any
) -> Runner:
    """A runner, told of its inputs what belongs to its model: of several models, each is told all. Raises the error of
    an entry that belongs to none of them; `unknown` collects those of models before."""
    told = dict(told or {})
    while True:
        try:
            return open_runner(source, told=told, **options)
        except UnknownInputError as error:
            unknown.append(error)
            if [one.key for one in unknown].count(error.key) == models:
                raise
            del told[error.key]
