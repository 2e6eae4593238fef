"""Operations on 8-bit numbers, of ONNX and of ONNX Runtime, as primitive operations: bytes become floats, the operation
is done, and the result is rounded again. `match.quantized` then takes the rounding out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fusebert.match.dialects.onnx import dtype, gemm, leaky, reduce, scaled, softmax
from fusebert.match.emitter import Emitter, Rule
from fusebert.match.findings import Refused


def _dequantize(e: Emitter, x: str, scale: str, zero: str = "", /, axis: int = 1, block_size: int = 0, **_: Any) -> str:
    if block_size:
        raise Refused("scales per block are not supported")
    return e.dequantize(x, scale, zero, axis=axis)


def _quantize(
    e: Emitter,
    x: str,
    scale: str,
    zero: str = "",
    /,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    **_: Any,
) -> str:
    if block_size:
        raise Refused("scales per block are not supported")
    return e.quantize(x, scale, zero, axis=axis, to=dtype(output_dtype) if output_dtype else "uint8")


def _on_bytes(rule: Callable[..., str], count: int, e: Emitter, /, *given: str, **attributes: Any) -> str:
    """An operation with `count` operands, each of which is followed by its scale and zero point; at last come those of
    the result."""
    if len(given) not in (3 * count + 1, 3 * count + 2):
        raise Refused(f"{e.node.op} has {len(given)} inputs")
    operands = [e.dequantize(*given[i : i + 3], axis=-1) for i in range(0, 3 * count, 3)]
    return e.quantize(rule(e, *operands, **attributes), *given[3 * count :], axis=-1, to="uint8")


def _concat(e: Emitter, scale: str, zero: str, /, *given: str, axis: int, **_: Any) -> str:
    if not given or len(given) % 3:
        raise Refused(f"QLinearConcat has {len(given)} inputs after the result's scale")
    parts = [e.dequantize(*given[i : i + 3], axis=-1) for i in range(0, len(given), 3)]
    return e.quantize(e.concat(*parts, axis=axis), scale, zero, axis=-1, to="uint8")


def _where(e: Emitter, condition: str, /, *given: str, **_: Any) -> str:
    return _on_bytes(lambda e, yes, no: e.where(condition, yes, no), 2, e, *given)


def _matmul(
    e: Emitter,
    a: str,
    b: str,
    a_scale: str,
    b_scale: str,
    a_zero: str = "",
    b_zero: str = "",
    bias: str = "",
    /,
    **_: Any,
) -> str:
    """A product of bytes, as floats."""
    left, right = e.dequantize(a, a_scale, a_zero, axis=-2), e.dequantize(b, b_scale, b_zero, axis=-1)
    y = e.matmul(left, right, transpose_a=False, transpose_b=False)
    return e.add(y, bias) if bias else y


def _rounded_matmul(
    e: Emitter, a: str, a_scale: str, a_zero: str, b: str, b_scale: str, b_zero: str, scale: str, zero: str, /, **_: Any
) -> str:
    return e.quantize(_matmul(e, a, b, a_scale, b_scale, a_zero, b_zero), scale, zero, axis=-2, to="uint8")


def _dynamic_matmul(e: Emitter, a: str, b: str, scale: str, zero: str = "", bias: str = "", /, **_: Any) -> str:
    whole, a_scale, a_zero = e.emit_many("dynamic_quantize", 3, a)
    return _matmul(e, whole, b, a_scale, scale, a_zero, zero, bias)


def _gemm(
    e: Emitter,
    a: str,
    a_scale: str,
    a_zero: str,
    b: str,
    b_scale: str,
    b_zero: str,
    c: str = "",
    scale: str = "",
    zero: str = "",
    /,
    alpha: float = 1,
    transB: int = 0,  # noqa: N803  (ONNX's name)
    **more: Any,
) -> str:
    """alpha * (a @ b + c), where c has the scale of the product."""
    left, right = e.dequantize(a, a_scale, a_zero, axis=-1), e.dequantize(b, b_scale, b_zero, axis=0 if transB else -1)
    bias = e.dequantize(c, e.mul(a_scale, b_scale), axis=-1) if c else ""
    y = scaled(e, gemm(e, left, right, bias, transB=transB, **more), alpha)
    return e.quantize(y, scale, zero, axis=-1, to="uint8") if scale else y


_ON_BYTES: dict[str, tuple[int, Callable[..., str]]] = {
    "Add": (2, lambda e, a, b, **_: e.add(a, b)),
    "Mul": (2, lambda e, a, b, **_: e.mul(a, b)),
    "Sigmoid": (1, lambda e, x, **_: e.sigmoid(x)),
    "LeakyRelu": (1, leaky),
    "Softmax": (1, partial(softmax, "softmax")),
    "ReduceMean": (1, partial(reduce, "mean")),
}
_BOTH: dict[str, Rule] = {"DequantizeLinear": _dequantize, "QuantizeLinear": _quantize}
_FUSED: dict[str, Rule] = {
    **_BOTH,
    **{f"QLinear{op}": partial(_on_bytes, rule, count) for op, (count, rule) in _ON_BYTES.items()},
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "QGemm": _gemm,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "MatMulIntegerToFloat": _matmul,
}
RULES: dict[str, Rule] = {
    **_BOTH,
    "DynamicQuantizeLinear": lambda e, x, **_: e.emit_many("dynamic_quantize", 3, x),
    "MatMulInteger": lambda e, *xs, **_: e.matmul_integer(*xs),
    "QLinearMatMul": _rounded_matmul,
    **{f"com.microsoft.{op}": rule for op, rule in _FUSED.items()},
}
