"""The mathematics of a block, written once in the words of `ops`: what `op` is decides whether this computes (the
reference that the native core is tested against) or records a Graph (the pattern that the finder searches for)."""

from __future__ import annotations

from typing import Any

from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import Numpy
from fusebert.values.blocks import Attention, Block, Disentangled, Encoder, FeedForward, Linear, Norm, Relative, Rotary


def block(op: Any, x: Any, mask: Any, w: Block, positions: Any = None) -> Any:
    """One residual step: after(x + branch(body(before(x)))). Rows stand at `positions`; None: 0, 1, 2 and so on."""
    inputs = norm(op, x, w.before)
    if isinstance(w.body, Attention):
        body = attention(op, inputs, mask, w.body, positions)
    else:
        body = feed_forward(op, inputs, w.body)
    if w.adds_twice:
        body = op.add(x, body)
    return norm(op, op.add(x, norm(op, body, w.branch)), w.after)


def attention(op: Any, x: Any, mask: Any, w: Attention, positions: Any = None) -> Any:
    """Multi-head attention of rows to themselves."""
    query = _heads(op, x, w.query, w.query_norm, w.heads)
    key = _heads(op, x, w.key, w.key_norm, w.key_heads)
    value = op.split_heads(op.linear(x, w.value.floats(), w.value.bias), w.key_heads)
    if isinstance(w.position, Rotary):
        query, key = (op.rotate(side, w.position.frequencies, positions) for side in (query, key))
    if w.key_heads != w.heads:
        key, value = (op.repeat_heads(side, w.heads // w.key_heads) for side in (key, value))
    scores = op.mask(_scores(op, query, key, w, positions), mask)
    if w.window is not None:
        scores = op.window(scores, positions, window=w.window)
    return op.linear(op.merge_heads(op.context(op.softmax(scores), value)), w.out.floats(), w.out.bias)


def _heads(op: Any, x: Any, linear: Linear, w: Norm | None, heads: int) -> Any:
    """Queries or keys by head, normed one head at a time or, where the norm is as wide, all heads together."""
    rows = op.linear(x, linear.floats(), linear.bias)
    if w is not None and w.gain is not None and len(w.gain) == len(linear.weight):
        return op.split_heads(norm(op, rows, w), heads)
    return norm(op, op.split_heads(rows, heads), w)


def _scores(op: Any, query: Any, key: Any, w: Attention, positions: Any) -> Any:
    scores = op.scores(query, key, w.scale)
    if isinstance(w.position, Relative):
        scores = op.add(scores, op.distance_bias(w.position.table, scores, positions))
    if isinstance(w.position, Disentangled):
        sides = (query, w.position.content_to_position, False), (key, w.position.position_to_content, True)
        for side, table, of_keys in sides:
            if table is not None:
                terms = op.scores(side, op.split_heads(table, w.heads), w.scale)
                sizes = {"buckets": w.position.buckets, "reach": w.position.reach}
                scores = op.add(scores, op.by_distance(terms, positions, of_keys=of_keys, **sizes))
    return scores


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


def reference(encoder: Encoder, x: Array, mask: Array | None = None, positions: Array | None = None) -> Array:
    """The encoder in NumPy: `x` is `[batch, tokens, hidden]`; `mask` is added to `[batch, heads, tokens, tokens]`;
    `positions` are `[batch, tokens]`."""
    for number in encoder.order:
        x = block(Numpy(), x, mask, encoder.blocks[number], positions)
    return norm(Numpy(), x, encoder.final)  # type: ignore[no-any-return]
