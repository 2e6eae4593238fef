"""Rows: words that work along one dimension get it as the last one."""

from __future__ import annotations

from fusebert.match import axes as ax
from fusebert.match.axes import Axis, Group, View
from fusebert.match.lift.constants import LAST
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Node


def last(lifting: Lifting, view: View, places: list[int]) -> tuple[str, tuple[Group, ...]] | None:
    """The value with these dimensions as its last one."""
    reduced = ax.flat(view.dims[p] for p in places)
    canonical = ax.settled(lifting.dims[view.value])
    if not reduced:
        return None
    if canonical[-1:] == (reduced,):
        return lifting.scaled(view), lifting.dims[view.value]
    rest = tuple((axis,) for i, group in enumerate(view.dims) if i not in places for axis in ax.atoms(group))
    return lifting.lay(view, (*rest, reduced)), (*rest, reduced)


def reduce(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    if view is None:
        return False
    places = list(range(len(view.dims)))
    if len(node.inputs) > 1 and node.inputs[1]:
        given = lifting.constant(node.inputs[1])
        if given is None:
            return False
        places = sorted({int(p) % max(len(view.dims), 1) for p in given.reshape(-1)})
    found = last(lifting, view, places)
    if found is None:
        return False
    name, dims = found
    out = node.outputs[0]
    lifting.emit(node.op, (name, LAST), out, (*dims[:-1], ()), node, keepdims=True)
    keep = node.attributes.get("keepdims")
    left = tuple(() if i in places else g for i, g in enumerate(view.dims) if keep or i not in places)
    lifting.views[out] = View(out, left)
    return True


def softmax(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    if view is None:
        return False
    axis = int(node.attributes.get("axis", -1)) % max(len(view.dims), 1)
    if node.attributes.get("flatten") and any(view.dims[axis + 1 :]):
        return False
    found = last(lifting, view, [axis])
    if found is None:
        return False
    name, dims = found
    made = lifting.maker.get(name)
    if made is not None and made.op == "add":  # softmax does not see a number that is added to all
        name = next((n for n, o in (made.inputs, made.inputs[::-1]) if lifting.scalar(o) is not None), name)
    lifting.emit(node.op, (name,), node.outputs[0], dims, node, **({} if node.op == "softmax" else {"axis": -1}))
    lifting.views[node.outputs[0]] = View(node.outputs[0], view.dims)
    return True


def layer_norm(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    if view is None or not view.dims or int(node.attributes.get("axis", -1)) not in (-1, len(view.dims) - 1):
        return False
    epsilon, width = node.attributes["epsilon"], ax.size_of(view.dims[-1])
    if not isinstance(epsilon, (int, float)):
        return False
    given = [lifting.weights.get(name) for name in node.inputs[1:] if name]
    if any(weight is None or weight.shape != width[:1] for weight in given) or not ax.fixed(width):
        return False
    found = last(lifting, view, [len(view.dims) - 1])
    if found is None:
        return False
    name, dims = found
    out = node.outputs[0]
    lifting.emit("layer_norm", (name, *node.inputs[1:]), out, dims, node, epsilon=float(epsilon))
    lifting.views[out] = View(out, view.dims)
    return True


def one_hot(lifting: Lifting, node: Node) -> bool:
    view = lifting.view(node.inputs[0])
    depth = lifting.constant(node.inputs[1])
    if view is None or depth is None or view.factor != 1 or node.attributes.get("axis", -1) != -1:
        return False
    count = int(depth.reshape(()))
    axis = Axis((count, count))
    out = node.outputs[0]
    lifting.emit(
        "one_hot", (view.value, *node.inputs[1:]), out, (*lifting.dims[view.value], (axis,)), node, **node.attributes
    )
    lifting.views[out] = View(out, (*view.dims, (axis,)))
    return True


RULES = {
    **dict.fromkeys(("mean", "sum", "max", "min", "prod", "any", "all"), reduce),
    "softmax": softmax,
    "log_softmax": softmax,
    "layer_norm": layer_norm,
    "one_hot": one_hot,
}
