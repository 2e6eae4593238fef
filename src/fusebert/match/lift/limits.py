"""Limits: sizes that a graph demands of its inputs without declaring them. They show where it is looked at with other
sizes: a reshape fits one batch or length only, or a table is shorter than a probe is long."""

from __future__ import annotations

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import View
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Array, Node


def note_fixed_sizes(lifting: Lifting, view: View, shapes: tuple[Array, Array]) -> None:
    """Remembers a reshape that only fits inputs of one size; of one token would be too few to tell anything."""
    usual = _sizes(lifting)
    for group, n, m in zip(view.dims, shapes[0].reshape(-1), shapes[1].reshape(-1), strict=False):
        if ax.size_of(group) in usual and not ax.fixed(ax.size_of(group)) and n == m > 0:
            place = usual.index(ax.size_of(group))
            if n > 1 or place == 0:
                lifting.fixed_sizes.setdefault(place, int(n))


def note_longest(lifting: Lifting, node: Node) -> None:
    """Remembers how many tokens there may be, where a node reads beyond the end of a table."""
    if node.op not in _READ or len(node.inputs) < 2 or node.inputs[0] not in lifting.weights:
        return
    reach, sizes = _READ[node.op](lifting, node), _sizes(lifting)
    if reach is None or len(sizes) < 2:
        return
    for read, rows, length in zip(*reach, sizes[1], strict=True):
        if 0 < read - rows < length:
            lifting.longest = min(lifting.longest or length, length - (read - rows))


def _sizes(lifting: Lifting) -> list[tuple[int, int]]:
    """Batch and length under both probes."""
    return next(([*zip(*(a.shape for a in lifting.arrays[n]), strict=True)] for n in lifting.probes[0]), [])


_Reach = tuple[tuple[int, int], tuple[int, int]]  # the rows that are asked for under both probes; those that there are


def _looked_up(lifting: Lifting, node: Node) -> _Reach | None:
    shape, indices = lifting.weights[node.inputs[0]].shape, lifting.known(node.inputs[1])
    if node.attributes.get("axis", 0) != 0 or not shape or indices is None or indices[0].dtype.kind not in "iu":
        return None
    first, second = (int(np.max(a, initial=-1)) + 1 for a in indices)
    return ((first, second), (shape[0], shape[0])) if first != second else None  # else they are ids


def _sliced(lifting: Lifting, node: Node) -> _Reach | None:
    shape, (_, end, along) = lifting.weights[node.inputs[0]].shape, (*node.inputs[1:4], "", "", "")[:3]
    if any(node.attributes.get(f"{name}_mask") for name in ("end", "ellipsis", "new_axis")):
        return None
    ends, given = lifting.known(end), lifting.constant(along) if node.op == "slice" else None
    if ends is None:
        return None
    axes = range(len(shape)) if given is None else map(int, given.reshape(-1))
    for axis, first, second in zip(axes, *(map(int, a.reshape(-1)) for a in ends), strict=False):
        if first != second and -len(shape) <= axis < len(shape):
            return (first, second), (shape[axis], shape[axis])
    return None


_READ = {"gather": _looked_up, "slice": _sliced, "strided_slice": _sliced}
