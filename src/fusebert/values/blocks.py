"""Encoder: what is computed, as blocks. A block is one residual step, x = after(x + branch(body(before(x)))); a norm
that is None is absent, so pre-norm and post-norm encoders differ only in which norms are there.

Sizes are not stored beside the weights: they are read from the weights' shapes, so the two cannot disagree. The fields
of these classes are the only list of an encoder's parts; values/traverse.py walks them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusebert.ops.graph import Array


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ + b. The weight is `[outputs, inputs]`, any strides: float32, float16, bfloat16, or int8 with scales.

    Where an int8 product uses it, inputs are divided by `input_scales` before they are quantised, and weights
    multiplied; an int8 weight has been multiplied already."""

    weight: Array
    bias: Array | None = None
    scales: Array | None = None  # [outputs], of an int8 weight
    input_scales: Array | None = None  # [inputs]

    def floats(self) -> Array:
        """The weight as float32."""
        weight = np.asarray(self.weight, np.float32)
        if self.scales is None:
            return weight
        weight = weight * self.scales[:, None]
        return weight if self.input_scales is None else weight / self.input_scales

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Every array by the name of its field."""
        for name in ("weight", "bias", "scales", "input_scales"):
            if (array := getattr(self, name)) is not None:
                yield name, array


@dataclass(frozen=True)
class Norm:
    """LayerNorm (`kind` "layer") or RMSNorm ("rms") over a row; a gain that is None is 1, such a bias 0."""

    gain: Array | None
    bias: Array | None
    epsilon: float
    kind: str = "layer"

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Every array by the name of its field."""
        for name in ("gain", "bias"):
            if (array := getattr(self, name)) is not None:
                yield name, array


@dataclass(frozen=True)
class Rotary:
    """Queries and keys are rotated by their position times these frequencies, `[head size / 2]`."""

    frequencies: Array


@dataclass(frozen=True)
class Relative:
    """Added to the scaled scores by head and distance: `[heads, 2 * reach + 1]`, clamped key minus query position."""

    table: Array


@dataclass(frozen=True)
class Disentangled:
    """DeBERTa's terms, added before the scale: tables `[2 * buckets, heads * head size]` (without buckets 2 * reach
    rows), projected and with their biases, as the reader computed them."""

    content_to_position: Array | None
    position_to_content: Array | None
    buckets: int
    reach: int


Position = Rotary | Relative | Disentangled


@dataclass(frozen=True)
class Attention:
    """Multi-head attention. A head's size is its share of the query's rows; nothing needs to equal the hidden size."""

    query: Linear
    key: Linear
    value: Linear
    out: Linear
    heads: int
    key_heads: int
    scale: float
    window: int | None = None  # the farthest a query sees, in positions, at least 1; None: everything
    position: Position | None = None
    query_norm: Norm | None = None  # of one head, or with a gain of that length of all heads together
    key_norm: Norm | None = None

    def products(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The linears that share an input, by field name: the block's first and second product."""
        return ("query", "key", "value"), ("out",)


@dataclass(frozen=True)
class FeedForward:
    """down(activation(up x)), or with a gate down(activation(gate x) * up x)."""

    up: Linear
    gate: Linear | None
    down: Linear
    activation: str

    def products(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The linears that share an input, by field name: the block's first and second product."""
        return ("up",) if self.gate is None else ("up", "gate"), ("down",)


@dataclass(frozen=True)
class Block:
    """One residual step: x = after(x + branch(body(before(x)))); one that `adds_twice` has a branch, before which x is
    added as well: x = after(x + branch(x + body(before(x))))."""

    before: Norm | None
    body: Attention | FeedForward
    branch: Norm | None
    after: Norm | None
    adds_twice: bool = False


@dataclass(frozen=True)
class Encoder:
    """Blocks over rows of `hidden_size` numbers, run in `order`; one that is named twice is packed once."""

    hidden_size: int
    blocks: tuple[Block, ...]
    order: tuple[int, ...]
    final: Norm | None = None

    @staticmethod
    def of(hidden_size: int, blocks: tuple[Block, ...], final: Norm | None = None) -> Encoder:
        """Each block once, in the order given."""
        return Encoder(hidden_size, blocks, tuple(range(len(blocks))), final)


def default_scale(query: Linear, heads: int) -> float:
    """What scores are multiplied by unless a model says otherwise: one over the square root of a head's size."""
    return float((len(query.weight) // heads) ** -0.5)
