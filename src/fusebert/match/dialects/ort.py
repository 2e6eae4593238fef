"""The fused operations of ONNX Runtime (com.microsoft) and Attention of ai.onnx, spelled out in primitive operations.

Inputs in the order of onnxruntime 1.31; nodes with a cache of past keys stay as they are."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from fusebert.match.dialects.onnx import gemm, layer_norm, rms_norm, scaled
from fusebert.match.emitter import Emitter, Ints, MaybeOmitted, Rule
from fusebert.match.findings import Refused

_HIDDEN = -10000.0  # the default of mask_filter_value
_LOWEST = float(np.finfo(np.float32).min)


def _split_heads(e: Emitter, x: str, heads: int) -> str:
    if heads < 1:
        raise Refused(f"attention with {heads} heads is not supported")
    wide = e.reshape(x, e.constant([0, 0, heads, -1]), zero_copies=True)
    return e.transpose(wide, e.constant([0, 2, 1, 3]))


def _merge_heads(e: Emitter, x: str) -> str:
    return e.reshape(e.transpose(x, e.constant([0, 2, 1, 3])), e.constant([0, 0, -1]), zero_copies=True)


def _scores(e: Emitter, q: str, k: str, scale: float, width: int | None) -> str:
    """Products of queries and keys, scaled; the default scale needs the width of a head, if not known by its shape."""
    if width is not None and width < 0:
        raise Refused(f"heads of {width} columns are not supported")
    scores = e.matmul(q, k, transpose_a=False, transpose_b=True)
    if scale or width:
        return scaled(e, scores, scale or 1 / sqrt(width or 1))
    size = e.gather(e.emit("shape", q, to="int64"), e.constant(-1), axis=0, batch_dims=0)
    return e.mul(scores, e.rsqrt(e.cast(size, to=e.dtype(q) or "float32")))


def _context(e: Emitter, scores: str, v: str) -> str:
    return e.matmul(e.softmax(scores, axis=-1), v, transpose_a=False, transpose_b=False)


def _masked(
    e: Emitter,
    scores: str,
    mask: str,
    bias: str,
    mask_filter_value: float,
    unidirectional: int,
) -> str:
    if mask:
        scores = e.add(scores, e.key_mask(mask, scores, filter=float(mask_filter_value)))
    if unidirectional:
        scores = e.add(scores, e.causal_mask(scores, filter=_LOWEST, from_end=True))
    return e.add(scores, bias) if bias else scores


def _attention(
    e: Emitter,
    x: str,
    weight: str,
    bias: str = "",
    mask: str = "",
    past: str = "",
    extra: str = "",
    /,
    *_: str,
    num_heads: int,
    qkv_hidden_sizes: Ints = (),
    scale: float = 0.0,
    do_rotary: int = 0,
    mask_filter_value: float = _HIDDEN,
    unidirectional: int = 0,
    **_more: Any,
) -> str:
    if past or do_rotary:
        raise Refused("attention with past keys or rotary positions is not supported")
    total = _last(e, weight)
    sizes = tuple(qkv_hidden_sizes) or ((total // 3,) * 3 if total is not None else ())
    packed = e.matmul(x, weight, transpose_a=False, transpose_b=False)
    packed = e.add(packed, bias) if bias else packed
    parts = e.emit_many("split", 3, packed, e.constant(sizes) if sizes else "", axis=-1, count=3)
    q, k, v = (_split_heads(e, part, num_heads) for part in parts)
    scores = _scores(e, q, k, scale, sizes[0] // num_heads if sizes else None)
    return _merge_heads(e, _context(e, _masked(e, scores, mask, extra, mask_filter_value, unidirectional), v))


def _multi_head_attention(
    e: Emitter,
    q: str,
    k: str = "",
    v: str = "",
    bias: str = "",
    mask: str = "",
    extra: str = "",
    /,
    *past: str,
    num_heads: int,
    scale: float = 0.0,
    mask_filter_value: float = _HIDDEN,
    unidirectional: int = 0,
    **_: Any,
) -> str:
    ranks = [len(shape) for x in (q, k, v) if x and (shape := e.sizes(x)) is not None]
    if any(past) or not (k and v) or any(rank != 3 for rank in ranks):
        raise Refused("attention with past keys or packed inputs is not supported")
    width = _last(e, q)
    if bias:
        total = _last(e, bias)
        if total is None:
            raise Refused(f"the length of {bias} is not known")
        own = width or total // 3
        sizes = (own, own, total - 2 * own)
        biases = e.emit_many("split", 3, bias, e.constant(sizes), axis=0, count=3)
        q, k, v = (e.add(x, b) for x, b in zip((q, k, v), biases, strict=True))
        width = own
    q, k, v = (_split_heads(e, x, num_heads) for x in (q, k, v))
    scores = _scores(e, q, k, scale, width // num_heads if width else None)
    return _merge_heads(e, _context(e, _masked(e, scores, mask, extra, mask_filter_value, unidirectional), v))


def _last(e: Emitter, tensor: str) -> int | None:
    shape = e.sizes(tensor)
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def _same_heads(e: Emitter, q: str, k: str) -> bool:
    shapes = e.sizes(q), e.sizes(k)
    return len({shape[1] for shape in shapes if shape and len(shape) == 4}) <= 1


def _onnx_attention(
    e: Emitter,
    q: str,
    k: str,
    v: str,
    mask: str = "",
    /,
    *past: str,
    is_causal: int = 0,
    q_num_heads: int = 0,
    kv_num_heads: int = 0,
    scale: float = 0.0,
    softcap: float = 0.0,
    qk_matmul_output_mode: int = 0,  # noqa: ARG001  (of a second output, which keeps the node alive)
    softmax_precision: int = 0,  # noqa: ARG001
) -> str:
    """Attention of ai.onnx: [batch, heads, tokens, size], or [batch, tokens, width] with the heads as attributes."""
    heads = q_num_heads
    if any(past) or softcap or kv_num_heads != heads or (not heads and not _same_heads(e, q, k)):
        raise Refused("attention with past keys, capped scores or shared heads is not supported")
    width = _last(e, q)
    if heads:
        q, k, v = (_split_heads(e, x, heads) for x in (q, k, v))
        width = width // heads if width else None
    scores = _scores(e, q, k, scale, width)
    if is_causal:
        scores = e.add(scores, e.causal_mask(scores, filter=float("-inf"), from_end=False))
    if mask and e.dtype(mask) == "bool":
        scores = e.where(mask, scores, e.number(float("-inf"), q))
    elif mask:
        scores = e.add(scores, mask)
    y = _context(e, scores, v)
    return _merge_heads(e, y) if heads else y


def _quantized_attention(
    e: Emitter,
    x: str,
    weight: str,
    bias: str,
    x_scale: str,
    weight_scale: str,
    mask: str = "",
    x_zero: str = "",
    weight_zero: str = "",
    /,
    *past: str,
    num_heads: int,
    qkv_hidden_sizes: Ints = (),
    scale: float = 0.0,
    do_rotary: int = 0,
    mask_filter_value: float = _HIDDEN,
    unidirectional: int = 0,
    **_: Any,
) -> str:
    whole = e.dequantize(weight, weight_scale, weight_zero, axis=1)
    total = _last(e, weight)
    sizes = qkv_hidden_sizes or ((total // 3,) * 3 if total is not None else ())
    floats = e.dequantize(x, x_scale, x_zero, axis=-1)
    return _attention(
        e, floats, whole, bias, mask, *past, num_heads=num_heads, qkv_hidden_sizes=sizes, scale=scale,
        do_rotary=do_rotary, mask_filter_value=mask_filter_value, unidirectional=unidirectional,
    )  # fmt: skip


def _skip_layer_norm(
    e: Emitter, x: str, skip: str, gain: str, beta: str = "", bias: str = "", /, epsilon: float = 1e-12, **_: Any
) -> tuple[str, ...]:
    total = e.add(x, skip)
    total = e.add(total, bias) if bias else total
    return e.layer_norm(total, gain, beta, epsilon=epsilon), "", "", total


def _skip_rms_norm(
    e: Emitter, x: str, skip: str, gain: str, bias: str = "", /, epsilon: float = 1e-5, **_: Any
) -> tuple[str, ...]:
    total = e.add(x, skip)
    total = e.add(total, bias) if bias else total
    return rms_norm(e, total, gain, epsilon=epsilon), "", "", total


def _embed(
    e: Emitter,
    ids: str,
    types: MaybeOmitted,
    words: str,
    places: str,
    type_table: MaybeOmitted,
    gain: str,
    bias: str,
    mask: str = "",
    positions: str = "",
    /,
    epsilon: float = 1e-12,
    **_: Any,
) -> tuple[str, ...]:
    if not positions:
        length = e.gather(e.emit("shape", ids, to="int64"), e.constant(1), axis=0, batch_dims=0)
        positions = e.range(e.constant(0), length, e.constant(1))
    total = e.add(e.gather(words, ids, axis=0, batch_dims=0), e.gather(places, positions, axis=0, batch_dims=0))
    if types and type_table:
        total = e.add(total, e.gather(type_table, types, axis=0, batch_dims=0))
    return e.layer_norm(total, gain, bias, epsilon=epsilon), e.mask_index(mask) if mask else "", total


def _quantized_embed(
    e: Emitter, ids: str, types: MaybeOmitted, words: str, places: str, type_table: MaybeOmitted, gain: str, bias: str,
    mask: MaybeOmitted, /,
    *scales: str, epsilon: float = 1e-12, **_: Any,
) -> tuple[str, ...]:  # fmt: skip
    if len(scales) < 5:
        raise Refused(f"QEmbedLayerNormalization has {len(scales)} scales instead of 5")

    def table(i: int, whole: str) -> str:
        return e.dequantize(whole, scales[i], scales[i + 5] if len(scales) > i + 5 else "", axis=0) if whole else ""

    words, places, type_table = table(0, words), table(1, places), table(2, type_table)
    return _embed(e, ids, types, words, places, type_table, table(3, gain), table(4, bias), mask, epsilon=epsilon)[:2]


def _fused_matmul(e: Emitter, a: str, b: str, /, alpha: float = 1, **more: Any) -> str:
    if more.get("transBatchA", 0) or more.get("transBatchB", 0):
        raise Refused("transposed batch axes are not supported")
    return gemm(e, a, b, "", alpha=alpha, **more)


def _fused_gemm(
    e: Emitter,
    a: str,
    b: str,
    c: str = "",
    /,
    activation: str = "",
    alpha: float = 1,
    beta: float = 1,
    **more: Any,
) -> str:
    if activation not in ("", "Relu", "Tanh", "Sigmoid"):
        raise Refused(f"FusedGemm with activation {activation} is not supported")
    product = gemm(e, a, b, c, alpha=alpha, beta=beta, **more)
    return e.emit(activation.lower(), product) if activation else product


def _fast_gelu(e: Emitter, x: str, bias: str = "", /, **_: Any) -> str:
    return e.activation(e.add(x, bias) if bias else x, name="gelu_tanh")


def _quick_gelu(e: Emitter, x: str, /, alpha: float = 1.702, **_: Any) -> str:
    if abs(alpha - 1.702) < 1e-6:
        return e.activation(x, name="gelu_quick")
    return e.mul(x, e.sigmoid(scaled(e, x, alpha)))


def _bias_softmax(e: Emitter, x: str, bias: str, /, axis: int = 1, **_: Any) -> str:
    if not e.is_last(axis, x):
        raise Refused(f"softmax from axis {axis} on is not supported")
    return e.softmax(e.add(x, bias), axis=-1)


_FUSED: dict[str, Rule] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
    "QAttention": _quantized_attention,
    "LayerNormalization": layer_norm,
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "SimplifiedLayerNormalization": rms_norm,
    "EmbedLayerNormalization": _embed,
    "QEmbedLayerNormalization": _quantized_embed,
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "Gelu": lambda e, x, **_: e.activation(x, name="gelu_erf"),
    "BiasGelu": lambda e, x, bias, **_: e.activation(e.add(x, bias), name="gelu_erf"),
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "BiasSoftmax": _bias_softmax,
    "Trilu": lambda e, x, k="", upper=1, **_: e.trilu(x, k, upper=bool(upper)),
}
RULES: dict[str, Rule] = {"Attention": _onnx_attention, **{f"com.microsoft.{op}": rule for op, rule in _FUSED.items()}}
