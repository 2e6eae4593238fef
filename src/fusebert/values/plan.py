"""Plan: in which precision each product of each layer runs. Pure: names and observed ranges in, a value out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.ops.graph import Array

PRECISIONS = ("fp32", "bf16", "int8", "int8-bf16")
PRODUCTS = ("qkv", "attention_out", "ffn_in", "ffn_out")
_PRODUCT = {"fp32": "f32", "bf16": "bf16", "int8": "s8", "int8-bf16": "s8"}
_LARGEST_STEP = 1 / 3  # of 8 bits; wider ones would make a 0 of most numbers (native/hosts/tf_weights.cc does the same)
_REST = {"fp32": "f32", "bf16": "bf16", "int8": "f32", "int8-bf16": "bf16"}


@dataclass(frozen=True)
class Product:
    """One product: `f32`, `bf16` or `s8`; an s8 product finds its input range per token, unless `low < high` fix it."""

    type: str
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class LayerPlan:
    """The four products of a layer, and the type of the two inside attention."""

    qkv: Product
    attention_out: Product
    ffn_in: Product
    ffn_out: Product
    attention: str


@dataclass(frozen=True)
class Plan:
    """`precision` is the name the user chose; `decoder` the type of a masked-language head's last product."""

    precision: str
    layers: tuple[LayerPlan, ...]
    decoder: str

    @property
    def static(self) -> bool:
        """Whether any input range is fixed beforehand."""
        return any(getattr(layer, name).low < getattr(layer, name).high for layer in self.layers for name in PRODUCTS)


def make_plan(precision: str, layers: int, ranges: Any = None) -> Plan:
    """The plan for one of PRECISIONS; `ranges` `[layers, 4, 2]`, low and high of every input, make int8 static, except
    where one is too wide for 8 bits: that product finds its range per token all the same."""
    if precision not in PRECISIONS:
        raise FusebertError(f"precision {precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
    fixed = _checked_ranges(ranges, precision, layers)
    kind = _PRODUCT[precision]
    plans = []
    for layer in fixed:
        products = {
            name: Product(kind) if too_wide(low, high) else Product(kind, float(low), float(high))
            for name, (low, high) in zip(PRODUCTS, layer, strict=True)
        }
        plans.append(LayerPlan(**products, attention=_REST[precision]))
    return Plan(precision, tuple(plans), kind)


def too_wide(low: float, high: float) -> bool:
    """Whether an input range is too wide to be cut into 255 steps."""
    return (max(float(high), 0.0) - min(float(low), 0.0)) / 255 > _LARGEST_STEP


def _checked_ranges(ranges: Any, precision: str, layers: int) -> Array:
    shape = (layers, len(PRODUCTS), 2)
    if ranges is None:
        return np.zeros(shape, np.float32)
    if _PRODUCT[precision] != "s8":
        raise FusebertError(f"ranges belong to int8 and int8-bf16, not to {precision}")
    try:
        fixed = np.asarray(ranges, np.float32)
    except (TypeError, ValueError):
        raise FusebertError("ranges must be numbers") from None
    if fixed.size != layers * 8:
        raise FusebertError(
            f"ranges hold {fixed.size} numbers; {layers} layers need {layers * 8} (low and high of four products)"
        )
    fixed = fixed.reshape(shape)
    if not (np.isfinite(fixed).all() and (fixed[..., 0] < fixed[..., 1]).all()):
        raise FusebertError("ranges: every low must be finite and below its high")
    return fixed
