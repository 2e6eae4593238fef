"""Model file or folder -> Graph, told apart by content, not by name."""

from __future__ import annotations

from pathlib import Path

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.files import map_file
from fusebert.formats import onnx, tensorflow
from fusebert.graph import Graph


def read(path: str | Path) -> Graph:
    """The Graph in a model file. Nothing is executed, and weights are not read until they are asked for."""
    path = Path(path)
    if path.is_dir() and tensorflow.is_saved_model(path):
        return tensorflow.read_saved_model(path)
    if not path.is_file():
        raise FusebertError(f"{path} is neither a model file nor a SavedModel folder")
    data = map_file(path)
    if onnx.looks_like(data):
        return onnx.read(path)
    if tensorflow.looks_like(data):
        return tensorflow.read_graph(path)
    raise UnsupportedError(f"{path} is neither an ONNX model nor a TensorFlow graph")
