"""Elementwise: operands are brought to the layout of the one that has all axes. A bias goes into its linear map, a
number into the scale of the scores, and what is added to scores is a mask (masks.py)."""

from __future__ import annotations

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import Group, View
from fusebert.match.findings import Refused
from fusebert.match.lift import masks
from fusebert.match.lift.rotary import turned
from fusebert.match.lift.shapes import ELEMENTWISE
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Node


def elementwise(lifting: Lifting, node: Node) -> None:
    out = node.outputs[0]
    names = [name for name in node.inputs if name]
    views = {name: lifting.seen(name) for name in names if name not in lifting.weights}
    if not views:
        raise Refused("all its inputs are constants that are not computed here")
    if (attention := masks.unchanged_attention(lifting, node, views)) is not None:
        return lifting.see(node, attention, attention.dims)
    if by_factor(lifting, node, views) or (node.op == "add" and turned(lifting, node)):
        return None
    if len(views) > 1 or node.op in ("pow", "square") or names[0] == names[-1]:  # as norms of heads have them
        views = {name: _by_head(lifting, view) for name, view in views.items()}
    canonical, dims = align(lifting, names, views)
    layouts = {name: layout_of(lifting, name, views, dims, canonical) for name in names}
    inputs = tuple(laid(lifting, n, views.get(n), canonical, *layouts[n]) if n else "" for n in node.inputs)
    larger = masks.where(lifting, node, inputs, canonical) if node.op == "where" else False
    if not larger and node.op in ("add", "sub") and len(inputs) == 2:
        larger = with_bias(lifting, node, inputs, canonical) or masks.added(lifting, node, inputs, canonical)
    if not larger:
        lifting.emit(node.op, inputs, out, canonical, node, **node.attributes)
    lifting.views[out] = View(out, dims)
    return None


def _by_head(lifting: Lifting, view: View) -> View:
    """A view of heads as one of a value that is laid out by head, so that numbers of one head can be told apart."""
    made, dims = lifting.maker.get(view.value), ax.settled(view.dims)
    if made is None or made.op != "linear" or len(dims) < 3 or dims[-1] == ax.settled(lifting.dims[view.value])[-1]:
        return view
    tokens_first = not ax.fixed(ax.size_of(dims[-3])) and ax.fixed(ax.size_of(dims[-2]))
    laid = (*dims[:-3], dims[-2], dims[-3], dims[-1]) if tokens_first else dims
    return View(lifting.lay(View(view.value, view.dims), laid), view.dims, view.factor)


def by_factor(lifting: Lifting, node: Node, views: dict[str, View]) -> bool:
    """Queries, keys or scores times a number are a view with a factor, which becomes the scale of the scores."""
    if node.op not in ("mul", "div") or len(views) != 1:
        return False
    (name, view), other = next(iter(views.items())), next((n for n in node.inputs if n in lifting.weights), "")
    made = lifting.maker.get(view.value)
    if made is None or made.op not in ("linear", "turn", "repeat_heads", "scores", "mask"):
        return False
    number = lifting.scalar(other)
    if number is None or len(lifting.weights[other].shape) > len(view.dims) or not np.isfinite(number):
        return False
    if node.op == "div" and (number == 0 or node.inputs[0] != name):
        return False
    factor = view.factor * number if node.op == "mul" else view.factor / number
    lifting.views[node.outputs[0]] = View(view.value, view.dims, factor)
    return True


