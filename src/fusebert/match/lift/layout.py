"""Layout: words that only lay numbers out otherwise become views, and leave no node."""

from __future__ import annotations

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.emitter import TRUTHS
from fusebert.match.lift.elementwise import elementwise
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Node


def identity(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    return view is not None and lifting.see(node, view, view.dims)


def cast(lifting: Lifting, node: Node) -> bool:
    to, known = str(node.attributes.get("to")), lifting.arrays.get(node.inputs[0])
    if "float" in to and (known is None or "float" in known[0].dtype.name):
        return identity(lifting, node)
    view = lifting.view(node.inputs[0])
    made = lifting.maker.get(view.value) if view else None
    if to == ("bool" if made is not None and made.op in TRUTHS else known[0].dtype.name if known else ""):
        return identity(lifting, node)
    return elementwise(lifting, node)


def reshape(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    shapes = lifting.known(node.inputs[1])
    if view is None or shapes is None or shapes[0].shape != shapes[1].shape:
        return False
    old = ax.shape_of(view.dims)
    targets = []
    for i in (0, 1):
        given = [int(n) for n in shapes[i].reshape(-1)]
        if node.attributes.get("zero_copies"):
            given = [old[p][i] if n == 0 and p < len(old) else n for p, n in enumerate(given)]
        total = int(np.prod([s[i] for s in old]))
        rest = int(np.prod([n for n in given if n != -1]))
        targets.append([total // max(rest, 1) if n == -1 else n for n in given])
    dims = ax.regroup(view.dims, list(zip(*targets, strict=True)))
    if dims is None:
        lifting.note_fixed_sizes(view, shapes)
        return False
    return lifting.see(node, view, dims)


def transpose(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    if view is None:
        return False
    order = list(reversed(range(len(view.dims))))
    if len(node.inputs) > 1 and node.inputs[1]:
        perm = lifting.constant(node.inputs[1])
        if perm is None or perm.size != len(order):
            return False
        order = [int(p) % len(view.dims) for p in perm.reshape(-1)]
        if len(set(order)) < len(order):
            return False
    return lifting.see(node, view, tuple(view.dims[p] for p in order))


def squeeze(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    if view is None:
        return False
    drop = {i for i, group in enumerate(view.dims) if ax.size_of(group) == ax.ONE}
    if len(node.inputs) > 1 and node.inputs[1]:
        given = lifting.constant(node.inputs[1])
        if given is None or not (drop := {int(a) % len(view.dims) for a in given.reshape(-1)} & drop):
            return False
    return lifting.see(node, view, tuple(group for i, group in enumerate(view.dims) if i not in drop))


def unsqueeze(lifting: Lifting, node: Node) -> bool:
    view, given = lifting.view(node.inputs[0]), lifting.constant(node.inputs[1])
    if view is None or given is None:
        return False
    rank = len(view.dims) + given.size
    places = {int(a) % rank for a in given.reshape(-1)}
    if len(places) < given.size:
        return False
    rest = iter(view.dims)
    return lifting.see(node, view, tuple(() if i in places else next(rest) for i in range(rank)))


def unchanged(lifting: Lifting, node: Node) -> bool:
    """A node that could change the shape, and here does not."""
    view, shapes = lifting.view(node.inputs[0]), lifting.shapes(node)
    if view is None or shapes is None or shapes[0] != list(ax.shape_of(view.dims)):
        return False
    return lifting.see(node, view, view.dims)


RULES = {
    "identity": identity,
    "cast": cast,
    "reshape": reshape,
    "transpose": transpose,
    "squeeze": squeeze,
    "unsqueeze": unsqueeze,
    "expand": unchanged,
    "tile": unchanged,
}
