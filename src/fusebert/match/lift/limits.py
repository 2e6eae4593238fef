"""Limits: sizes that a graph demands of its inputs without declaring them. They show where it is looked at with other
sizes: a reshape fits one batch or length only, or a table is shorter than a probe is long."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import Size, View
from fusebert.match.findings import label
from fusebert.match.lift.shapes import ELEMENTWISE
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


def note_uneven(lifting: Lifting, node: Node, old: Sequence[Size], new: Sequence[Size]) -> None:
    """Remembers a reshape that fits no inputs: what is fixed in both shapes is not as many numbers."""
    varying = [sorted(size for size in shape if not ax.fixed(size)) for shape in (old, new)]
    numbers = [math.prod(size[0] for size in shape if ax.fixed(size)) for shape in (old, new)]
    if varying[0] == varying[1] and numbers[0] != numbers[1]:
        told = f"numbers of the shape {_shown(old)} in the shape {_shown(new)}"
        lifting.contradictions.setdefault(label(node), told)


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


def note_misfit(lifting: Lifting, node: Node) -> None:
    """Remembers a node whose operands do not fit together: as sizes that they demand of the inputs, where one of them
    has the batch or the length in the place of a fixed size; as a contradiction, where both sizes are fixed."""
    views = [view for name in node.inputs if name and (view := lifting.view(name)) is not None]
    if node.op not in ELEMENTWISE | {"matmul"} or len(views) < len([*filter(None, node.inputs)]):
        return
    shapes, usual = [ax.shape_of(view.dims) for view in views], _sizes(lifting)
    for sizes in _meeting(node, shapes):
        fixed = sorted({size[0] for size in sizes if ax.fixed(size)} - {1})
        if len(fixed) > 1:
            told = " and ".join(map(_shown, shapes))
            lifting.contradictions.setdefault(label(node), f"operands of the shapes {told}")
        for size in sizes:
            if fixed and size in usual and not ax.fixed(size):
                lifting.fixed_sizes.setdefault(usual.index(size), fixed[0])


def _meeting(node: Node, shapes: Sequence[tuple[Size, ...]]) -> Iterator[tuple[Size, ...]]:
    """The sizes of operands that have to be equal."""
    if node.op == "matmul":
        if len(shapes) != 2 or min(map(len, shapes)) < 2:
            return
        turned = [bool(node.attributes.get(name)) for name in ("transpose_a", "transpose_b")]
        yield shapes[0][-2 if turned[0] else -1], shapes[1][-1 if turned[1] else -2]
        shapes = [shape[:-2] for shape in shapes]
    yield from zip_longest(*(reversed(shape) for shape in shapes), fillvalue=ax.ONE)


def _shown(shape: Sequence[Size]) -> str:
    return f"[{', '.join(str(size[0]) if ax.fixed(size) else '?' for size in shape)}]"


def _sizes(lifting: Lifting) -> list[Size]:
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
