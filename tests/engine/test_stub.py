"""_native.pyi says of each function what nanobind says: names, which are given by place only, defaults, and what may be
None. That nothing is missing there is seen by stubtest, in `make types`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import fusebert
from fusebert import _native

STUB = Path(fusebert.__file__).with_name("_native.pyi")
Parameters = list[tuple[str, bool, bool]]  # the name, or "" of one given by place only; with a default; may be None


def functions(body: list[ast.stmt], owner: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body, f"{node.name}.")
        elif isinstance(node, ast.FunctionDef):
            yield f"{owner}{node.name}", node


STATED = dict(functions(ast.parse(STUB.read_text()).body))


def parameters(function: ast.FunctionDef) -> Parameters:
    given = function.args
    every = [*given.posonlyargs, *given.args]
    plain = len(every) - len(given.defaults)
    return [
        (
            "" if one in given.posonlyargs else one.arg,
            place >= plain,
            one.annotation is not None and ast.unparse(one.annotation).endswith("| None"),
        )
        for place, one in enumerate(every)
        if one.arg != "self"
    ]


def told(name: str) -> str:
    """A signature as nanobind gives it, made Python."""
    owner, _, last = name.rpartition(".")
    found = vars(getattr(_native, owner))[last] if owner else getattr(_native, last)
    (signature,) = (found.fget if isinstance(found, property) else found).__nb_signature__
    text = re.sub(r"ndarray\[[^]]*\]", "ndarray", signature[0])  # what is inside is not Python
    return re.sub(r"\\\d+", "...", text).replace("def (", "def nameless(") + ": ..."


@pytest.mark.parametrize("name", STATED)
def test_parameters_are_those_of_the_module(name: str) -> None:
    (real,) = ast.parse(told(name)).body
    assert isinstance(real, ast.FunctionDef)
    assert parameters(STATED[name]) == parameters(real)
    assert ast.unparse(STATED[name].returns or real) == ast.unparse(real.returns or real)


def test_a_default_that_is_not_stated_is_seen() -> None:
    stated = ast.parse("def f(self, a: int, b: int | None = None, /, c: list[int] = ...) -> None: ...").body[0]
    assert isinstance(stated, ast.FunctionDef)
    assert parameters(stated) == [("", False, False), ("", True, True), ("c", True, False)]
