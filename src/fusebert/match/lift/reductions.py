"""Reductions: operations that work along one dimension get it as the last one."""

from __future__ import annotations

from fusebert.match import axes as ax
from fusebert.match.axes import Axis, Group, View
from fusebert.match.findings import Refused
from fusebert.match.lift.constants import LAST
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Node


def last(lifting: Lifting, view: View, places: list[int]) -> tuple[str, tuple[Group, ...]]:
    """The value with these dimensions as its last one."""
    reduced = ax.flat(view.dims[p] for p in places)
    canonical = ax.settled(lifting.dims[view.value])
    if not reduced:
        raise Refused("the dimension it works along has size 1")
    if canonical[-1:] == (reduced,):
        return lifting.scaled(view), lifting.dims[view.value]
    rest = tuple((axis,) for i, group in enumerate(view.dims) if i not in places for axis in ax.atoms(group))
    return lifting.lay(view, (*rest, reduced)), (*rest, reduced)


def reduce(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    places = list(range(len(view.dims)))
    if len(node.inputs) > 1 and node.inputs[1]:
        places = sorted(set(lifting.dimensions(node.inputs[1], len(view.dims))))
    name, dims = last(lifting, view, places)
    out = node.outputs[0]
    lifting.emit(node.op, (name, LAST), out, (*dims[:-1], ()), node, keepdims=True)
    keep = node.attributes.get("keepdims")
    left = tuple(() if i in places else g for i, g in enumerate(view.dims) if keep or i not in places)
    lifting.views[out] = View(out, left)


def softmax(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    axis = lifting.axis(node, len(view.dims), -1)
    if node.attributes.get("flatten") and any(view.dims[axis + 1 :]):
        raise Refused("it normalises over several dimensions")
    name, dims = last(lifting, view, [axis])
    made = lifting.maker.get(name)
    if made is not None and made.op == "add":  # softmax is the same after adding one number everywhere
        name = next((n for n, o in (made.inputs, made.inputs[::-1]) if lifting.scalar(o) is not None), name)
    lifting.emit(node.op, (name,), node.outputs[0], dims, node, **({} if node.op == "softmax" else {"axis": -1}))
    lifting.views[node.outputs[0]] = View(node.outputs[0], view.dims)


def layer_norm(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    if lifting.axis(node, len(view.dims), -1) != len(view.dims) - 1:
        raise Refused("it normalises more than the last dimension")
    epsilon, width = node.attributes.get("epsilon"), ax.size_of(view.dims[-1])
    if not isinstance(epsilon, (int, float)):
        raise Refused("its epsilon is not a number")
    given = [lifting.weights.get(name) for name in node.inputs[1:] if name]
    if any(weight is None or weight.shape != width[:1] for weight in given) or not ax.fixed(width):
        raise Refused("its gain and bias are not constants of the last dimension's size")
    name, dims = last(lifting, view, [len(view.dims) - 1])
    out = node.outputs[0]
    lifting.emit("layer_norm", (name, *node.inputs[1:]), out, dims, node, epsilon=float(epsilon))
    lifting.views[out] = View(out, view.dims)


def one_hot(lifting: Lifting, node: Node) -> None:
    view = lifting.seen(node.inputs[0])
    depth = lifting.numbers(node.inputs[1])
    if len(depth) != 1 or view.factor != 1 or node.attributes.get("axis", -1) != -1:
        raise Refused("only a one_hot along a new last dimension is supported")
    axis = Axis((depth[0], depth[0]))
    out = node.outputs[0]
    lifting.emit(
        "one_hot", (view.value, *node.inputs[1:]), out, (*lifting.dims[view.value], (axis,)), node, **node.attributes
    )
    lifting.views[out] = View(out, (*view.dims, (axis,)))


RULES = {
    **dict.fromkeys(("mean", "sum", "max", "min", "prod", "any", "all"), reduce),
    "softmax": softmax,
    "log_softmax": softmax,
    "layer_norm": layer_norm,
    "one_hot": one_hot,
}
