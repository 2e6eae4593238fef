"""The page about other libraries: it says something of every option that the libraries at hand have, and what it says
of ours is there. The tables of earlier tools are held by tests/cli/test_legacy.py."""

import inspect
import re
from pathlib import Path

import pytest
from typer.main import get_command

import fusebert
from fusebert.cli.call import app

PAGE = (Path(__file__).parents[1] / "docs" / "coming-from-libraries.md").read_text()


def cells(title: str, column: int) -> str:
    """A column of all tables under a title."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    rows = [row.strip("| ").split(" | ") for row in text.splitlines() if row.startswith("| ")]
    return "\n".join(row[column] for row in rows if len(row) == 2)


def test_every_argument_of_sentence_transformers_is_mapped():
    library = pytest.importorskip("sentence_transformers")
    named = set(re.findall(r"\w+", cells("sentence-transformers", 0)))
    for call in (library.SentenceTransformer.__init__, library.SentenceTransformer.encode):
        assert set(inspect.signature(call).parameters) - {"self", "kwargs"} <= named
    for name in named & {name for name in library.__all__ if name.startswith(("export", "quantize"))}:
        assert hasattr(library, name)


def test_what_it_names_here_is_there():
    options = {word for one in get_command(app).commands.values() for part in one.params
               for word in (*part.opts, *part.secondary_opts)}  # fmt: skip
    for title in ("sentence-transformers", "Optimum and ONNX Runtime", "text-embeddings-inference", "CTranslate2"):
        ours = cells(title, 1)
        assert set(re.findall(r"(?<!\w)--[a-z][\w-]+", ours)) <= options, title
        for name in re.findall(r"model\.(\w+)\(", ours):
            assert hasattr(fusebert.Model, name), name
    assert set(re.findall(r"fusebert\.(\w+)\(", PAGE)) <= set(fusebert.__all__)
