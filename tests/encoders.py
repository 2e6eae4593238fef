"""Encoders of any sizes with random weights, for tests and for what is measured against them."""

from dataclasses import replace
from typing import Any

import numpy as np

from fusebert.values.blocks import Block, Encoder, Linear, Norm
from fusebert.values.traverse import post_norm_layer


def random_encoder(
    hidden=24, heads=3, key_size=5, value_size=7, inner=31, layers=2, bias=True, transposed=False, seed=0
) -> Encoder:
    random = np.random.default_rng(seed)

    def linear(outputs: int, inputs: int) -> Linear:
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        weight = random.normal(0, inputs**-0.5, shape).astype(np.float32)
        return Linear(
            weight.T if transposed else weight, random.normal(0, 0.2, outputs).astype(np.float32) if bias else None
        )

    def norm(epsilon: float) -> Norm:
        return Norm(
            random.normal(1, 0.2, hidden).astype(np.float32), random.normal(0, 0.2, hidden).astype(np.float32), epsilon
        )

    blocks: list[Block] = []
    for i in range(layers):
        made = {
            "attention.query": linear(heads * key_size, hidden), "attention.key": linear(heads * key_size, hidden),
            "attention.value": linear(heads * value_size, hidden), "attention.out": linear(hidden, heads * value_size),
            "attention.after": norm(1e-5 * (i + 1)), "feed_forward.up": linear(inner + i, hidden),
            "feed_forward.down": linear(hidden, inner + i), "feed_forward.after": norm(1e-12),
        }  # fmt: skip
        blocks += post_norm_layer(made.__getitem__, heads, "gelu_erf", 0.3 + i)
    return Encoder.of(hidden, tuple(blocks))


def changed(block: Block, **parts: Any) -> Block:
    """The block with other parts in its body."""
    return replace(block, body=replace(block.body, **parts))


def first_layers(encoder: Encoder, count: int) -> Encoder:
    """The encoder's first layers, of two blocks each."""
    return Encoder.of(encoder.hidden_size, encoder.blocks[: 2 * count])
