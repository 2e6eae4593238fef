"""The mathematics of a block, written once in the words of `ops`: what `op` is decides whether this computes (the
reference that the native core is tested against) or records a Graph (the pattern that the finder searches for)."""

from __future__ import annotations

from typing import Any

from fusebert.errors import UnsupportedError
from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import Numpy
from fusebert.values.blocks import Attention, Block, Encoder, FeedForward, Norm


def block(op: Any, x: Any, mask: Any, w: Block) -> Any:
    """One residual step: after(x + branch(body(before(x))))."""
    inputs = norm(op, x, w.before)
    body = attention(op, inputs, mask, w.body) if isinstance(w.body, Attention) else feed_forward(op, inputs, w.body)
    return norm(op, op.add(x, norm(op, body, w.branch)), w.after)


def attention(op: Any, x: Any, mask: Any, w: Attention) -> Any:
    """Multi-head attention of rows to themselves."""
    if w.position is not None or w.window is not None or w.query_norm is not None or w.key_norm is not None:
        raise UnsupportedError("attention with a window, relative or rotary positions, or norms of queries and keys")
    query = op.split_heads(op.linear(x, w.query.floats(), w.query.bias), w.heads)
    key = op.split_heads(op.linear(x, w.key.floats(), w.key.bias), w.key_heads)
    value = op.split_heads(op.linear(x, w.value.floats(), w.value.bias), w.key_heads)
    shares = op.softmax(op.mask(op.scores(query, key, w.scale), mask))
    return op.linear(op.merge_heads(op.context(shares, value)), w.out.floats(), w.out.bias)


def feed_forward(op: Any, x: Any, w: FeedForward) -> Any:
    """down(activation(up x)), or with a gate down(activation(gate x) * up x)."""
    up = op.linear(x, w.up.floats(), w.up.bias)
    if w.gate is None:
        inner = op.activation(up, w.activation)
    else:
        inner = op.multiply(op.activation(op.linear(x, w.gate.floats(), w.gate.bias), w.activation), up)
    return op.linear(inner, w.down.floats(), w.down.bias)


def norm(op: Any, x: Any, w: Norm | None) -> Any:
    """A LayerNorm or RMSNorm; rows as they are where there is none."""
    if w is None:
        return x
    if w.kind == "rms":
        return op.rms_norm(x, w.gain, w.epsilon)
    return op.layer_norm(x, w.gain, w.bias, w.epsilon)


def reference(encoder: Encoder, x: Array, mask: Array | None = None) -> Array:
    """The encoder in NumPy: `x` is `[batch, tokens, hidden]`; `mask` is added to `[batch, heads, tokens, tokens]`."""
    for number in encoder.order:
        x = block(Numpy(), x, mask, encoder.blocks[number])
    return norm(Numpy(), x, encoder.final)  # type: ignore[no-any-return]
