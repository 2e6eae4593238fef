"""Slicing: one row, some columns, or rows of a table. Columns of a linear map are a linear map."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import Axis, Group, View
from fusebert.match.findings import Refused, Rows
from fusebert.match.lift.layout import identity, is_unchanged, unchanged
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Node, Weight

_NO_END = 1 << 30  # ends from here on mean all there is


def gather(lifting: Lifting, node: Node) -> None:
    table, rows = node.inputs[:2]
    if table in lifting.weights:
        shape, view = lifting.weights[table].shape, lifting.seen(rows)
        if node.attributes.get("axis", 0) != 0 or len(shape) != 2 or rows in lifting.weights or view.factor != 1:
            raise Refused(f"only rows of a table of two dimensions are looked up; {table} has shape {shape}")
        group = ax.fresh([(shape[1], shape[1])])[0]
        lifting.emit("embed", (table, view.value), node.outputs[0], (*lifting.dims[view.value], group), node)
        lifting.views[node.outputs[0]] = View(node.outputs[0], (*view.dims, group))
        return
    index = lifting.constant(rows)
    if index is None or index.size != 1 or index.dtype.kind not in "iu":
        raise Refused(f"{rows} is not one constant index")
    axis = lifting.axis(node, len(lifting.seen(table).dims))
    select(lifting, node, axis, int(index.reshape(())), keep=index.ndim == 1)


def slice_(lifting: Lifting, node: Node) -> None:
    begins, ends, axes, steps = (_numbers(lifting, name) for name in (*node.inputs[1:], "", "")[:4])
    if len(node.inputs) > 4 and node.inputs[4] and (steps is None or set(steps) != {1}):
        raise Refused("steps other than 1 are not supported")  # they may turn a dimension round
    unknown = ends is None or (len(node.inputs) > 3 and bool(node.inputs[3]) and axes is None)
    if (view := lifting.view(node.inputs[0])) is None or ends is None or unknown:
        return unchanged(lifting, node)
    axes = list(range(len(begins or ()))) if axes is None else axes
    if any(not -len(view.dims) <= axis < len(view.dims) for axis in axes):
        raise Refused(f"it slices dimensions {axes} of a tensor that has {len(view.dims)}")
    may_cut = any(_may_cut(view, axis, end) for axis, end in zip(axes, ends, strict=False))
    if not may_cut and is_unchanged(lifting, node):
        return identity(lifting, node)
    if begins is None or not len(begins) == len(ends) == len(axes):
        raise Refused("where it begins is not a constant for each dimension")
    cut = []
    for begin, end, axis in zip(begins, ends, axes, strict=True):
        size = ax.size_of(view.dims[axis])
        if not (begin == 0 and end >= max(size)) or _may_cut(view, axis, end):
            cut.append((begin, end, axis, size))
    if len(cut) != 1:
        raise Refused(f"it cuts {len(cut)} dimensions")
    begin, end, axis, size = cut[0]
    if (end == begin + 1 and begin >= 0) or (begin == -1 and end >= max(size)):
        return select(lifting, node, axis, begin, keep=True)
    if not ax.fixed(size):
        raise Refused("it cuts a dimension whose size depends on the input")
    first, last, _ = slice(begin, end).indices(size[0])
    return parts(lifting, node, axis, [(first, last)])


def _numbers(lifting: Lifting, name: str) -> list[int] | None:
    """A constant's integers, or None if it is not one."""
    array = lifting.constant(name) if name else None
    return None if array is None or array.dtype.kind not in "iu" else [int(n) for n in array.reshape(-1)]


def _may_cut(view: View, axis: int, end: int) -> bool:
    """Whether a constant end cuts a dimension, if not for the probes, then for longer inputs."""
    return not ax.fixed(ax.size_of(view.dims[axis])) and 0 <= end < _NO_END


def _dimensions(node: Node, count: int, rank: int) -> Iterator[tuple[int, int]]:
    """Which dimension each place of a strided slice is about."""
    new, dots = _mask(node, "new_axis"), _mask(node, "ellipsis")
    own = [i for i in range(count) if not (new | dots) >> i & 1]
    skipped = rank - len(own)
    for place, i in enumerate(own):
        yield i, place + (skipped if dots and i > dots.bit_length() - 1 else 0)