def align(lifting: Lifting, names: list[str], views: dict[str, View]) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
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
                raise Refused(f"dimension {place} of {have[0][0]} and {name} has different sizes")
            if not ax.same(have[0][1], group, (everything[have[0][0]], everything[name])):
                raise Refused(f"dimension {place} of {have[0][0]} and {name} is not the same axis")
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
            raise Refused(f"dimension {place} of a constant does not fit the other operands")
    result = ax.flat(dims)
    if len(set(result)) < len(result):
        raise Refused("the result would have one axis twice")
    whole = [lifting.dims[view.value] for view in views.values() if len(ax.flat(view.dims)) == len(result)]
    if whole:
        return min(whole, key=lambda laid: laid.count(())), tuple(dims)
    for view in views.values():
        canonical = lifting.dims[view.value]
        room = view.dims and canonical and not view.dims[-1] and not canonical[-1]
        if room and ax.flat([*view.dims, dims[-1]]) == result:
            return (*canonical[:-1], dims[-1]), tuple(dims)
    raise Refused("no operand has all axes of the result")


def layout_of(
    lifting: Lifting, name: str, views: dict[str, View], dims: tuple[Group, ...], canonical: tuple[Group, ...]
) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """How an operand is laid out, and how it must be to broadcast against the value that leads."""
    if name in lifting.weights:
        shape = lifting.weights[name].shape
        source = tuple(() if n == 1 else dims[i - len(shape)] for i, n in enumerate(shape))
        if int(np.prod(shape)) == 1:
            return ((),) * len(shape), ()
    else:
        source = lifting.dims[views[name].value]
    have = set(ax.flat(source))
    target: list[Group] = []
    for group in ax.settled(canonical):
        present = [axis in have for axis in group]
        if any(present) and not all(present):
            raise Refused(f"{name} has only some of the axes that make up one dimension")
        target.append(group if group and all(present) else ())
    if have != set(ax.flat(target)):
        raise Refused(f"{name} has an axis that the result does not have")
    while target and not target[0]:
        target.pop(0)
    return ax.settled(source), tuple(target)


def laid(
    lifting: Lifting,
    name: str,
    view: View | None,
    canonical: tuple[Group, ...],
    source: tuple[Group, ...],
    target: tuple[Group, ...],
) -> str:
    """An operand in the layout that it must have."""
    fits = len(source) <= len(canonical)
    if view is None:
        return name if fits and not any(source) and not target else lifting.lay_weight(name, source, target)
    if view.factor == 1 and fits and _stripped(source) == target:
        return view.value
    return lifting.lay(view, target)


def with_bias(lifting: Lifting, node: Node, inputs: tuple[str, ...], canonical: tuple[Group, ...]) -> bool:
    """A bias goes into its linear map, also where it is added after the residual."""
    for name, bias in (inputs, inputs[::-1]) if node.op == "add" else ():
        made = lifting.maker.get(name)
        if made is not None and _is_bias(lifting, made, bias):
            lifting.emit("linear", (*made.inputs, bias), node.outputs[0], canonical, node)
            return True
        if made is not None and made.op == "add" and _bias_below(lifting, node, made, bias, canonical):
            return True
    return False


def _is_bias(lifting: Lifting, made: Node, other: str) -> bool:
    if made.op != "linear" or len(made.inputs) != 2 or other not in lifting.weights:
        return False
    return lifting.weights[other].shape == lifting.weights[made.inputs[1]].shape[:1]


def _bias_below(lifting: Lifting, node: Node, sum_: Node, bias: str, canonical: tuple[Group, ...]) -> bool:
    """A bias that is added after the residual belongs to the linear map in the sum."""
    for i, name in enumerate(sum_.inputs):
        made = lifting.maker.get(name)
        if made is not None and _is_bias(lifting, made, bias):
            linear = lifting.emit("linear", (*made.inputs, bias), f"{node.outputs[0]} biased", lifting.dims[name], made)
            inputs = (linear, sum_.inputs[1]) if i == 0 else (sum_.inputs[0], linear)
            lifting.emit("add", inputs, node.outputs[0], canonical, node)
            return True
    return False


def _stripped(dims: tuple[Group, ...]) -> tuple[Group, ...]:
    while dims and not dims[0]:
        dims = dims[1:]
    return dims


RULES = dict.fromkeys(ELEMENTWISE, elementwise)
