"""Elementwise: operands are brought to the layout of the one that has all axes. A bias goes into its linear map, a
number into the scale of the scores, and what is added to scores is a mask."""

from __future__ import annotations

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import Group, View
from fusebert.match.lift import quantized
from fusebert.match.lift.shapes import ELEMENTWISE
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Node, Weight


def elementwise(lifting: Lifting, node: Node) -> bool:
    out = node.outputs[0]
    names = [name for name in node.inputs if name]
    views = {name: view for name in names if name not in lifting.weights and (view := lifting.view(name)) is not None}
    if len(views) < len({name for name in names if name not in lifting.weights}) or not views:
        return False
    if by_factor(lifting, node, views) or quantized.product(lifting, node, views):
        return True
    aligned = align(lifting, names, views)
    if aligned is None:
        return False
    canonical, dims = aligned
    inputs = []
    for name in node.inputs:
        operand = against(lifting, name, views, dims, canonical) if name else ""
        if operand is None:
            return False
        inputs.append(operand)
    if not larger_word(lifting, node, tuple(inputs), canonical):
        lifting.emit(node.op, tuple(inputs), out, canonical, node, **node.attributes)
    lifting.views[out] = View(out, dims)
    return True


def by_factor(lifting: Lifting, node: Node, views: dict[str, View]) -> bool:
    """Queries, keys or scores times a number are a view with a factor, which becomes the scale of the scores."""
    if node.op not in ("mul", "div") or len(views) != 1:
        return False
    (name, view), other = next(iter(views.items())), next((n for n in node.inputs if n in lifting.weights), "")
    made = lifting.maker.get(view.value)
    if made is None or made.op not in ("linear", "scores"):
        return False
    number = lifting.scalar(other)
    if number is None or len(lifting.weights[other].shape) > len(view.dims) or not np.isfinite(number):
        return False
    if node.op == "div" and (number == 0 or node.inputs[0] != name):
        return False
    factor = view.factor * number if node.op == "mul" else view.factor / number
    lifting.views[node.outputs[0]] = View(view.value, view.dims, factor)
    return True


def align(
    lifting: Lifting, names: list[str], views: dict[str, View]
) -> tuple[tuple[Group, ...], tuple[Group, ...]] | None:
    """The layout of the operand that has all axes of the result, and how the result is seen."""
    rank = max(
        [len(v.dims) for v in views.values()] + [len(lifting.weights[n].shape) for n in names if n in lifting.weights]
    )
    dims: list[Group] = []
    everything = {name: ax.flat(view.dims) for name, view in views.items()}
    for place in range(-rank, 0):
        have = [(n, v.dims[place]) for n, v in views.items() if len(v.dims) >= -place and v.dims[place]]
        for name, group in have[1:]:
            if ax.size_of(group) != ax.size_of(have[0][1]):
                return None
            if not ax.same(have[0][1], group, (everything[have[0][0]], everything[name])):
                return None
        widths = {
            lifting.weights[n].shape[place]
            for n in names
            if n in lifting.weights and len(lifting.weights[n].shape) >= -place
        }
        widths.discard(1)
        if have:
            dims.append(have[0][1])
        else:  # only a constant may have the last axis to itself
            dims.append(ax.fresh([(w, w) for w in widths])[0] if widths and place == -1 else ())
        if any((width, width) != ax.size_of(dims[-1]) for width in widths):
            return None
    result = ax.flat(dims)
    if len(set(result)) < len(result):
        return None
    whole = [lifting.dims[view.value] for view in views.values() if len(ax.flat(view.dims)) == len(result)]
    if whole:
        return min(whole, key=lambda laid: laid.count(())), tuple(dims)
    for view in views.values():
        canonical = lifting.dims[view.value]
        room = view.dims and canonical and not view.dims[-1] and not canonical[-1]
        if room and ax.flat([*view.dims, dims[-1]]) == result:
            return (*canonical[:-1], dims[-1]), tuple(dims)
    return None


def against(
    lifting: Lifting, name: str, views: dict[str, View], dims: tuple[Group, ...], canonical: tuple[Group, ...]
) -> str | None:
    """An operand laid out so that it broadcasts against the value that leads."""
    if name in lifting.weights:
        shape = lifting.weights[name].shape
        if int(np.prod(shape)) == 1:
            return name if len(shape) <= len(canonical) else lifting.lay_weight(name, ((),) * len(shape), ())
        source = tuple(() if n == 1 else dims[i - len(shape)] for i, n in enumerate(shape))
        view = View(name, source)
    else:
        view = views[name]
        source = lifting.dims[view.value]
    have = set(ax.flat(source))
    target: list[Group] = []
    for group in ax.settled(canonical):
        present = [axis in have for axis in group]
        if any(present) and not all(present):
            return None
        target.append(group if group and all(present) else ())
    while target and not target[0]:
        target.pop(0)
    if name in lifting.weights:
        return lifting.lay_weight(name, ax.settled(source), tuple(target))
    settled = ax.settled(source)
    if view.factor == 1 and len(settled) <= len(canonical) and _stripped(settled) == tuple(target):
        return view.value
    return lifting.lay(view, tuple(target))


