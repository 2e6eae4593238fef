"""The primitive words that dialects are translated to, and what each means on NumPy arrays.

A word takes its inputs as positional arrays (None for one left out) and its attributes as keywords, and gives an array,
or a tuple of arrays. Integers stay integers and float32 stays float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from math import erf
from typing import Any

import ml_dtypes
import numpy as np

from fusebert.ops.graph import Array

Meaning = Callable[..., Any]

_erf = np.vectorize(erf, otypes=[np.float64])

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


def _dtype(name: str) -> Any:
    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)


def _numbers(array: Array | None) -> tuple[int, ...] | None:
    return None if array is None else tuple(int(n) for n in np.ravel(array))


def _same_type(f: Callable[[Array], Array]) -> Meaning:
    return lambda x: np.asarray(f(x)).astype(x.dtype, copy=False)


def _reduction(f: Callable[..., Any]) -> Meaning:
    return lambda x, axes=None, keepdims=False: np.asarray(f(x, axis=_numbers(axes), keepdims=keepdims)).astype(x.dtype)


# Shapes and places


def _reshape(x: Array, shape: Array, zero_copies: bool = False) -> Array:
    sizes = _numbers(shape) or ()
    return x.reshape([x.shape[i] if zero_copies and size == 0 else size for i, size in enumerate(sizes)])


def _split(x: Array, sizes: Array | None = None, axis: int = 0, count: int = 0) -> tuple[Array, ...]:
    length = x.shape[axis]
    parts = list(_numbers(sizes) or ())
    if sizes is None:
        size = -(-length // count)
        parts = [min(size, max(0, length - i * size)) for i in range(count)]
    if -1 in parts:
        parts[parts.index(-1)] = length - sum(parts) - 1
    return tuple(np.split(x, np.cumsum(parts)[:-1], axis))


def _slice(x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Array:
    begin, end = _numbers(starts) or (), _numbers(ends) or ()
    where = [slice(None)] * x.ndim
    for i, axis in enumerate(range(len(begin)) if axes is None else _numbers(axes) or ()):
        where[axis] = slice(begin[i], end[i], 1 if steps is None else int(np.ravel(steps)[i]))
    return np.asarray(x[tuple(where)])


def _strided_slice(
    x: Array,
    begin: Array,
    end: Array,
    strides: Array,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
) -> Array:
    where: list[Any] = []
    for i, (first, last, step) in enumerate(zip(np.ravel(begin), np.ravel(end), np.ravel(strides), strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            where.append(Ellipsis)
        elif new_axis_mask & bit:
            where.append(None)
        elif shrink_axis_mask & bit:
            where.append(int(first))
        else:
            where.append(
                slice(None if begin_mask & bit else int(first), None if end_mask & bit else int(last), int(step))
            )
    return np.asarray(x[tuple(where)])


def _gather(x: Array, indices: Array, axis: int = 0, batch_dims: int = 0) -> Any:
    if batch_dims == 0:
        return np.take(x, indices, axis)
    axis = axis % x.ndim
    return np.stack([_gather(a, i, axis - 1, batch_dims - 1) for a, i in zip(x, indices, strict=True)])


def _gather_nd(x: Array, indices: Array, batch_dims: int = 0) -> Array:
    if batch_dims == 0:
        return np.asarray(x[tuple(np.moveaxis(indices, -1, 0))])
    return np.stack([_gather_nd(a, i, batch_dims - 1) for a, i in zip(x, indices, strict=True)])


def _scatter_nd(x: Array, indices: Array, updates: Array) -> Array:
    y = x.copy()
    y[tuple(np.moveaxis(indices, -1, 0))] = updates
    return y


def _one_hot(indices: Array, depth: Array, on: Array, off: Array, axis: int = -1, wrap: bool = False) -> Any:
    places = int(np.ravel(depth)[0])
    indices = np.where(indices < 0, indices + places, indices) if wrap else indices
    hit = indices[..., None] == np.arange(places)
    return np.moveaxis(np.where(hit, on, off), -1, axis)


def _cumsum(x: Array, axis: Array, exclusive: bool = False, reverse: bool = False) -> Array:
    at = int(np.ravel(axis)[0])
    x = np.flip(x, at) if reverse else x
    y = np.cumsum(x, at, dtype=x.dtype)
    y = y - x if exclusive else y
    return np.flip(y, at) if reverse else y


def _pad(x: Array, before: Array, after: Array, value: Array | None = None) -> Array:
    widths = list(zip(_numbers(before) or (), _numbers(after) or (), strict=True))
    return np.pad(x, widths, constant_values=0 if value is None else np.ravel(value)[0])


# Arithmetic


def _div(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        return np.asarray(np.abs(a) // np.abs(b) * np.sign(a) * np.sign(b)).astype(a.dtype)
    return np.divide(a, b)


def _pow(a: Array, b: Array) -> Array:
    return np.asarray(np.power(a, b.astype(a.dtype) if a.dtype.kind == "f" else b)).astype(a.dtype)


def _where(condition: Array, a: Array, b: Array, leading: bool = False) -> Array:
    if leading:
        condition = condition.reshape(condition.shape + (1,) * (a.ndim - condition.ndim))
    return np.where(condition, a, b)


def _index(best: Callable[..., Any]) -> Meaning:
    return lambda x, axis=0, keepdims=False: np.asarray(best(x, axis, keepdims=keepdims), np.int64)


def _softmax(x: Array, axis: int = -1, flatten: bool = False) -> Array:
    if flatten:
        rows = x.reshape(int(np.prod(x.shape[:axis], dtype=np.int64)), -1)
        return _softmax(rows).reshape(x.shape)
    e = np.exp(x - x.max(axis, keepdims=True))
    y: Array = e / e.sum(axis, keepdims=True)
    return y


def _log_softmax(x: Array, axis: int = -1, flatten: bool = False) -> Array:
    return np.log(_softmax(x, axis, flatten))


def _wide(x: Array) -> Array:
    """16-bit floats as 32-bit ones, in which they are summed."""
    return x.astype(np.float32) if x.dtype in (np.float16, ml_dtypes.bfloat16) else x


def _matmul(a: Array, b: Array, transpose_a: bool = False, transpose_b: bool = False) -> Array:
    left, right = np.swapaxes(a, -1, -2) if transpose_a else a, np.swapaxes(b, -1, -2) if transpose_b else b
    return np.asarray(_wide(left) @ _wide(right)).astype(np.result_type(a, b), copy=False)


def _einsum(*xs: Array, equation: str) -> Array:
    return np.asarray(np.einsum(equation, *map(_wide, xs), optimize=True)).astype(xs[0].dtype, copy=False)


def _layer_norm(
    x: Array, gain: Array | None = None, bias: Array | None = None, epsilon: float = 1e-5, axis: int = -1
) -> Array:
    wide, axes = _wide(x), tuple(range(axis % x.ndim, x.ndim))
    centered = wide - wide.mean(axes, keepdims=True)
    y = centered / np.sqrt((centered**2).mean(axes, keepdims=True) + epsilon)
    y = y if gain is None else y * gain
    return np.asarray(y if bias is None else y + bias).astype(x.dtype, copy=False)


def _activation(x: Array, name: str) -> Array:
    return ACTIVATIONS[name](x).astype(x.dtype, copy=False)


# Masks of fused attention: additive, 0 where a key is visible


def _key_mask(mask: Array, scores: Array, filter: float) -> Array:
    batch, keys = scores.shape[0], scores.shape[-1]
    at = np.arange(keys)
    if mask.ndim == 1 and len(mask) == batch:
        hidden = (at >= mask[:, None])[:, None, None]
    elif mask.ndim == 1 and len(mask) == 2 * batch:
        hidden = ((at >= mask[:batch, None]) | (at < mask[batch:, None]))[:, None, None]
    elif mask.ndim == 2 and mask.shape[1] != keys and mask.shape[1] == 1:
        hidden = np.zeros((1, 1, 1, keys), bool)  # a dummy
    elif mask.ndim == 2:
        hidden = (mask <= 0)[:, None, None]
    elif mask.ndim == 3:
        hidden = (mask <= 0)[:, None]
    else:
        raise ValueError(f"a mask of shape {mask.shape} for scores of shape {scores.shape}")
    return np.where(hidden, filter, 0).astype(scores.dtype)


def _causal_mask(scores: Array, filter: float, from_end: bool = False) -> Array:
    queries, keys = scores.shape[-2:]
    later = np.arange(keys) > np.arange(queries)[:, None] + (keys - queries if from_end else 0)
    return np.where(later, filter, 0).astype(scores.dtype)


# Quantised numbers


def _along(scale: Array | None, x: Array, axis: int) -> Any:
    """A scale or zero point per index of one axis, ready to broadcast over x."""
    if scale is None:
        return 0
    flat = scale.reshape(-1)
    return flat[0] if flat.size == 1 else flat.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])


def _dequantize(x: Array, scale: Array, zero_point: Array | None = None, axis: int = 1) -> Array:
    if x.dtype.kind not in "iu":
        raise TypeError(f"{x.dtype} is not a type of whole numbers")
    whole = x.astype(np.int32) - np.int32(_along(zero_point, x, axis))
    return np.asarray(whole.astype(np.float32) * _along(scale, x, axis)).astype(scale.dtype)


def _quantize(x: Array, scale: Array, zero_point: Array | None = None, axis: int = 1, to: str = "uint8") -> Array:
    kind = _dtype(to) if zero_point is None else zero_point.dtype
    limits = np.iinfo(kind)
    whole = np.rint(x / _along(scale, x, axis)) + np.float32(_along(zero_point, x, axis))
    return np.asarray(np.clip(whole, limits.min, limits.max)).astype(kind)


def _dynamic_quantize(x: Array) -> tuple[Array, Array, Array]:
    low, high = min(0, float(x.min(initial=0))), max(0, float(x.max(initial=0)))
    scale = np.float32((high - low) / 255 or 1)
    zero_point = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    return _quantize(x, np.asarray(scale), np.asarray(zero_point)), np.asarray(scale), np.asarray(zero_point)


def _matmul_integer(a: Array, b: Array, a_zero: Array | None = None, b_zero: Array | None = None) -> Array:
    wide_a = a.astype(np.int32) - (0 if a_zero is None else _along(a_zero, a, a.ndim - 2).astype(np.int32))
    wide_b = b.astype(np.int32) - (0 if b_zero is None else _along(b_zero, b, b.ndim - 1).astype(np.int32))
    return np.asarray(np.matmul(wide_a.astype(np.float64), wide_b.astype(np.float64))).astype(np.int32)


_WORDS: dict[str, Meaning] = {
    "identity": lambda x: x,
    "cast": lambda x, to: x.astype(_dtype(to)),
    "reshape": _reshape,
    "transpose": lambda x, perm=None: np.transpose(x, _numbers(perm)),
    "squeeze": lambda x, axes=None: np.squeeze(x, _numbers(axes)),
    "unsqueeze": lambda x, axes: np.expand_dims(x, _numbers(axes) or ()),
    "expand": lambda x, shape: np.broadcast_to(x, np.broadcast_shapes(x.shape, _numbers(shape) or ())),
    "tile": lambda x, repeats: np.tile(x, _numbers(repeats) or ()),
    "concat": lambda *xs, axis: np.concatenate(xs, axis),
    "stack": lambda *xs, axis=0: np.stack(xs, axis),
    "unstack": lambda x, axis=0, **_: tuple(np.moveaxis(x, axis, 0)),
    "split": _split,
    "slice": _slice,
    "strided_slice": _strided_slice,
    "gather": _gather,
    "gather_nd": _gather_nd,
    "gather_elements": lambda x, indices, axis=0: np.take_along_axis(x, indices, axis),
    "scatter_nd": _scatter_nd,
    "shape": lambda x, to="int64": np.array(x.shape, _dtype(to)),
    "size": lambda x, to="int64": np.array(x.size, _dtype(to)),
    "range": lambda start, limit, delta: np.arange(start.item(), limit.item(), delta.item()).astype(start.dtype),
    "fill": lambda shape, value: np.full(_numbers(shape) or (), value.reshape(-1)[0], value.dtype),
    "one_hot": _one_hot,
    "cumsum": _cumsum,
    "nonzero": lambda x: np.array(np.nonzero(x), np.int64),
    "trilu": lambda x, k=None, upper=True: (np.triu if upper else np.tril)(x, 0 if k is None else k.item()),
    "pad": _pad,
    "where": _where,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _div,
    "floordiv": np.floor_divide,
    "mod": lambda a, b, truncate=False: (np.fmod if truncate else np.mod)(a, b),
    "pow": _pow,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "log": np.log,
    "erf": _same_type(_erf),
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.logaddexp(x, 0).astype(x.dtype),
    "relu": lambda x: np.maximum(x, 0),
    "sin": np.sin,
    "cos": np.cos,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "square": np.square,
    "invert": np.logical_not,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "clip": lambda x, low=None, high=None: x if low is None and high is None else np.clip(x, low, high),
    "mean": _reduction(np.mean),
    "sum": _reduction(np.sum),
    "max": _reduction(np.max),
    "min": _reduction(np.min),
    "prod": _reduction(np.prod),
    "any": _reduction(np.any),
    "all": _reduction(np.all),
    "argmax": _index(np.argmax),
    "argmin": _index(np.argmin),
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "matmul": _matmul,
    "einsum": _einsum,
    "layer_norm": _layer_norm,
    "activation": _activation,
    "key_mask": _key_mask,
    "causal_mask": _causal_mask,
    "mask_index": lambda mask: mask.sum(1).astype(np.int32),
    "dequantize": _dequantize,
    "quantize": _quantize,
    "dynamic_quantize": _dynamic_quantize,
    "matmul_integer": _matmul_integer,
}


def _on_arrays(meaning: Meaning) -> Meaning:
    @wraps(meaning, assigned=())
    def run(*inputs: Array | None, **attributes: Any) -> Any:
        result = meaning(*inputs, **attributes)
        return tuple(map(np.asarray, result)) if isinstance(result, tuple) else np.asarray(result)

    return run


MEANING: Mapping[str, Meaning] = {word: _on_arrays(meaning) for word, meaning in _WORDS.items()}
