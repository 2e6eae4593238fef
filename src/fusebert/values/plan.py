"""Plan: in which precision each product of each block runs. Pure: names and observed ranges in, a value out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.values.precision import attention_types
from fusebert.values.precision import precision as named_precision

# The products of a layer, which is an attention and a feed-forward block, by the names that files and tables give them.
PRODUCTS = ("qkv", "attention_out", "ffn_in", "ffn_out")
_LARGEST_STEP = 1 / 3  # of 8 bits; wider ones would make a 0 of most numbers (native/hosts does the same)


@dataclass(frozen=True)
class Product:
    """One product: `f32`, `bf16` or `s8`; an s8 product finds its input range per token, unless `low < high` fix it."""

    type: str
    low: float = 0.0
    high: float = 0.0

    @property
    def static(self) -> bool:
        """Whether its input range is fixed beforehand."""
        return self.low < self.high


@dataclass(frozen=True)
class BlockPlan:
    """The block's two products with weights, the type of those inside attention, and which of BYTES these are."""

    first: Product
    second: Product
    scores: str
    bytes: str = "never"


@dataclass(frozen=True)
class Plan:
    """`precision` is the name the user chose; `decoder` the type of a masked-language head's last product."""

    precision: str
    blocks: tuple[BlockPlan, ...]
    decoder: str

    @property
    def static(self) -> bool:
        """Whether any input range is fixed beforehand."""
        return any(product.static for block in self.blocks for product in (block.first, block.second))

    @property
    def ranges(self) -> list[float]:
        """Low and high of the inputs of both products of every block; both 0 where they are found per token."""
        products = (product for block in self.blocks for product in (block.first, block.second))
        return [number for product in products for number in (product.low, product.high)]


def make_plan(precision: str, blocks: int, ranges: Any = None) -> Plan:
    """The plan for a precision and so many blocks; `ranges`, low and high of the inputs of both products of every
    block, make int8 static, except where one is too wide for 8 bits: that product finds its range per token."""
    kind = named_precision(precision)
    inside = attention_types(kind)
    plans = [
        BlockPlan(_product(kind.products, *first), _product(kind.products, *second), *inside)
        for first, second in _checked_ranges(ranges, precision, blocks)
    ]
    return Plan(precision, tuple(plans), kind.products)


def with_attention(plan: Plan, attention: str | None) -> Plan:
    """The plan with attention computed in fp32, bf16 or int8; as it is, if none of these is given."""
    if attention is None:
        return plan
    scores, in_bytes = attention_types(named_precision(plan.precision), attention)
    return replace(plan, blocks=tuple(replace(block, scores=scores, bytes=in_bytes) for block in plan.blocks))


def _product(kind: str, low: float, high: float) -> Product:
    return Product(kind, float(low), float(high)) if low < high and not too_wide(low, high) else Product(kind)


def too_wide(low: float, high: float) -> bool:
    """Whether an input range is too wide to be cut into 255 steps."""
    return (max(float(high), 0.0) - min(float(low), 0.0)) / 255 > _LARGEST_STEP


def _checked_ranges(ranges: Any, precision: str, blocks: int) -> Array:
    shape = (blocks, 2, 2)
    if ranges is None:
        return np.zeros(shape, np.float32)
    if not named_precision(precision).int8:
        raise FusebertError(f"ranges belong to int8 and int8-bf16, not to {precision}; omit them")
    try:
        fixed = np.asarray(ranges, np.float32)
    except (TypeError, ValueError):
        raise FusebertError("ranges: not an array of numbers; give low and high of every product's input") from None
    if fixed.size != blocks * 4:
        raise FusebertError(
            f"ranges: {fixed.size} numbers for a model that needs {blocks * 4}: low and high of four products a layer"
        )
    fixed = fixed.reshape(shape)
    check_ranges(fixed, "ranges")
    return fixed


def check_ranges(ranges: Array, where: str) -> None:
    """The one rule for ranges `[..., 2]`, low and high. One with low = high fixes nothing: its product finds its range
    per token."""
    if not (np.isfinite(ranges).all() and (ranges[..., 0] <= ranges[..., 1]).all()):
        raise FusebertError(f"{where}: every low must be finite and not above its high")
