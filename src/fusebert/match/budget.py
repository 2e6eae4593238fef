"""Budget: how many numbers an operation would make of arrays, told before it is computed. A graph comes from outside,
and a few bytes of it can ask for any amount of memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.ops.graph import Array, Node
from fusebert.values import limits

_Inputs = Sequence[Any]  # arrays, None for one that is omitted


def result_size(node: Node, inputs: _Inputs) -> float:
    """At most how many numbers a node makes; more than there are where that cannot be told."""
    limits.spend()
    try:
        rule = _RULES.get(node.op)
        return float(_together(inputs) if rule is None else rule(inputs, node.attributes))
    except Exception:  # what cannot be measured will not be computed
        return math.inf


def refuse_large(node: Node, inputs: _Inputs) -> None:
    """Raises FusebertError if a node would make more numbers than anyone needs."""
    if result_size(node, inputs) > limits.NUMBERS:
        raise FusebertError(
            f"node {node.name} ({node.op}) would make more numbers than fusebert computes to understand a graph"
        )


def broadcast(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of arrays taken together; raises ValueError where they do not fit."""
    rank = max(map(len, shapes), default=0)
    sizes = []
    for place in range(-rank, 0):
        found = {shape[place] for shape in shapes if len(shape) >= -place} - {1}
        if len(found) > 1:
            raise ValueError(f"shapes {shapes} do not fit together")
        sizes.append(found.pop() if found else 1)
    return tuple(sizes)


def _together(inputs: _Inputs) -> float:
    return math.prod(broadcast(*(a.shape for a in inputs if a is not None)))


def _added(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    return float(sum(a.size for a in inputs if a is not None))


def _numbers(array: Array) -> list[int]:
    return [int(n) for n in np.ravel(array)]


def _expand(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    return math.prod(broadcast(inputs[0].shape, tuple(_numbers(inputs[1]))))


def _tile(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    return int(inputs[0].size) * math.prod(max(n, 0) for n in _numbers(inputs[1]))


def _range(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    start, limit, step = (float(a.item()) for a in inputs)
    return max(0.0, (limit - start) / step) + 1


def _one_hot(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    return int(inputs[0].size) * max(_numbers(inputs[1])[0], 0)


def _pad(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    widths = zip(inputs[0].shape, _numbers(inputs[1]), _numbers(inputs[2]), strict=True)
    return float(math.prod(max(n + before + after, 0) for n, before, after in widths))


def _gather(inputs: _Inputs, attributes: Mapping[str, Any]) -> float:
    x, indices = inputs
    return float(int(indices.size) * math.prod(x.shape) / max(x.shape[int(attributes.get("axis", 0))], 1))


def _gather_nd(inputs: _Inputs, attributes: Mapping[str, Any]) -> float:
    x, indices = inputs
    chosen = int(attributes.get("batch_dims", 0)) + indices.shape[-1]  # of the dimensions, by numbers that stand last
    return float(math.prod(indices.shape[:-1]) * math.prod(x.shape[chosen:]))


def _matmul(inputs: _Inputs, attributes: Mapping[str, Any]) -> float:
    return math.prod(product_shape(inputs[0].shape, inputs[1].shape, attributes))


def product_shape(a: tuple[int, ...], b: tuple[int, ...], attributes: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a product of matrices; raises ValueError where they do not fit."""
    if min(len(a), len(b)) < 2:
        raise ValueError("a product of less than matrices")
    a = (*a[:-2], a[-1], a[-2]) if attributes.get("transpose_a") else a
    b = (*b[:-2], b[-1], b[-2]) if attributes.get("transpose_b") else b
    if a[-1] != b[-2]:
        raise ValueError(f"shapes {a} and {b} have no product")
    return (*broadcast(a[:-2], b[:-2]), a[-2], b[-1])


def _scores(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    a, b = inputs[0].shape, inputs[1].shape
    return float(math.prod(broadcast(a[:-2], b[:-2])) * a[-2] * b[-2])


def _linear(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    return float(math.prod(inputs[0].shape[:-1]) * inputs[1].shape[0])


def _einsum(inputs: _Inputs, attributes: Mapping[str, Any]) -> float:
    terms = str(attributes["equation"]).replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    dots: list[tuple[int, ...]] = []
    for term, array in zip(terms, inputs, strict=True):
        before, found, after = term.partition("...")
        shape = array.shape
        sizes |= dict(zip(before, shape, strict=False))
        if found:
            dots.append(shape[len(before) : len(shape) - len(after)])
        sizes |= dict(zip(reversed(after), reversed(shape), strict=False))
    return math.prod(sizes.values()) * math.prod(broadcast(*dots))


def _keys(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    return float(max(int(inputs[0].size), inputs[1].shape[0] * inputs[1].shape[-1]))


def _causal(inputs: _Inputs, _: Mapping[str, Any]) -> float:
    return float(inputs[0].shape[-1] * inputs[0].shape[-2])


_MOVED = """
reshape transpose squeeze unsqueeze concat stack unstack split slice strided_slice gather_elements scatter_nd cumsum
mean sum max min prod any all argmax argmin quantize dequantize dynamic_quantize mask_index arrange split_heads
merge_heads select trilu
"""
_RULES: dict[str, Callable[[_Inputs, Mapping[str, Any]], float]] = {
    **dict.fromkeys(_MOVED.split(), _added),
    "shape": lambda inputs, _: inputs[0].ndim,
    "size": lambda *_: 1,
    "expand": _expand,
    "tile": _tile,
    "range": _range,
    "fill": lambda inputs, _: math.prod(_numbers(inputs[0])),
    "one_hot": _one_hot,
    "pad": _pad,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "embed": lambda inputs, _: int(inputs[1].size) * math.prod(inputs[0].shape[1:]),
    "nonzero": lambda inputs, _: inputs[0].size * inputs[0].ndim,
    "matmul": _matmul,
    "matmul_integer": _matmul,
    "context": _matmul,
    "rotate": lambda inputs, _: inputs[0].size,
    "repeat_heads": lambda inputs, attributes: inputs[0].size * attributes["times"],
    "einsum": _einsum,
    "scores": _scores,
    "linear": _linear,
    "key_mask": _keys,
    "causal_mask": _causal,
}
