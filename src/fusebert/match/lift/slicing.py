"""Choose: one row, some columns, or rows of a table. Columns of a linear map are a linear map."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import Axis, Group, View
from fusebert.match.lift.layout import unchanged
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Array, Node, Weight

_NO_END = 1 << 30  # ends from here on mean all there is


def gather(lifting: Lifting, node: Node) -> bool:
    table, rows = node.inputs[:2]
    axis = int(node.attributes.get("axis", 0))
    if table in lifting.weights:
        shape, view = lifting.weights[table].shape, lifting.view(rows)
        if axis or len(shape) != 2 or view is None or rows in lifting.weights or view.factor != 1:
            return False
        group = ax.fresh([(shape[1], shape[1])])[0]
        lifting.emit("embed", (table, view.value), node.outputs[0], (*lifting.dims[view.value], group), node)
        lifting.views[node.outputs[0]] = View(node.outputs[0], (*view.dims, group))
        return True
    index = lifting.constant(rows)
    if index is None or index.size != 1:
        return False
    return select(lifting, node, axis, int(index.reshape(())), keep=index.ndim == 1)


def slice_(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    given = [lifting.constant(name) if name else None for name in (*node.inputs[1:], "", "")]
    axes = range(0 if given[0] is None else given[0].size) if given[2] is None else given[2].reshape(-1)
    ends = None if given[1] is None else given[1].reshape(-1)
    if len(node.inputs) > 4 and node.inputs[4] and not _by_ones(given[3]):
        return False  # which may turn a dimension round
    if view is None or ends is None:
        return unchanged(lifting, node)
    may_cut = any(_may_cut(view, int(a), int(e)) for a, e in zip(axes, ends, strict=False))
    if not may_cut and unchanged(lifting, node):
        return True
    if given[0] is None:
        return False
    cut = []
    for begin, end, axis in zip(given[0].reshape(-1), ends, axes, strict=True):
        size = ax.size_of(view.dims[axis])
        if not (begin == 0 and end >= max(size)) or _may_cut(view, int(axis), int(end)):
            cut.append((int(begin), int(end), int(axis), size))
    if len(cut) != 1:
        return False
    begin, end, axis, size = cut[0]
    if (end == begin + 1 and begin >= 0) or (begin == -1 and end >= max(size)):
        return select(lifting, node, axis, begin, keep=True)
    if not ax.fixed(size):
        return False
    first, last, _ = slice(begin, end).indices(size[0])
    return part(lifting, node, node.outputs[0], axis, first, last)


def _by_ones(steps: Array | None) -> bool:
    return steps is not None and bool((steps == 1).all())


def _may_cut(view: View, axis: int, end: int) -> bool:
    """Whether a constant end cuts a dimension, if not for the probes, then for longer inputs."""
    return not ax.fixed(ax.size_of(view.dims[axis])) and 0 <= end < _NO_END


def _dimensions(node: Node, count: int, rank: int) -> Iterator[tuple[int, int]]:
    """Which dimension each place of a strided slice is about."""
    new, dots = (int(node.attributes.get(f"{name}_mask", 0)) for name in ("new_axis", "ellipsis"))
    own = [i for i in range(count) if not (new | dots) >> i & 1]
    skipped = rank - len(own)
    for place, i in enumerate(own):
        yield i, place + (skipped if dots and i > dots.bit_length() - 1 else 0)


def strided_slice(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    given = [lifting.constant(name) for name in node.inputs[1:4]]
    may_cut = (
        view is not None
        and given[1] is not None
        and any(
            not int(node.attributes.get("end_mask", 0)) >> i & 1 and _may_cut(view, axis, int(given[1].reshape(-1)[i]))
            for i, axis in _dimensions(node, given[1].size, len(view.dims))
        )
    )
    if not _by_ones(given[2]):
        return False
    adds = any(node.attributes.get(f"{name}_mask") for name in ("shrink_axis", "new_axis"))
    if not adds and not may_cut and unchanged(lifting, node):
        return True
    if (
        view is None
        or any(g is None for g in given)
        or node.attributes.get("ellipsis_mask")
        or node.attributes.get("new_axis_mask")
    ):
        return False
    begin, end = ([int(n) for n in g.reshape(-1)] for g in given[:2] if g is not None)
    masks = [int(node.attributes.get(f"{name}_mask", 0)) for name in ("begin", "end", "shrink_axis")]
    cut = []
    for i in range(len(begin)):
        open_begin, open_end, shrink = (mask >> i & 1 for mask in masks)
        if shrink or not (open_begin and open_end):
            whole = (
                not shrink
                and (open_begin or begin[i] == 0)
                and (open_end or (end[i], end[i]) == ax.size_of(view.dims[i]))
            )
            if not whole:
                cut.append((i, 0 if open_begin and not shrink else begin[i], end[i], open_end, shrink))
    if len(cut) != 1:
        return False
    axis, first, last, open_end, shrink = cut[0]
    if shrink or (not open_end and 0 <= first == last - 1):
        return select(lifting, node, axis, first, keep=not shrink)
    size = ax.size_of(view.dims[axis])
    if not ax.fixed(size):
        return False
    low, high, _ = slice(first, None if open_end else last).indices(size[0])
    return part(lifting, node, node.outputs[0], axis, low, high)


def select(lifting: Lifting, node: Node, axis: int, index: int, keep: bool) -> bool:
    """One row along an axis."""
    view = lifting.view(node.inputs[0])
    if view is None or not view.dims:
        return False
    axis %= len(view.dims)
    dims = (*view.dims[:axis], *(((),) if keep else ()), *view.dims[axis + 1 :])
    group = ax.atoms(view.dims[axis])
    if not group:
        return lifting.see(node, view, dims)
    if index < 0 and not ax.fixed(ax.size_of(group)) and index != -1:
        return False
    canonical = ax.settled(lifting.dims[view.value])
    out, made = node.outputs[0], lifting.maker.get(view.value)
    if made is not None and made.op == "linear" and (at := _within(canonical[-1], group)) is not None:
        index %= ax.size_of(group)[0]
        instead = columns(lifting, node, out, view, at, len(group), (index, index + 1), ())
        dims = tuple(tuple(instead.get(axis, axis) for axis in ax.atoms(g)) for g in dims)
    elif group in canonical:
        place = canonical.index(group)
        left = (*canonical[:place], *canonical[place + 1 :])
        lifting.emit("select", (view.value,), out, left, node, axis=place, index=index)
    else:
        return False
    lifting.views[out] = View(out, dims, view.factor)
    return True


def split(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    axis = int(node.attributes.get("axis", 0))
    if view is None or not view.dims or not ax.fixed(size := ax.size_of(view.dims[axis])):
        return False
    given = lifting.constant(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] else None
    count = int(node.attributes.get("count") or len(node.outputs))
    sizes = [size[0] // count] * count if given is None else [int(n) for n in given.reshape(-1)]
    ends = np.cumsum(sizes)
    if len(node.outputs) > len(sizes) or ends[-1] != size[0]:
        return False
    return all(
        part(lifting, node, out, axis, int(end) - n, int(end))
        for out, n, end in zip(node.outputs, sizes, ends, strict=False)
    )


def unstack(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    axis = int(node.attributes.get("axis", 0))
    if view is None or not all(part(lifting, node, out, axis, i, i + 1) for i, out in enumerate(node.outputs)):
        return False
    for out in node.outputs:
        seen = lifting.views[out]
        dims = tuple(g for i, g in enumerate(seen.dims) if i != axis % len(seen.dims))
        lifting.views[out] = View(seen.value, dims, seen.factor)
    return True


def part(lifting: Lifting, node: Node, out: str, axis: int, first: int, last: int) -> bool:
    """Some of a dimension, if a linear map makes it."""
    view = lifting.view(node.inputs[0])
    if view is None or not 0 <= first < last:
        return False
    axis %= len(view.dims)
    group = ax.atoms(view.dims[axis])
    made = lifting.maker.get(view.value)
    at = _within(ax.settled(lifting.dims[view.value])[-1], group) if group else None
    if made is None or made.op != "linear" or at is None:
        return False
    new = ax.fresh([(last - first, last - first)])[0]
    instead = columns(lifting, node, out, view, at, len(group), (first, last), new)
    dims = [tuple(instead.get(axis, axis) for axis in ax.atoms(g)) for g in view.dims]
    dims[axis] = new
    lifting.views[out] = View(out, tuple(dims), view.factor)
    return True


def _within(whole: Group, group: Group) -> int | None:
    """Where in a dimension some of its axes are."""
    places = [i for i in range(len(whole)) if whole[i : i + len(group)] == group]
    return places[0] if places else None


def columns(
    lifting: Lifting, node: Node, out: str, view: View, at: int, count: int, chosen: tuple[int, int], new: Group
) -> dict[Axis, Axis]:
    """Some columns of a linear map are a linear map. They are chosen among `count` axes of what it makes, from the one
    at `at`, instead of which there are `new` ones; the others are new too, and given by the old ones."""
    made = lifting.maker[view.value]
    *lead, last = ax.settled(lifting.dims[view.value])
    before, middle, after = last[:at], last[at : at + count], last[at + count :]
    sizes = [ax.size_of(group)[0] for group in (before, middle, after)]
    rows = np.arange(np.prod(sizes)).reshape(sizes)[:, slice(*chosen)].reshape(-1)
    inputs = [made.inputs[0]]
    which = f"{rows[0]} to {rows[-1] + 1}" + ("" if len(rows) == rows[-1] + 1 - rows[0] else f", {len(rows)} of them")
    for name in made.inputs[1:]:
        weight = lifting.weights[name]
        part = f"{name} [{which}]"
        read = lambda weight=weight: weight.read()[rows]  # noqa: E731
        lifting.weights[part] = Weight((len(rows), *weight.shape[1:]), weight.dtype, read)
        root, how = lifting.origins.get(name, (name, ""))
        lifting.origins[part] = root, f"{how} rows {which}".strip()
        inputs.append(part)
    instead = dict(zip((*before, *after), ax.clone((*before, *after)), strict=True))
    group = (*(instead[axis] for axis in before), *new, *(instead[axis] for axis in after))
    lifting.emit("linear", tuple(inputs), out, (*lead, group), node)
    return instead


def join(lifting: Lifting, node: Node) -> bool:
    """Tensors one after the other, or side by side on a new axis; all other axes are the same ones."""
    views = [lifting.view(name) for name in node.inputs]
    if any(name in lifting.weights for name in node.inputs) or any(view is None or not view.dims for view in views):
        return False
    seen = [view for view in views if view is not None]
    rank = len(seen[0].dims)
    stacks = node.op == "stack"
    axis = int(node.attributes.get("axis", 0)) % (rank + stacks)
    for other in seen[1:]:
        if len(other.dims) != rank:
            return False
        for place, (a, b) in enumerate(zip(seen[0].dims, other.dims, strict=True)):
            if (stacks or place != axis) and (ax.size_of(a) != ax.size_of(b) or not ax.same(a, b)):
                return False
    names = [lifting.lay(view, view.dims) for view in seen]
    shapes = lifting.shapes(node)
    if shapes is None:
        return False
    new = ax.fresh([shapes[0][axis]])[0]
    dims = (*seen[0].dims[:axis], new, *seen[0].dims[axis + (not stacks) :])
    lifting.emit(node.op, tuple(names), node.outputs[0], dims, node, axis=axis)
    lifting.views[node.outputs[0]] = View(node.outputs[0], dims)
    return True


RULES = {
    "gather": gather,
    "slice": slice_,
    "strided_slice": strided_slice,
    "split": split,
    "unstack": unstack,
    "stack": join,
    "concat": join,
}
