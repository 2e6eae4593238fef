"""ONNX operations (ai.onnx, opset 7 and later) as primitive operations: one rule each.

Parameters that were attributes in old opsets and are inputs in new ones become inputs."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fusebert.formats.onnx.types import NAMES
from fusebert.match.emitter import Emitter, Floats, Ints, Rule
from fusebert.match.findings import Refused
from fusebert.ops.graph import Weight


def _plain(word: str, e: Emitter, /, *inputs: str, **_: Any) -> str:
    return e.emit(word, *inputs)


def _fold(word: str, e: Emitter, first: str, /, *rest: str, **_: Any) -> str:
    for other in rest:
        first = e.emit(word, first, other)
    return e.identity(first) if not rest else first


def _given(e: Emitter, tensor: str, attribute: Ints | None) -> str:
    """A parameter as an input: the tensor, or the attribute that old opsets have instead."""
    return tensor if tensor or attribute is None else e.constant(attribute)


def dtype(to: Any) -> str:
    """The name of an element type by its number."""
    if to not in NAMES:
        raise Refused(f"element type {to} is not supported")
    return NAMES[to]


def _constant(
    e: Emitter,
    /,
    value: Any = None,
    value_float: float | None = None,
    value_floats: Floats | None = None,
    value_int: int | None = None,
    value_ints: Ints | None = None,
    **_: Any,
) -> str:
    given: tuple[tuple[Any, str], ...] = ((value_float, "float32"), (value_floats, "float32"))
    for number, kind in (*given, (value_int, "int64"), (value_ints, "int64")):
        if number is not None:
            return e.identity(e.constant(number, kind))
    return e.identity(e.keep(_weight(value)))


def _weight(value: Any) -> Weight:
    if not isinstance(value, Weight):
        raise Refused("the value is not a tensor")
    return value


def _fill(e: Emitter, shape: str, /, value: Any = None, **_: Any) -> str:
    return e.fill(shape, e.constant(0, "float32") if value is None else e.keep(_weight(value)))


def reduce(
    word: str,
    e: Emitter,
    x: str,
    given: str = "",
    /,
    axes: Ints | None = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    **_: Any,
) -> str:
    """A reduction over some axes, or all."""
    over = _given(e, given, axes)
    if e.sizes(over) == (0,):
        over = ""
    if not over and noop_with_empty_axes:
        return e.identity(x)
    return e.emit(word, x, over, keepdims=bool(keepdims))


def _index(word: str, e: Emitter, x: str, /, axis: int = 0, keepdims: int = 1, **a: Any) -> str:
    if a.get("select_last_index", 0):
        raise Refused("select_last_index is not supported")
    return e.emit(word, x, axis=axis, keepdims=bool(keepdims))


def softmax(word: str, e: Emitter, x: str, /, axis: int | None = None, opset: int = 0, **_: Any) -> str:
    """Along an axis, or before opset 13 over all from an axis on."""
    whole = (opset or e.opset) < 13
    axis = (1 if whole else -1) if axis is None else axis
    if e.is_last(axis, x):
        return e.emit(word, x, axis=-1)
    return e.emit(word, x, axis=axis, flatten=True) if whole else e.emit(word, x, axis=axis)


def _split(
    e: Emitter, x: str, sizes: str = "", /, split: Ints | None = None, axis: int = 0, **_: Any
) -> tuple[str, ...]:
    count = len(e.node.outputs)
    return e.emit_many("split", count, x, _given(e, sizes, split), axis=axis, count=count)


def _slice(
    e: Emitter,
    x: str,
    first: str = "",
    last: str = "",
    along: str = "",
    steps: str = "",
    /,
    starts: Ints | None = None,
    ends: Ints | None = None,
    axes: Ints | None = None,
    **_: Any,
) -> str:
    first, last = _given(e, first, starts), _given(e, last, ends)
    return e.slice(x, first, last, _given(e, along, axes), steps)


def _clip(
    e: Emitter, x: str, low: str = "", high: str = "", /, min: float | None = None, max: float | None = None, **_: Any
) -> str:
    limits = (low, min), (high, max)
    return e.clip(x, *(t if t or v is None else e.number(v, x) for t, v in limits))


def _pad(
    e: Emitter,
    x: str,
    widths: str = "",
    filler: str = "",
    axes: str = "",
    /,
    mode: str = "constant",
    pads: Ints | None = None,
    value: float = 0.0,
    **_: Any,
) -> str:
    if mode != "constant" or axes:
        raise Refused("only padding all axes with a constant is supported")
    widths = _given(e, widths, pads)
    filler = filler or (e.constant(value, "float32") if value else "")
    return e.pad(x, *e.emit_many("split", 2, widths, axis=0, count=2), filler)


def _shape(e: Emitter, x: str, /, start: int | None = None, end: int | None = None, **_: Any) -> str:
    whole = e.emit("shape", x, to="int64")
    if start is None and end is None:
        return whole
    last = np.iinfo(np.int64).max if end is None else end
    return e.slice(whole, e.constant([start or 0]), e.constant([last]))


def _transpose(e: Emitter, x: str, /, perm: Ints | None = None, **_: Any) -> str:
    return e.transpose(x, _given(e, "", perm))


def _axes(word: str, e: Emitter, x: str, given: str = "", /, axes: Ints | None = None, **_: Any) -> str:
    """Squeeze and Unsqueeze."""
    return e.emit(word, x, _given(e, given, axes))


def _flatten(e: Emitter, x: str, /, axis: int = 1, **_: Any) -> str:
    if axis == 1:
        return e.reshape(x, e.constant([0, -1]), zero_copies=True)
    if axis == 0:
        return e.reshape(x, e.constant([1, -1]), zero_copies=False)
    sizes = e.emit("shape", x, to="int64")
    rows = e.prod(e.slice(sizes, e.constant([0]), e.constant([axis])), keepdims=True)
    return e.reshape(x, e.concat(rows, e.constant([-1]), axis=0), zero_copies=False)


def _dropout(e: Emitter, x: str, ratio: str = "", training: str = "", /, **_: Any) -> str:
    if training and e.numbers(training) != (0,) and (not ratio or e.numbers(ratio) != (0,)):
        raise Refused("dropout is on")
    return e.identity(x)


def _one_hot(e: Emitter, indices: str, depth: str, values: str, /, axis: int = -1, **_: Any) -> str:
    off, on = (e.gather(values, e.constant(i), axis=0, batch_dims=0) for i in (0, 1))
    return e.one_hot(indices, depth, on, off, axis=axis, wrap=True)


def _cast_like(e: Emitter, x: str, like: str, /, **_: Any) -> str:
    if not e.dtype(like):
        raise Refused(f"the type of {like} is not known")
    return e.cast(x, to=e.dtype(like))


def scaled(e: Emitter, x: str, factor: float) -> str:
    """x times a number."""
    return x if factor == 1 else e.mul(x, e.number(factor, x))


def gemm(
    e: Emitter,
    a: str,
    b: str,
    c: str = "",
    /,
    alpha: float = 1,
    beta: float = 1,
    transA: int = 0,  # noqa: N803  (ONNX's names)
    transB: int = 0,  # noqa: N803
    **_: Any,
) -> str:
    """alpha * a @ b + beta * c."""
    flags = {"transpose_a": bool(transA), "transpose_b": bool(transB)}
    product = scaled(e, e.matmul(a, b, **flags), alpha)
    return e.add(product, scaled(e, c, beta)) if c and beta else product


def layer_norm(
    e: Emitter, x: str, gain: str, bias: str = "", /, axis: int = -1, epsilon: float = 1e-5, **_: Any
) -> str:
    """LayerNormalization from an axis on, which mostly is the last one."""
    which = {} if e.is_last(axis, x) else {"axis": axis}
    return e.layer_norm(x, gain, bias, epsilon=epsilon, **which)


def rms_norm(e: Emitter, x: str, gain: str, /, axis: int = -1, epsilon: float = 1e-5, **_: Any) -> str:
    """x over its root mean square along the last axis, times the gain."""
    if not e.is_last(axis, x):
        raise Refused(f"normalising from axis {axis} on is not supported")
    square = e.mean(e.square(x), e.constant([-1]), keepdims=True)
    return e.mul(e.mul(x, e.rsqrt(e.add(square, e.number(epsilon, x)))), gain)


def _gelu(e: Emitter, x: str, /, approximate: str = "none", **_: Any) -> str:
    if approximate not in ("none", "tanh"):
        raise Refused(f"Gelu with approximation {approximate} is not supported")
    return e.activation(x, name="gelu_tanh" if approximate == "tanh" else "gelu_erf")


def _is_inf(e: Emitter, x: str, /, detect_positive: int = 1, detect_negative: int = 1, **_: Any) -> str:
    if not (detect_positive and detect_negative):
        raise Refused("IsInf for one sign only is not supported")
    return e.isinf(x)


def leaky(e: Emitter, x: str, /, alpha: float = 0.01, **_: Any) -> str:
    """x, and a part of it below 0."""
    return e.where(e.less(x, e.number(0, x)), scaled(e, x, alpha), x)


def _pool(e: Emitter, x: str, /, **_: Any) -> str:
    """The mean over all axes from the third on, however many there are."""
    shape = e.sizes(x)
    if shape is not None:
        return e.mean(x, e.constant(range(2, len(shape))), keepdims=True)
    rank = e.size(e.emit("shape", x, to="int64"), to="int64")
    return e.mean(x, e.range(e.constant(2), rank, e.constant(1)), keepdims=True)


def _squared(
    e: Emitter,
    x: str,
    given: str = "",
    /,
    axes: Ints | None = None,
    keepdims: int = 1,
    noop_with_empty_axes: int = 0,
    **_: Any,
) -> str:
    flags = {"keepdims": keepdims, "noop_with_empty_axes": noop_with_empty_axes}
    return reduce("sum", e, e.square(x), given, axes=axes, **flags)


def _l2(e: Emitter, x: str, given: str = "", /, axes: Ints | None = None, **a: Any) -> str:
    return e.sqrt(_squared(e, x, given, axes=axes, **a))


_PLAIN = """
Add add, Sub sub, Mul mul, Div div, Pow pow, Neg neg, Abs abs, Sqrt sqrt, Reciprocal reciprocal, Exp exp, Log log,
Erf erf, Tanh tanh, Sigmoid sigmoid, Softplus softplus, Relu relu, Sin sin, Cos cos, Floor floor, Ceil ceil,
Round round, Sign sign, Not invert, And and, Or or, Xor xor, Equal equal, Less less, LessOrEqual less_equal,
Greater greater, GreaterOrEqual greater_equal, IsNaN isnan, Where where, Identity identity,
Expand expand, Tile tile, Range range, NonZero nonzero
"""
RULES: dict[str, Rule] = {
    **{op: partial(_plain, word) for op, word in (pair.split() for pair in _PLAIN.split(","))},
    **{f"Reduce{word.capitalize()}": partial(reduce, word) for word in ("mean", "sum", "max", "min", "prod")},
    "ReduceL2": _l2,
    "ReduceSumSquare": _squared,
    "GlobalAveragePool": _pool,
    "Max": partial(_fold, "maximum"),
    "Min": partial(_fold, "minimum"),
    "Sum": partial(_fold, "add"),
    "Dropout": _dropout,
    "Erfc": lambda e, x, **_: e.sub(e.number(1, x), e.erf(x)),  # not of ONNX, but tf2onnx leaves it so
    "Mod": lambda e, a, b, fmod=0, **_: e.mod(a, b, truncate=bool(fmod)),
    "Cast": lambda e, x, /, to, **_: e.cast(x, to=dtype(to)),
    "CastLike": _cast_like,
    "Constant": _constant,
    "ConstantOfShape": _fill,
    "Reshape": lambda e, x, shape, allowzero=0, **_: e.reshape(x, shape, zero_copies=not allowzero),
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": partial(_axes, "squeeze"),
    "Unsqueeze": partial(_axes, "unsqueeze"),
    "Concat": lambda e, *xs, axis=1, **_: e.concat(*xs, axis=axis),
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Gather": lambda e, x, at, axis=0, **_: e.gather(x, at, axis=axis, batch_dims=0),
    "GatherND": lambda e, x, at, batch_dims=0, **_: e.gather_nd(x, at, batch_dims=batch_dims),
    "GatherElements": lambda e, x, at, axis=0, **_: e.gather_elements(x, at, axis=axis),
    "Shape": _shape,
    "Size": lambda e, x, **_: e.size(x, to="int64"),
    "OneHot": _one_hot,
    "CumSum": lambda e, x, axis, /, exclusive=0, reverse=0, **_: e.cumsum(
        x, axis, exclusive=bool(exclusive), reverse=bool(reverse)
    ),
    "Trilu": lambda e, x, k="", upper=1, **_: e.trilu(x, k, upper=bool(upper)),
    "Clip": _clip,
    "IsInf": _is_inf,
    "LeakyRelu": leaky,
    "ArgMax": partial(_index, "argmax"),
    "ArgMin": partial(_index, "argmin"),
    "Softmax": partial(softmax, "softmax"),
    "LogSoftmax": partial(softmax, "log_softmax"),
    "MatMul": lambda e, a, b, **_: e.matmul(a, b, transpose_a=False, transpose_b=False),
    "Gemm": gemm,
    "Einsum": lambda e, *xs, equation, **_: e.einsum(*xs, equation=equation),
    "LayerNormalization": layer_norm,
    "RMSNormalization": rms_norm,
    "SimplifiedLayerNormalization": rms_norm,
    "Gelu": _gelu,
}
