"""Rules of the house that no linter knows."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "src" / "fusebert"


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    named = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    return named + (given.vararg is not None) + (given.kwarg is not None)


def test_no_function_outside_the_command_line_takes_more_than_ten_parameters():
    """A command has its options, and a rule of a dialect the inputs and attributes of its operator."""
    long = [
        f"{path.relative_to(PACKAGE)}: {node.name}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.parent.name not in ("cli", "dialects")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and parameters(node) > 10
    ]
    assert long == []
