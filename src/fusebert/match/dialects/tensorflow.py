"""TensorFlow operations as primitive operations: one rule each. Attributes that a saved graph omits have the default of
the operation's definition."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fusebert.match.emitter import Emitter, Ints, Rule
from fusebert.match.findings import Refused

_EFFECTS = """
Assert NoOp Print PrintV2 SaveV2 Save SaveSlices RestoreV2 Restore MergeV2Checkpoints ShardedFilename Assign AssignAdd
AssignSub AssignVariableOp AssignAddVariableOp AssignSubVariableOp DestroyResourceOp VarIsInitializedOp
IsVariableInitialized ScalarSummary HistogramSummary MergeSummary WriteSummary InitializeTableV2 LookupTableImportV2
"""
EFFECTS = frozenset(_EFFECTS.split())


def _plain(word: str, e: Emitter, /, *inputs: str, **_: Any) -> str:
    return e.emit(word, *inputs)


def _reduce(word: str, e: Emitter, x: str, axes: str, /, keep_dims: bool = False, **_: Any) -> str:
    return e.emit(word, x, axes, keepdims=bool(keep_dims))


def _index(word: str, e: Emitter, x: str, axis: str, /, output_type: str = "int64", **_: Any) -> str:
    found = e.emit(word, x, axis=e.integer(axis), keepdims=False)
    return found if output_type == "int64" else e.cast(found, to=output_type)


def _matmul(first: str, second: str, e: Emitter, a: str, b: str, /, **given: Any) -> str:
    return e.matmul(a, b, transpose_a=bool(given.get(first, False)), transpose_b=bool(given.get(second, False)))


def _cast(e: Emitter, x: str, /, DstT: str, **_: Any) -> str:  # noqa: N803  (TensorFlow's name)
    return e.cast(x, to=DstT)


def _bias_add(e: Emitter, x: str, bias: str, /, data_format: str = "NHWC", **_: Any) -> str:
    if data_format != "NHWC":
        raise Refused(f"BiasAdd with data format {data_format} is not supported")
    return e.add(x, bias)


def _add_all(e: Emitter, first: str, /, *rest: str, **_: Any) -> str:
    for other in rest:
        first = e.add(first, other)
    return first


def _slice(e: Emitter, x: str, begin: str, size: str, /, **_: Any) -> str:
    if begin in e.weights and size in e.weights:
        starts, sizes = e.numbers(begin), e.numbers(size)
        if len(starts) != len(sizes):
            raise Refused(f"Slice has {len(starts)} starts, but {len(sizes)} sizes")
        ends = [np.iinfo(np.int64).max if n < 0 else start + n for start, n in zip(starts, sizes, strict=True)]
        return e.slice(x, begin, e.constant(ends))
    begin, size = e.cast(begin, to="int64"), e.cast(size, to="int64")
    to_the_end = e.less(size, e.constant(0))
    return e.slice(x, begin, e.where(to_the_end, e.constant(np.iinfo(np.int64).max), e.add(begin, size)))


def _strided_slice(
    e: Emitter,
    x: str,
    begin: str,
    end: str,
    strides: str,
    /,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    **_: Any,
) -> str:
    masks = {"begin_mask": begin_mask, "end_mask": end_mask, "ellipsis_mask": ellipsis_mask}
    masks |= {"new_axis_mask": new_axis_mask, "shrink_axis_mask": shrink_axis_mask}
    return e.strided_slice(x, begin, end, strides, **masks)


def _concat_last(e: Emitter, /, *xs: str, **_: Any) -> str:
    if not xs:
        raise Refused("ConcatV2 has no inputs")
    return e.concat(*xs[:-1], axis=e.integer(xs[-1]))


def _split(e: Emitter, axis: str, x: str, /, num_split: int = 1, **_: Any) -> tuple[str, ...]:
    return e.emit_many("split", num_split, x, axis=e.integer(axis), count=num_split)


def _split_sizes(e: Emitter, x: str, sizes: str, axis: str, /, num_split: int = 1, **_: Any) -> tuple[str, ...]:
    return e.emit_many("split", num_split, x, sizes, axis=e.integer(axis), count=num_split)


def _unpack(e: Emitter, x: str, /, num: int = 1, axis: int = 0, **_: Any) -> tuple[str, ...]:
    return e.emit_many("unstack", num, x, axis=axis, count=num)


def _gather(e: Emitter, x: str, indices: str, axis: str = "", /, batch_dims: int = 0, **_: Any) -> str:
    at = e.integer(axis) if axis else batch_dims
    return e.gather(x, indices, axis=at, batch_dims=batch_dims)


def _like(value: int, e: Emitter, x: str, /, T: str = "float32", **_: Any) -> str:  # noqa: N803  (TensorFlow's name)
    return e.fill(e.emit("shape", x, to="int32"), e.constant(value, T))


def _one_hot(e: Emitter, indices: str, depth: str, on: str, off: str, /, axis: int = -1, **_: Any) -> str:
    return e.one_hot(indices, depth, on, off, axis=axis)


def _squeeze(e: Emitter, x: str, /, squeeze_dims: Ints = (), axis: Ints = (), **_: Any) -> str:
    axes = squeeze_dims or axis
    return e.squeeze(x, e.constant(axes) if axes else "")


def _pad(e: Emitter, x: str, paddings: str, value: str = "", /, **_: Any) -> str:
    before, after = (e.gather(paddings, e.constant(i), axis=1, batch_dims=0) for i in (0, 1))
    return e.pad(x, before, after, value)


def _batch_norm(
    e: Emitter, x: str, gain: str, bias: str, /, *_: str, epsilon: float = 1e-4, is_training: bool = True, **a: Any
) -> str:
    """In training mode, as Keras writes LayerNorm with it: each channel by its own mean and variance."""
    if not is_training or a.get("data_format", "NHWC") != "NCHW" or len(e.node.outputs) > 1:
        raise Refused("only a batch norm that Keras uses as a LayerNorm is supported")
    rows, ones = e.constant([0, 2, 3]), e.constant([1, 2])
    centered = e.sub(x, e.mean(x, rows, keepdims=True))
    variance = e.mean(e.square(centered), rows, keepdims=True)
    inverse = e.rsqrt(e.add(variance, e.constant(epsilon, "float32")))
    return e.add(e.mul(e.mul(centered, inverse), e.unsqueeze(gain, ones)), e.unsqueeze(bias, ones))


def _leaky(e: Emitter, x: str, /, alpha: float = 0.2, **_: Any) -> str:
    zero, slope = (e.number(n, x) for n in (0, alpha))
    return e.where(e.less(x, zero), e.mul(x, slope), x)


def _limited(e: Emitter, x: str, /, **_: Any) -> str:
    return e.clip(x, e.number(0, x), e.number(6, x))


_PLAIN = """
AddV2 add, Add add, Sub sub, Mul mul, RealDiv div, Div div, TruncateDiv div, FloorDiv floordiv, FloorMod mod, Pow pow,
Maximum maximum, Minimum minimum, Neg neg, Abs abs, Sqrt sqrt, Rsqrt rsqrt, Reciprocal reciprocal, Inv reciprocal,
Exp exp, Log log, Erf erf, Tanh tanh, Sigmoid sigmoid, Softplus softplus, Relu relu, Sin sin, Cos cos, Floor floor,
Ceil ceil, Round round, Rint round, Sign sign, Square square, LogicalNot invert, LogicalAnd and, LogicalOr or,
Equal equal, NotEqual not_equal, Less less, LessEqual less_equal, Greater greater, GreaterEqual greater_equal,
IsNan isnan, IsInf isinf, SelectV2 where, ClipByValue clip, Transpose transpose, ExpandDims unsqueeze,
BroadcastTo expand, Tile tile, Range range, Fill fill, TensorScatterUpdate scatter_nd,
Identity identity, ReadVariableOp identity, StopGradient identity, Snapshot identity, PreventGradient identity,
CheckNumerics identity, CheckNumericsV2 identity, EnsureShape identity, PlaceholderWithDefault identity,
DebugIdentity identity, DebugIdentityV2 identity, ReadVariableXlaSplitND identity, _EagerConst identity
"""
RULES: dict[str, Rule] = {
    **{op: partial(_plain, word) for op, word in (pair.split() for pair in _PLAIN.split(","))},
    **{word.capitalize(): partial(_reduce, word) for word in ("mean", "sum", "max", "min", "prod", "any", "all")},
    "IdentityN": lambda e, *xs, **_: tuple(e.identity(x) for x in xs),
    "Cast": _cast,
    "Mod": lambda e, a, b, **_: e.mod(a, b, truncate=True),
    "TruncateMod": lambda e, a, b, **_: e.mod(a, b, truncate=True),
    "SquaredDifference": lambda e, a, b, **_: e.square(e.sub(a, b)),
    "Erfc": lambda e, x, **_: e.sub(e.number(1, x), e.erf(x)),
    "AddN": _add_all,
    "BiasAdd": _bias_add,
    "Select": lambda e, c, a, b, **_: e.where(c, a, b, leading=True),
    "LeakyRelu": _leaky,
    "Relu6": _limited,
    "Reshape": lambda e, x, shape, **_: e.reshape(x, shape, zero_copies=False),
    "Squeeze": _squeeze,
    "ConcatV2": _concat_last,
    "Concat": lambda e, axis, /, *xs, **_: e.concat(*xs, axis=e.integer(axis)),
    "Pack": lambda e, *xs, axis=0, **_: e.stack(*xs, axis=axis),
    "Unpack": _unpack,
    "Split": _split,
    "SplitV": _split_sizes,
    "Slice": _slice,
    "StridedSlice": _strided_slice,
    "Gather": lambda e, x, at, **_: e.gather(x, at, axis=0, batch_dims=0),
    "GatherV2": _gather,
    "ResourceGather": _gather,
    "GatherNd": lambda e, x, at, batch_dims=0, **_: e.gather_nd(x, at, batch_dims=batch_dims),
    "Shape": lambda e, x, out_type="int32", **_: e.emit("shape", x, to=out_type),
    "ShapeN": lambda e, *xs, out_type="int32", **_: tuple(e.emit("shape", x, to=out_type) for x in xs),
    "Size": lambda e, x, out_type="int32", **_: e.size(x, to=out_type),
    "Rank": lambda e, x, **_: e.size(e.emit("shape", x, to="int32"), to="int32"),
    "ZerosLike": partial(_like, 0),
    "OnesLike": partial(_like, 1),
    "OneHot": _one_hot,
    "Cumsum": lambda e, x, axis, exclusive=False, reverse=False, **_: e.cumsum(
        x, axis, exclusive=bool(exclusive), reverse=bool(reverse)
    ),
    "Where": lambda e, x, **_: e.transpose(e.nonzero(x)),
    "Pad": _pad,
    "PadV2": _pad,
    "ArgMax": partial(_index, "argmax"),
    "ArgMin": partial(_index, "argmin"),
    "Softmax": lambda e, x, **_: e.softmax(x, axis=-1),
    "LogSoftmax": lambda e, x, **_: e.log_softmax(x, axis=-1),
    "MatMul": partial(_matmul, "transpose_a", "transpose_b"),
    "BatchMatMul": partial(_matmul, "adj_x", "adj_y"),
    "BatchMatMulV2": partial(_matmul, "adj_x", "adj_y"),
    "BatchMatMulV3": partial(_matmul, "adj_x", "adj_y"),
    "Einsum": lambda e, *xs, equation, **_: e.einsum(*xs, equation=equation),
    "FusedBatchNorm": _batch_norm,
    "FusedBatchNormV2": _batch_norm,
    "FusedBatchNormV3": _batch_norm,
}