def _mask(node: Node, name: str) -> int:
    bits = node.attributes.get(f"{name}_mask", 0)
    if not isinstance(bits, int):
        raise Refused(f"its {name}_mask is not a number")
    return bits


def strided_slice(lifting: Lifting, node: Node) -> None:
    view = lifting.view(node.inputs[0])
    begin, end, strides = (_numbers(lifting, name) for name in node.inputs[1:4])
    masks = [_mask(node, name) for name in ("begin", "end", "shrink_axis")]
    adds = masks[2] or _mask(node, "new_axis")
    places = [] if view is None or end is None else list(_dimensions(node, len(end), len(view.dims)))
    if view is not None and any(place >= len(view.dims) for _, place in places):
        raise Refused(f"it slices more dimensions than the {len(view.dims)} that there are")
    if strides is None or any(stride != 1 for stride in strides):
        raise Refused("strides other than 1 are not supported")
    may_cut = view is not None and any(
        end is not None and not masks[1] >> i & 1 and _may_cut(view, place, end[i]) for i, place in places
    )
    if not adds and not may_cut and is_unchanged(lifting, node):
        return identity(lifting, node)
    if view is None or begin is None or end is None or _mask(node, "ellipsis") or _mask(node, "new_axis"):
        raise Refused("where it begins and ends is not constant, or it adds a dimension")
    if len(begin) != len(end) or len(begin) > len(view.dims):
        raise Refused(f"it has {len(begin)} beginnings and {len(end)} ends for {len(view.dims)} dimensions")
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
        raise Refused(f"it cuts {len(cut)} dimensions")
    axis, first, last, open_end, shrink = cut[0]
    if shrink or (not open_end and 0 <= first == last - 1):
        return select(lifting, node, axis, first, keep=not shrink)
    size = ax.size_of(view.dims[axis])
    if not ax.fixed(size):
        raise Refused("it cuts a dimension whose size depends on the input")
    low, high, _ = slice(first, None if open_end else last).indices(size[0])
    return parts(lifting, node, axis, [(low, high)])


def select(lifting: Lifting, node: Node, axis: int, index: int, keep: bool) -> None:
    """One row along an axis."""
    view = lifting.seen(node.inputs[0])
    axis %= len(view.dims)
    dims = (*view.dims[:axis], *(((),) if keep else ()), *view.dims[axis + 1 :])
    group = ax.atoms(view.dims[axis])
    if not group:
        lifting.see(node, view, dims)
        return
    if index < 0 and not ax.fixed(ax.size_of(group)) and index != -1:
        raise Refused(f"row {index} of a dimension whose size depends on the input is not supported")
    canonical = ax.settled(lifting.dims[view.value])
    out, made = node.outputs[0], lifting.maker.get(view.value)
    if _is_linear(lifting, made) and (at := _within(canonical[-1], group)) is not None:
        index %= ax.size_of(group)[0]
        instead = columns(lifting, node, out, view, at, len(group), (index, index + 1), ())
        dims = tuple(tuple(instead.get(axis, axis) for axis in ax.atoms(g)) for g in dims)
    elif group in canonical:
        place = canonical.index(group)
        left = (*canonical[:place], *canonical[place + 1 :])
        lifting.emit("select", (view.value,), out, left, node, axis=place, index=index)
    else:
        raise Refused("the dimension is not one that the value has by itself")
    lifting.views[out] = View(out, dims, view.factor)


