"""The finder is used through `fusebert.match` alone; which of its files does what is its own affair."""

import ast
from pathlib import Path

import pytest

import fusebert
import fusebert.match

PACKAGE = Path(fusebert.__file__).parent
SOURCES = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] != "match"]


def imported(path: Path) -> set[str]:
    """The modules and names under fusebert.match that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fusebert.match"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("fusebert.match.")}
    return found


def test_there_is_something_to_look_at():
    assert len(SOURCES) > 50
    assert any(imported(path) for path in SOURCES)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: "/".join(path.parts[-2:]))
def test_other_packages_import_from_the_face_only(path):
    assert imported(path) <= {f"fusebert.match.{name}" for name in fusebert.match.__all__}
