"""Model file or folder -> Graph, told apart by content, not by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.files import map_file
from fusebert.formats.onnx import read as onnx
from fusebert.formats.tensorflow import read as tensorflow
from fusebert.ops.graph import Graph


def is_graph(path: Path) -> bool:
    """Whether a path can only be a model with a graph: a file, or the folder of a SavedModel."""
    return path.is_file() or tensorflow.is_saved_model(path)


def looks_like_onnx(path: Path) -> bool:
    """Whether a file begins as an ONNX model does."""
    return path.is_file() and onnx.looks_like(map_file(path))


def read(path: str | Path, tags: Sequence[str] | None = None) -> Graph:
    """The Graph in a model file. Nothing is executed, and weights are not read until they are asked for. `tags` choose
    among the graphs of a SavedModel (`facts["tags"]` lists them); without them it is the one for serving."""
    path = Path(path)
    if path.is_dir() and tensorflow.is_saved_model(path):
        return tensorflow.read_saved_model(path, tags)
    if tags is not None:
        raise FusebertError(f"{path} is not a SavedModel, the only kind of model that has graphs with tags")
    if not path.is_file():
        raise FusebertError(f"{path} is neither a model file nor a SavedModel folder")
    data = map_file(path)
    if onnx.looks_like(data):
        return onnx.read(path)
    if tensorflow.looks_like(data):
        return tensorflow.read_graph(path)
    raise UnsupportedError(f"{path} is neither an ONNX model nor a TensorFlow graph")
