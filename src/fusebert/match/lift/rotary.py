"""Rotary: x times cosines plus x with its halves changed, the second one's sign turned, times sines, becomes one
`turn`, whatever takes the halves apart and puts them together again."""

from __future__ import annotations

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import Group, View
from fusebert.match.findings import Refused
from fusebert.match.lift.shapes import compute, words
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Array, Node

_PASSED = ("identity", "cast")
_HALVING = words("neg slice strided_slice split concat stack unstack reshape unsqueeze squeeze gather mul")
_MOST_STEPS = 24


def turned(lifting: Lifting, node: Node) -> bool:
    """Lifts a sum that rotates queries or keys."""
    products = [lifting.makers.get(_plain(lifting, name)) for name in node.inputs]
    if len(products) != 2 or any(made is None or made.op != "mul" for made in products):
        return False
    for plain, changed in (products, products[::-1]):
        assert plain is not None
        assert changed is not None
        for x, cos in (plain.inputs, plain.inputs[::-1]):
            for halves, sin in (changed.inputs, changed.inputs[::-1]):
                if _changes_halves(lifting, x, halves):
                    _turn(lifting, node, x, cos, sin)
                    return True
    return False


def _plain(lifting: Lifting, name: str) -> str:
    while (made := lifting.makers.get(name)) is not None and made.op in _PASSED:
        name = made.inputs[0]
    return name


def _changes_halves(lifting: Lifting, x: str, halves: str) -> bool:
    """Whether a tensor is another with its halves changed: (a, b) as (-b, a)."""
    view, made = lifting.view(x), lifting.makers.get(_plain(lifting, halves))
    if view is None or made is None or made.op not in ("concat", "reshape") or len(view.dims) < 3:
        return False
    width = ax.size_of(view.dims[-1])[0]
    if width < 2 or width % 2:
        return False
    given = np.arange(1.0, 1 + width).reshape((1,) * (len(view.dims) - 1) + (width,))
    values: dict[str, Array | None] = {_plain(lifting, x): given}
    got = _computed(lifting, halves, values)
    first, second = np.split(given, 2, -1)
    return got is not None and np.array_equal(got, np.concatenate([-second, first], -1))


def _computed(lifting: Lifting, name: str, values: dict[str, Array | None]) -> Array | None:
    """A tensor that is made of one that is known, in a few steps that only move numbers or turn their signs."""
    name = _plain(lifting, name)
    if name in values:
        return values[name]
    values[name] = None
    if (pair := lifting.known(name)) is not None:
        values[name] = pair[0] if np.array_equal(*pair) else None
    elif (node := lifting.makers.get(name)) is not None and node.op in _HALVING and len(values) < _MOST_STEPS:
        inputs = [_computed(lifting, given, values) if given else None for given in node.inputs]
        if not any(given and array is None for given, array in zip(node.inputs, inputs, strict=True)):
            made = compute(node, inputs)
            values |= dict(zip(node.outputs, made or (), strict=False))
    return values[name]


def _turn(lifting: Lifting, node: Node, x: str, cos: str, sin: str) -> None:
    view, out = lifting.seen(x), node.outputs[0]
    tables = [lifting.seen(name) for name in (cos, sin)]
    rank = len(view.dims)
    if any(len(table.dims) > rank or len(table.dims) < 2 for table in tables):
        raise Refused("the cosines have other dimensions than what they turn")
    heads_last = not tables[0].dims[-2]  # [batch, tokens, heads, size] with tables [.., tokens, 1, size]
    laid = []
    for table in tables:
        for place in range(-len(table.dims), 0):
            if table.dims[place] and not ax.same(view.dims[place], table.dims[place]):
                raise Refused(f"dimension {place} of the cosines or sines is not the same axis")
        laid.append(lifting.lay(table, _ordered(table.dims, heads_last)))
    target = _ordered(view.dims, heads_last)
    turned = lifting.lay(View(view.value, view.dims), target)
    lifting.emit("turn", (turned, *laid), out, ax.settled(target), node)
    lifting.views[out] = View(out, ax.settled(view.dims), view.factor)


def _ordered(dims: tuple[Group, ...], heads_last: bool) -> tuple[Group, ...]:
    """Heads before tokens."""
    return (*dims[:-3], dims[-2], dims[-3], dims[-1]) if heads_last and len(dims) > 2 else dims