def larger_word(lifting: Lifting, node: Node, inputs: tuple[str, ...], canonical: tuple[Group, ...]) -> bool:
    """A bias goes into its linear map; what is added to scores, or put in their place, is a mask."""
    out = node.outputs[0]
    made = [lifting.maker.get(name) for name in inputs]
    if node.op in ("add", "sub") and len(inputs) == 2:
        for i, first in enumerate(made):
            other = inputs[1 - i]
            if first is None or (node.op == "sub" and i == 1):
                continue
            if node.op == "add" and _is_bias(lifting, first, other):
                lifting.emit("linear", (*first.inputs, other), out, canonical, node)
                return True
            if node.op == "add" and first.op == "add" and _bias_below(lifting, node, first, other, canonical):
                return True
            if node.op == "add" and first.op == "mul" and _instead(lifting, node, first, other, canonical):
                return True
            is_masked = first.op in ("scores", "mask") and not _is_of(made[1 - i], inputs[i])
            if is_masked and lifting.scalar(other) is None:
                lifting.view(other)  # a constant has a layout once it is seen
                if node.op == "sub":
                    other = lifting.emit("neg", (other,), f"{out} taken", lifting.dims[other], node)
                _mask(lifting, node, inputs[i], other, canonical)
                return True
    if node.op == "where":
        return where_word(lifting, node, inputs, canonical)
    return False


def where(lifting: Lifting, node: Node) -> bool:
    """Attention that is not a number, in rows that see nothing, is made zero by some exporters (docs/masks.md)."""
    condition, yes, no = node.inputs
    tested, view = lifting.view(condition), lifting.view(no)
    made = lifting.maker.get(tested.value) if tested else None
    if made is None or made.op != "isnan" or view is None or made.inputs[0] != view.value or lifting.scalar(yes) != 0:
        return elementwise(lifting, node)
    return lifting.see(node, view, view.dims)


def where_word(lifting: Lifting, node: Node, inputs: tuple[str, ...], canonical: tuple[Group, ...]) -> bool:
    condition, yes, no = inputs
    for kept, put in ((yes, no), (no, yes)):
        made = lifting.maker.get(kept)
        if (
            made is not None
            and made.op in ("scores", "mask")
            and (number := lifting.scalar(put)) is not None
            and number < 0
        ):
            zero, fill = f"factor {0.0!r}", f"factor {number!r}"
            lifting.weights[zero], lifting.weights[fill] = (
                Weight.of(np.zeros((), np.float32)),
                Weight.of(np.array(number, np.float32)),
            )
            pair = (zero, fill) if kept == yes else (fill, zero)
            added = lifting.emit("where", (condition, *pair), f"{node.outputs[0]} put", lifting.dims[condition], node)
            _mask(lifting, node, kept, added, canonical)
            return True
    return False


def _is_of(made: Node | None, scores: str) -> bool:
    """Whether something is scores' own maximum, as in a softmax that is written out."""
    return made is not None and made.op == "max" and made.inputs[0] == scores


def _is_bias(lifting: Lifting, made: Node, other: str) -> bool:
    if made.op != "linear" or len(made.inputs) != 2 or other not in lifting.weights:
        return False
    return lifting.weights[other].shape == lifting.weights[made.inputs[1]].shape[:1]


def _bias_below(lifting: Lifting, node: Node, sum_: Node, bias: str, canonical: tuple[Group, ...]) -> bool:
    """A bias that is added after the residual belongs to the linear map in the sum."""
    for i, name in enumerate(sum_.inputs):
        made = lifting.maker.get(name)
        if made is not None and _is_bias(lifting, made, bias):
            with_bias = lifting.emit(
                "linear", (*made.inputs, bias), f"{node.outputs[0]} biased", lifting.dims[name], made
            )
            inputs = (with_bias, sum_.inputs[1]) if i == 0 else (sum_.inputs[0], with_bias)
            lifting.emit("add", inputs, node.outputs[0], canonical, node)
            return True
    return False


def _instead(lifting: Lifting, node: Node, product: Node, added: str, canonical: tuple[Group, ...]) -> bool:
    """Scores times a 0/1 mask plus something large where it is 0, as exporters write a choice: a mask, if it is."""
    for scores, seen in (product.inputs, product.inputs[::-1]):
        made = lifting.maker.get(scores)
        if made is None or made.op not in ("scores", "mask") or not _is_zero_or_one(lifting, seen):
            continue
        lifting.view(added)
        names = {"limit": -100.0, "not a number": np.nan}  # which no mask may hold
        for name, number in names.items():
            lifting.weights[name] = Weight.of(np.array(number, np.float32))
        out, dims = node.outputs[0], lifting.dims[added]
        hidden = lifting.emit("less_equal", (added, "limit"), f"{out} hidden", dims, node)
        other = lifting.emit("where", (hidden, added, "not a number"), f"{out} where hidden", dims, node)
        shown = lifting.emit("cast", (seen,), f"{out} shown", lifting.dims[seen], node, to="bool")
        chosen = lifting.emit("where", (shown, added, other), f"{out} chosen", dims, node)
        _mask(lifting, node, scores, chosen, canonical)
        return True
    return False


def _is_zero_or_one(lifting: Lifting, name: str) -> bool:
    while (made := lifting.maker.get(name)) is not None and made.op == "arrange":
        name = made.inputs[0]
    pair = lifting.known(name)
    return pair is not None and all(np.isin(array, (0, 1)).all() for array in pair)


def _mask(lifting: Lifting, node: Node, scores: str, added: str, canonical: tuple[Group, ...]) -> None:
    """Says the word; what is added to masked scores goes into the mask they have."""
    out, made = node.outputs[0], lifting.maker[scores]
    if made.op == "mask":
        scores, before = made.inputs
        shapes = [lifting.dims[before], lifting.dims[added]]
        rank = max(map(len, shapes))
        padded = [((),) * (rank - len(dims)) + dims for dims in shapes]
        dims = tuple(a or b for a, b in zip(*padded, strict=True))
        added = lifting.emit("add", (before, added), f"{out} mask", dims, node)
    lifting.emit("mask", (scores, added), out, canonical, node)


def _stripped(dims: tuple[Group, ...]) -> tuple[Group, ...]:
    while dims and not dims[0]:
        dims = dims[1:]
    return dims


RULES = {**dict.fromkeys(ELEMENTWISE, elementwise), "where": where}
