"""Layout: operations that only lay numbers out otherwise become views, and leave no node."""

from __future__ import annotations

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import View
from fusebert.match.emitter import TRUTHS
from fusebert.match.findings import Refused
from fusebert.match.lift.elementwise import elementwise
from fusebert.match.lift.limits import note_fixed_sizes, note_uneven
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Node


def identity(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    lifting.see(node, view, view.dims)


def cast(lifting: Lifting, node: Node) -> None:
    """A cast between floating-point types, or to the type that is there already, changes nothing."""
    to, known = str(node.attributes.get("to")), lifting.arrays.get(node.inputs[0])
    if "float" in to and (known is None or "float" in known[0].dtype.name):
        return identity(lifting, node)
    view = lifting.view(node.inputs[0])
    made = lifting.maker.get(view.value) if view else None
    if to == ("bool" if made is not None and made.op in TRUTHS else known[0].dtype.name if known else ""):
        return identity(lifting, node)
    return elementwise(lifting, node)


def reshape(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    shapes = lifting.known(node.inputs[1])
    if shapes is None or shapes[0].shape != shapes[1].shape or shapes[0].dtype.kind not in "iu":
        raise Refused(f"the new shape {node.inputs[1]} is not known")
    old = ax.shape_of(view.dims)
    targets = []
    for i in (0, 1):
        given = [int(n) for n in shapes[i].reshape(-1)]
        if node.attributes.get("zero_copies"):
            given = [old[p][i] if n == 0 and p < len(old) else n for p, n in enumerate(given)]
        total = int(np.prod([s[i] for s in old]))
        rest = int(np.prod([n for n in given if n != -1]))
        targets.append([total // max(rest, 1) if n == -1 else n for n in given])
    new = list(zip(*targets, strict=True))
    dims = ax.regroup(view.dims, new)
    if dims is None:
        note_fixed_sizes(lifting, view, shapes)
        note_uneven(lifting, node, old, new)
        raise Refused(f"dimensions {ax.shape_of(view.dims)} do not divide into {targets[0]} and {targets[1]}")
    lifting.see(node, view, dims)


def transpose(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    order = list(reversed(range(len(view.dims))))
    if len(node.inputs) > 1 and node.inputs[1]:
        order = lifting.dimensions(node.inputs[1], len(view.dims))
        if len(set(order)) < len(order) or len(order) != len(view.dims):
            raise Refused(f"{node.inputs[1]} is not a permutation of {len(view.dims)} dimensions")
    lifting.see(node, view, tuple(view.dims[p] for p in order))


def squeeze(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    drop = {i for i, group in enumerate(view.dims) if ax.size_of(group) == ax.ONE}
    if len(node.inputs) > 1 and node.inputs[1]:
        drop &= set(lifting.dimensions(node.inputs[1], len(view.dims)))
        if not drop:
            raise Refused(f"the dimensions {node.inputs[1]} are not all of size 1")
    lifting.see(node, view, tuple(group for i, group in enumerate(view.dims) if i not in drop))


def unsqueeze(lifting: Lifting, node: Node) -> None:
    view, given = lifting.seen(node.inputs[0]), lifting.numbers(node.inputs[1])
    rank = len(view.dims) + len(given)
    places = {p % rank for p in given}
    if len(places) < len(given):
        raise Refused(f"{node.inputs[1]} names a dimension twice")
    rest = iter(view.dims)
    lifting.see(node, view, tuple(() if i in places else next(rest) for i in range(rank)))


def is_unchanged(lifting: Lifting, node: Node) -> bool:
    """Whether a node that could change the shape does not."""
    view, shapes = lifting.view(node.inputs[0]), lifting.shapes(node)
    return view is not None and shapes is not None and shapes[0] == list(ax.shape_of(view.dims))


def unchanged(lifting: Lifting, node: Node) -> None:
    if not is_unchanged(lifting, node):
        raise Refused(f"{node.op} changes the shape, or its shape is not known")
    identity(lifting, node)


def expand(lifting: Lifting, node: Node) -> None:
    """What is as it was, or heads that are repeated: [batch, heads, 1, tokens, size] to [batch, heads, times, ...]."""
    view, shapes = lifting.view(node.inputs[0]), lifting.shapes(node)
    if view is None or shapes is None or len(shapes[0]) != 5 or len(view.dims) != 5 or is_unchanged(lifting, node):
        return unchanged(lifting, node)
    grown = [i for i, (group, size) in enumerate(zip(view.dims, shapes[0], strict=True)) if ax.size_of(group) != size]
    if grown != [2] or view.dims[2] or not ax.fixed(shapes[0][2]):
        raise Refused(f"{node.op} repeats what are no heads")
    batch, heads, _, tokens, size = view.dims
    (times,) = ax.fresh([shapes[0][2]])
    name = lifting.lay(View(view.value, view.dims), (batch, heads, tokens, size))
    out, made = node.outputs[0], (batch, (*ax.atoms(heads), *times), tokens, size)
    lifting.emit("repeat_heads", (name,), out, ax.settled(made), node, times=shapes[0][2][0])
    lifting.views[out] = View(out, (batch, heads, times, tokens, size), view.factor)
    return None


RULES = {
    "identity": identity,
    "cast": cast,
    "reshape": reshape,
    "transpose": transpose,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "expand": expand,
    "tile": unchanged,
}
