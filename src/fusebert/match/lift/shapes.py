"""What a node makes of arrays: its numbers, or where only their shapes count, an example that takes no memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from fusebert.match.budget import broadcast, product_shape, result_size
from fusebert.ops.graph import Array, Node
from fusebert.ops.primitives import MEANING

_MOST = 1 << 22  # numbers that are read or made for the sake of a shape


def words(text: str) -> frozenset[str]:
    """A set of names, written as a text."""
    return frozenset(text.split())


BINARY = words("""
    add sub mul div floordiv mod pow maximum minimum equal not_equal less less_equal greater greater_equal and or
""")
ELEMENTWISE = BINARY | words("""
    neg abs sqrt rsqrt reciprocal exp log erf tanh sigmoid softplus relu sin cos floor ceil sign square invert isnan
    isinf activation where clip
""")
_ALONG = words("cast softmax log_softmax identity quantize dequantize dynamic_quantize")  # as the first input is
_VIEWS = words("reshape transpose squeeze unsqueeze expand split slice strided_slice")  # which NumPy does not copy for
SHAPE_ONLY = {"shape": (0,), "size": (0,), "key_mask": (1,), "causal_mask": (0,)}  # inputs of which only that counts


def numbers_read(node: Node) -> list[str]:
    """The tensors whose numbers a node reads, not only their shape."""
    return [name for i, name in enumerate(node.inputs) if name and i not in SHAPE_ONLY.get(node.op, ())]


def compute(node: Node, inputs: list[Any]) -> list[Array] | None:
    """What a node makes of arrays; None if it has no meaning for them."""
    if node.op not in MEANING:
        return None
    try:
        with np.errstate(all="ignore"):
            made = MEANING[node.op](*inputs, **{k: v for k, v in node.attributes.items() if k != "^"})
    except Exception:  # the probe is not a real input; whatever it breaks is only not known
        return None
    return [np.asarray(a) for a in (made if isinstance(made, (tuple, list)) else (made,))]


def example(node: Node, inputs: list[Array | None]) -> list[Array] | None:
    """What a node makes of arrays of which only shapes count, as one that has a shape and no more where that can be
    told without computing it."""
    shapes = [a.shape for a in inputs if a is not None]
    try:
        if node.op in ELEMENTWISE or node.op in _ALONG or node.op == "layer_norm":
            shape = shapes[0] if node.op in _ALONG else broadcast(*shapes)
        elif node.op in ("matmul", "matmul_integer") and len(shapes) > 1:
            shape = product_shape(shapes[0], shapes[1], node.attributes)
        elif node.op == "concat":
            axis = int(node.attributes["axis"]) % len(shapes[0])
            shape = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
        else:
            numbers = 0 if node.op in _VIEWS else result_size(node, inputs)
            read = 0 if node.op in (*_VIEWS, "gather") else sum(a.size for a in inputs if a is not None)
            return None if max(numbers, read) > _MOST else compute(node, inputs)
        one = compute(node, [None if a is None else a.reshape(-1)[:1].reshape([1] * a.ndim) for a in inputs])
        return None if one is None else [np.broadcast_to(np.zeros((), one[0].dtype), shape), *one[1:]]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
