"""The stand-alone form of a model: a folder with `fusebert.json`, `model.safetensors` and `tokenizer.json`.

A Network and its Plan in, a folder out, and back. docs/artifact.md is the specification; the version is raised when an
older reader would misread what is written, and every version stays readable."""

from pathlib import Path

from fusebert.formats.artifact.header import HEADER, VERSION
from fusebert.formats.artifact.read import read
from fusebert.formats.artifact.write import write

__all__ = ["HEADER", "VERSION", "is_artifact", "read", "write"]


def is_artifact(path: Path) -> bool:
    """Whether a folder is an artifact."""
    return (path / HEADER).is_file()
