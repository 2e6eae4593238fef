"""What the documents name is there: links, commands, make targets, and the files of the architecture."""

import re
from pathlib import Path

import pytest
from typer.main import get_command

from fusebert.cli.call import app
from fusebert.cli.legacy import translate

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "native" / "README.md"])
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands() -> dict[str, set[str]]:
    """The options of each command."""
    every = get_command(app).commands
    return {name: {word for p in one.params for word in p.opts + p.secondary_opts} for name, one in every.items()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_commands_and_targets_exist(document):
    text, known = document.read_text(), commands()
    for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", text):
        assert (document.parent / link).exists(), link
    for target in re.findall(r"`make ([a-z-]+)`", text):
        assert target in TARGETS
    for name, rest in re.findall(r"^\s*(?:\.venv/bin/)?fusebert ([a-z][a-z-]*)([^#\n]*)", text, re.MULTILINE):
        assert name in known, name
        words = translate([name, *rest.split()], lambda _: None)
        options = {word.partition("=")[0].replace("_", "-") for word in words if re.match("--?[a-z]", word)}
        assert options <= {"--help", "-h", *known[name]}, rest


def test_the_front_page_names_every_command_and_document():
    text = (ROOT / "README.md").read_text()
    assert {name for name in commands() if name not in text} == set()
    assert {path.name for path in ROOT.glob("docs/*.md") if f"docs/{path.name}" not in text} == set()


@pytest.mark.parametrize(
    ("document", "folder"),
    [("ARCHITECTURE.md", "src/fusebert"), ("docs/finder.md", "src/fusebert/match"), ("native/README.md", "native")],
)
def test_a_document_places_every_file_of_its_folder(document, folder):
    kept = [path for path in (ROOT / folder).iterdir() if not path.name.startswith("_")]
    kept = [path for path in kept if path.name not in ("py.typed", "README.md")]
    kept = [path for path in kept if path.suffix != ".h" or not path.with_suffix(".cc").exists()]
    words = re.findall(r"[\w*]+(?:\.\w+|/)", (ROOT / document).read_text())
    patterns = [re.compile(re.escape(word).replace(r"\*", r"\w+")) for word in words]
    names = [path.name + "/" * path.is_dir() for path in kept]
    assert [name for name in names if not any(pattern.fullmatch(name) for pattern in patterns)] == []


def test_the_way_of_the_data_passes_files_that_are_there():
    rows = (ROOT / "ARCHITECTURE.md").read_text().partition("## The way of the data")[2].partition("\n\nA model")[0]
    walks = [row.split("|")[3].split(",") for row in rows.splitlines() if row.startswith("| ")]
    assert len(walks) == 8
    for place in (cell.strip() for walk in walks[1:] for cell in walk):
        path = ROOT / "src" / "fusebert" / place
        assert path.is_dir() or path.with_suffix(".py").is_file(), place
