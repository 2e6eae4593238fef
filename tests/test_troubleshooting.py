"""The page of messages: each that it quotes is one that the code gives."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
QUOTED = re.findall(r"^\| `(.+?)` \|", PAGE, re.MULTILINE)


def _text(node: ast.AST) -> str | None:
    """A string of the code; what is put into it is an ellipsis."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


@pytest.fixture(scope="module")
def given() -> str:
    """All strings of the package, one on a line; ellipses beside each other are one."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "src" / "fusebert").rglob("*.py")]
    found = [text for tree in trees for node in ast.walk(tree) if (text := _text(node))]
    return "\n".join(_plain(text.replace("\n", " ")) for text in found)


def _plain(text: str) -> str:
    return re.sub(r"…[\s…]*…", "…", text)


@pytest.mark.parametrize("message", QUOTED)
def test_a_quoted_message_is_one_that_the_code_gives(message, given):
    assert _plain(message).strip("… ") in given


def test_there_are_many():
    assert len(QUOTED) > 40
