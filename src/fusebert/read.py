"""Model file -> Graph, told apart by content, not by name."""

from __future__ import annotations

from pathlib import Path

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.files import map_file
from fusebert.formats import onnx
from fusebert.graph import Graph


def read(path: str | Path) -> Graph:
    """The Graph in a model file. Nothing is executed, and weights are not read until they are asked for."""
    path = Path(path)
    if not path.is_file():
        raise FusebertError(f"{path} is not a file; read takes an ONNX model")
    if onnx.looks_like(map_file(path)):
        return onnx.read(path)
    raise UnsupportedError(f"{path} is not an ONNX model, which is the only format that read knows so far")
