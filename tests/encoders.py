"""Encoders of any sizes with random weights, for tests and for what is measured against them."""

from dataclasses import replace
from typing import Any

import numpy as np

from fusebert.ops.graph import Array
from fusebert.values.blocks import (
    Attention,
    Block,
    Disentangled,
    Encoder,
    FeedForward,
    Linear,
    Norm,
    Relative,
    Rotary,
)  # fmt: skip
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


def attending(encoder: Encoder, **parts: Any) -> Encoder:
    """The encoder with other parts in every attention."""
    blocks = (changed(block, **parts) if isinstance(block.body, Attention) else block for block in encoder.blocks)
    return replace(encoder, blocks=tuple(blocks))


def _noise(*shape: int, spread: float = 1.0, center: float = 0.0, seed: int = 5) -> Array:
    return np.random.default_rng(seed).normal(center, spread, shape).astype(np.float32)


def relative(reach=4, **sizes: Any) -> Encoder:
    """A score bias by head and distance, as MPNet and ALiBi have."""
    encoder = random_encoder(**sizes)
    return attending(encoder, position=Relative(_noise(encoder.blocks[0].body.heads, 2 * reach + 1)))


def rotary(**sizes: Any) -> Encoder:
    """Rotary positions of every query and key."""
    encoder = random_encoder(**{"key_size": 6, **sizes})
    size = len(encoder.blocks[0].body.query.weight) // encoder.blocks[0].body.heads
    return attending(encoder, position=Rotary(10.0 ** -np.linspace(0, 1, size // 2, dtype=np.float32)))


def disentangled(buckets=4, reach=9, terms="ab", **sizes: Any) -> Encoder:
    """DeBERTa's content-to-position ("a") and position-to-content ("b") terms."""
    encoder = random_encoder(**sizes)
    shape = 2 * (buckets if buckets > 0 else reach), len(encoder.blocks[0].body.query.weight)
    tables = (_noise(*shape, seed=seed) if term in terms else None for seed, term in enumerate("ab"))
    return attending(encoder, position=Disentangled(*tables, buckets, reach))


def query_and_key_norms(together=False, kind="rms", **sizes: Any) -> Encoder:
    """Norms of queries and keys: of each head, or of all heads together."""
    encoder = random_encoder(**sizes)
    body = encoder.blocks[0].body
    width = len(body.query.weight) // (1 if together else body.heads)
    norms = [
        Norm(_noise(width, spread=0.2, center=1, seed=i), _noise(width) if kind == "layer" else None, 1e-5, kind)
        for i in range(2)
    ]
    return attending(encoder, query_norm=norms[0], key_norm=norms[1])


def gated(activation="silu", bias=True, **sizes: Any) -> Encoder:
    """down(activation(gate x) * up x)."""
    encoder = random_encoder(bias=bias, **sizes)
    blocks = []
    for block in encoder.blocks:
        if isinstance(block.body, FeedForward):
            up = block.body.up
            gate = Linear(_noise(*up.weight.shape, spread=0.3), None if up.bias is None else _noise(len(up.bias)))
            block = changed(block, gate=gate, activation=activation)
        blocks.append(block)
    return replace(encoder, blocks=tuple(blocks))


def grouped(**sizes: Any) -> Encoder:
    """Four heads that share the keys and values of two."""
    encoder = random_encoder(**{"heads": 4, **sizes})
    blocks = []
    for block in encoder.blocks:
        if isinstance(body := block.body, Attention):
            halves = {
                name: Linear(part.weight[: len(part.weight) // 2], part.bias[: len(part.weight) // 2])
                for name, part in (("key", body.key), ("value", body.value))
            }
            block = changed(block, key_heads=2, **halves)
        blocks.append(block)
    return replace(encoder, blocks=tuple(blocks))


FORMS = {
    "relative": relative, "relative reach 1": lambda **s: relative(1, **s),
    "relative window": lambda **s: attending(relative(6, **s), window=20),
    "rotary": rotary,
    "window": lambda **s: attending(random_encoder(**s), window=3),
    "rotary window": lambda **s: attending(rotary(**s), window=2),
    "disentangled": disentangled, "disentangled without buckets": lambda **s: disentangled(0, 5, **s),
    "content to position": lambda **s: disentangled(terms="a", **s),
    "position to content": lambda **s: disentangled(terms="b", **s),
    "norms of heads": query_and_key_norms, "norms of all heads": lambda **s: query_and_key_norms(True, "layer", **s),
    "gated": gated, "gated without biases": lambda **s: gated("gelu_erf", bias=False, **s),
    "grouped": grouped, "grouped rotary": lambda **s: attending(grouped(key_size=6, **s), position=Rotary(_noise(3))),
}  # fmt: skip