def split(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    axis = lifting.axis(node, len(view.dims))
    if not ax.fixed(size := ax.size_of(view.dims[axis])):
        raise Refused("it splits a dimension whose size depends on the input")
    count = node.attributes.get("count") or len(node.outputs)
    if not isinstance(count, int) or not 0 < count <= size[0]:
        raise Refused(f"a dimension of size {size[0]} does not split into {count}")
    sizes = [size[0] // count] * count
    if len(node.inputs) > 1 and node.inputs[1]:
        sizes = lifting.numbers(node.inputs[1])
    if len(node.outputs) > len(sizes) or sum(sizes) != size[0]:
        raise Refused(f"a dimension of size {size[0]} does not split into {sizes}")
    ends = [sum(sizes[: i + 1]) for i in range(len(node.outputs))]
    parts(lifting, node, axis, [(end - n, end) for n, end in zip(sizes, ends, strict=False)])


def unstack(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    axis = lifting.axis(node, len(view.dims))
    parts(lifting, node, axis, [(i, i + 1) for i in range(len(node.outputs))])
    for out in node.outputs:
        seen = lifting.views[out]
        dims = tuple(g for i, g in enumerate(seen.dims) if i != axis)
        lifting.views[out] = View(seen.value, dims, seen.factor)


def parts(lifting: Lifting, node: Node, axis: int, chosen: list[tuple[int, int]]) -> None:
    """For every output some of a dimension, if a linear map makes it."""
    view = lifting.seen(node.inputs[0])
    axis %= len(view.dims)
    group = ax.atoms(view.dims[axis])
    at = _within(ax.settled(lifting.dims[view.value])[-1], group) if group else None
    if at is None or not _is_linear(lifting, lifting.maker.get(view.value)):
        raise Refused("only columns that a linear map makes are taken apart")
    if any(not 0 <= first < last <= ax.size_of(group)[0] for first, last in chosen):
        raise Refused(f"parts {chosen} of a dimension of size {ax.size_of(group)[0]} are empty or outside of it")
    for out, (first, last) in zip(node.outputs, chosen, strict=False):
        new = ax.fresh([(last - first, last - first)])[0]
        instead = columns(lifting, node, out, view, at, len(group), (first, last), new)
        dims = [tuple(instead.get(axis, axis) for axis in ax.atoms(g)) for g in view.dims]
        dims[axis] = new
        lifting.views[out] = View(out, tuple(dims), view.factor)


def _is_linear(lifting: Lifting, made: Node | None) -> bool:
    return made is not None and made.op == "linear" and all(name in lifting.weights for name in made.inputs[1:])


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
    step = Rows(int(rows[0]), int(rows[-1]) + 1, len(rows))
    for name in made.inputs[1:]:
        weight = lifting.weights[name]
        part = f"{name} [{str(step).removeprefix('rows ')}]"
        read = lambda weight=weight: weight.read()[rows]  # noqa: E731
        lifting.weights[part] = Weight((len(rows), *weight.shape[1:]), weight.dtype, read)
        lifting.origins[part] = lifting.origin(name).then(step, lifting.weights[part].shape)
        inputs.append(part)
    instead = dict(zip((*before, *after), ax.clone((*before, *after)), strict=True))
    group = (*(instead[axis] for axis in before), *new, *(instead[axis] for axis in after))
    lifting.emit("linear", tuple(inputs), out, (*lead, group), node)
    return instead


def join(lifting: Lifting, node: Node) -> None:
    """Tensors one after the other, or side by side on a new axis; all other axes are the same ones."""
    seen = [lifting.seen(name) for name in node.inputs]
    if any(name in lifting.weights for name in node.inputs) or not all(view.dims for view in seen):
        raise Refused("joining constants or single numbers is not supported")
    rank = len(seen[0].dims)
    stacks = node.op == "stack"
    axis = lifting.axis(node, rank + stacks)
    shapes = lifting.shapes(node)
    if shapes is None:
        raise Refused("the shape of the result is not known")
    for other in seen[1:]:
        if len(other.dims) != rank:
            raise Refused("the tensors have different numbers of dimensions")
        for place, (a, b) in enumerate(zip(seen[0].dims, other.dims, strict=True)):
            if (stacks or place != axis) and (ax.size_of(a) != ax.size_of(b) or not ax.same(a, b)):
                raise Refused(f"dimension {place} of the tensors is not the same axis")
    names = [lifting.lay(view, view.dims) for view in seen]
    new = ax.fresh([shapes[0][axis]])[0]
    dims = (*seen[0].dims[:axis], new, *seen[0].dims[axis + (not stacks) :])
    lifting.emit(node.op, tuple(names), node.outputs[0], dims, node, axis=axis)
    lifting.views[node.outputs[0]] = View(node.outputs[0], dims)


RULES = {
    "gather": gather,
    "slice": slice_,
    "strided_slice": strided_slice,
    "split": split,
    "unstack": unstack,
    "stack": join,
    "concat": join,
}
