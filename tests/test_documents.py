"""What the documents name is there: links, commands, make targets, and the files of the architecture."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from fusebert.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands() -> dict[str, set[str]]:
    """The options of each command."""
    every = get_command(app).commands
    return {name: {word for p in one.params for word in p.opts + p.secondary_opts} for name, one in every.items()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_commands_and_targets_exist(document):
    text, known = document.read_text(), commands()
    for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", text):
        assert (document.parent / link).exists(), link
    for target in re.findall(r"`make ([a-z]+)`", text):
        assert target in TARGETS
    for name, rest in re.findall(r"^\s*(?:\.venv/bin/)?fusebert ([a-z][a-z-]*)([^#\n]*)", text, re.MULTILINE):
        assert name in known, name
        assert set(re.findall(r"(?<= )--?[a-z][a-z-]*", rest)) <= known[name], rest


def test_the_front_page_names_every_command_and_document():
    text = (ROOT / "README.md").read_text()
    assert {name for name in commands() if name not in text} == set()
    assert {path.name for path in ROOT.glob("docs/*.md") if f"docs/{path.name}" not in text} == set()


def test_the_architecture_places_every_file():
    """Every file and folder of the package's top level, of match/ and of native/."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    package, native = ROOT / "src" / "fusebert", ROOT / "native"
    kept = [path for folder in (package, package / "match", native) for path in folder.iterdir()]
    kept = [path for path in kept if not path.name.startswith("_") and path.name != "py.typed"]
    kept = [path for path in kept if path.suffix != ".h" or not path.with_suffix(".cc").exists()]
    words = re.findall(r"[\w*]+(?:\.\w+|/)", text)
    patterns = [re.compile(re.escape(word).replace(r"\*", r"\w+")) for word in words]
    names = [path.name + "/" * path.is_dir() for path in kept]
    assert [name for name in names if not any(pattern.fullmatch(name) for pattern in patterns)] == []
