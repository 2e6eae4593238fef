"""Quantised: products, tables and roundings of 8-bit graphs as the floating-point ones they stand for. Weights become
floats again, which is exact; inputs are no longer rounded, which is nearer to the model before it was quantised."""

from __future__ import annotations

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import View
from fusebert.match.findings import TRANSPOSE, Applied, Provenance, Refused
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Array, Node, Weight
from fusebert.ops.primitives import MEANING


def quantize(lifting: Lifting, node: Node) -> None:
    """Stays as it is; what it rounds is remembered, in case it becomes floats again."""
    view = lifting.seen(node.inputs[0])
    if any(name not in lifting.weights for name in node.inputs[1:] if name):
        raise Refused("its scale is not a constant")
    lifting.rounded[node.outputs[0]] = view
    lifting.keep(node)


def dequantize(lifting: Lifting, node: Node) -> None:
    """Rows of a table of bytes are rows of a table of floats; what was only rounded is not."""
    if (before := lifting.rounded.get(node.inputs[0])) is not None:
        lifting.quantized.append(node.name)
        lifting.see(node, before, before.dims)
        return
    view = lifting.seen(node.inputs[0])
    made = lifting.maker.get(view.value)
    if made is None or made.op != "embed" or made.inputs[0] not in lifting.weights:
        raise Refused("it is not applied to rows of a table, or to what was quantised before")
    if any(n not in lifting.weights or lifting.weights[n].shape not in ((), (1,)) for n in node.inputs[1:] if n):
        raise Refused("its scale is not one constant number")
    table, parts = lifting.weights[made.inputs[0]], [lifting.weights[n] for n in node.inputs[1:] if n]
    name = f"{made.inputs[0]} as floats"
    lifting.weights[name] = Weight(
        table.shape, "float32", lambda: _array(MEANING["dequantize"](table.read(), *(p.read() for p in parts)))
    )
    lifting.origins[name] = Provenance(made.inputs[0], (Applied("dequantize"),), table.shape)
    lifting.quantized.append(node.name)
    lifting.emit("embed", (name, made.inputs[1]), node.outputs[0], lifting.dims[view.value], node)
    lifting.views[node.outputs[0]] = View(node.outputs[0], view.dims)


def product(lifting: Lifting, node: Node, views: dict[str, View]) -> bool:
    """A product of bytes times its scales: `matmul_integer(dynamic_quantize(x), W) * (scale of x * scale of W)`."""
    if node.op != "mul" or len(views) != 2:
        return False
    for bytes_, scales in (views.values(), reversed(views.values())):
        made, scaled = lifting.maker.get(bytes_.value), lifting.maker.get(scales.value)
        if made is None or made.op != "matmul_integer" or scaled is None or scaled.op != "mul":
            continue
        quantizer = lifting.maker.get(made.inputs[0])
        own = [name for name in scaled.inputs if name in lifting.weights]
        other = [name for name in scaled.inputs if name not in lifting.weights]
        if quantizer is None or quantizer.op != "dynamic_quantize" or len(quantizer.outputs) < 2 or len(own) != 1:
            return False
        if len(made.inputs) < 2 or made.inputs[1] not in lifting.weights or other != [quantizer.outputs[1]]:
            return False
        if len(lifting.weights[made.inputs[1]].shape) != 2 or not lifting.dims.get(quantizer.inputs[0]):
            return False
        _linear(lifting, node, quantizer.inputs[0], made, own[0])
        return True
    return False


def _linear(lifting: Lifting, node: Node, x: str, made: Node, scale: str) -> None:
    matrix, factor = lifting.weights[made.inputs[1]], lifting.weights[scale]
    zero = lifting.weights.get(made.inputs[3]) if len(made.inputs) > 3 else None

    def read() -> Array:
        centred = matrix.read().astype(np.float32) - (0 if zero is None else zero.read().astype(np.float32))
        return _array((centred * factor.read()).T)

    name = f"{made.inputs[1]} as floats"
    lifting.weights[name] = Weight(matrix.shape[::-1], "float32", read)
    lifting.origins[name] = Provenance(made.inputs[1], (Applied("dequantize"), TRANSPOSE), matrix.shape[::-1])
    lifting.quantized.append(made.name)
    dims = (*lifting.dims[x][:-1], ax.fresh([(matrix.shape[1], matrix.shape[1])])[0])
    lifting.emit("linear", (x, name), node.outputs[0], dims, node)
    lifting.views[node.outputs[0]] = View(node.outputs[0], dims)


def _array(value: object) -> Array:
    return np.asarray(value, np.float32)


RULES = {"quantize": quantize, "dequantize": dequantize}
