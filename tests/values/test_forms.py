"""Every form of attention and feed-forward network against its formula in plain loops, one number at a time."""

import math
from dataclasses import replace

import numpy as np
import pytest
from encoders import FORMS, random_encoder

from fusebert.ops.primitives import ACTIVATIONS
from fusebert.ops.vocabulary import Numpy, Record, evaluate
from fusebert.values.blocks import Attention, Disentangled, FeedForward, Relative, Rotary
from fusebert.values.forms import attention, block, feed_forward, norm

POSITIONS = np.array([0, 1, 2, 5, 6, 9, 10, 30])  # with holes


def heads_of(linear, x, heads, own):
    """Rows by head as lists, `[heads][tokens]`, normed."""
    rows = x @ linear.floats().astype(x.dtype).T + (0 if linear.bias is None else linear.bias)
    if own is not None and own.gain.shape == rows.shape[-1:]:
        rows = norm(Numpy(), rows, own)
    parts = np.split(rows, heads, -1)
    return [[norm(Numpy(), row, own if own and len(own.gain) == len(row) else None) for row in part] for part in parts]


def rotated(row, position, frequencies):
    half, turned = len(row) // 2, row.copy()
    for k in range(half):
        angle = float(np.float32(position) * np.float32(frequencies[k]))
        turned[k] = row[k] * math.cos(angle) - row[k + half] * math.sin(angle)
        turned[k + half] = row[k + half] * math.cos(angle) + row[k] * math.sin(angle)
    return turned


def bucket(distance, buckets, reach):
    if buckets <= 0 or abs(distance) <= buckets // 2:
        return distance
    half = buckets // 2
    return int(
        math.copysign(
            half + math.ceil(math.log(abs(distance) / half) / math.log((reach - 1) / half) * (half - 1)), distance
        )
    )


def attention_in_loops(w: Attention, x, positions):
    size = len(w.query.weight) // w.heads
    queries, keys = heads_of(w.query, x, w.heads, w.query_norm), heads_of(w.key, x, w.key_heads, w.key_norm)
    values = heads_of(w.value, x, w.key_heads, None)
    context = []
    for head in range(w.heads):
        group = head // (w.heads // w.key_heads)
        rows = []
        for i in range(len(x)):
            scores = np.full(len(x), -np.inf)
            for j in range(len(x)):
                q, k, apart = queries[head][i], keys[group][j], int(positions[i] - positions[j])
                if w.window is not None and abs(apart) > w.window:
                    continue
                if isinstance(w.position, Rotary):
                    turn = w.position.frequencies
                    q, k = rotated(q, positions[i], turn), rotated(k, positions[j], turn)
                score, p = float(q @ k), w.position
                if isinstance(p, Disentangled):
                    span = p.buckets or p.reach
                    row = min(max(bucket(apart, p.buckets, p.reach) + span, 0), 2 * span - 1)
                    own = slice(head * size, (head + 1) * size)
                    score += 0 if p.content_to_position is None else float(q @ p.content_to_position[row, own])
                    score += 0 if p.position_to_content is None else float(k @ p.position_to_content[row, own])
                score *= w.scale
                if isinstance(p, Relative):
                    reach = p.table.shape[1] // 2
                    score += float(p.table[head, min(max(-apart, -reach), reach) + reach])
                scores[j] = score
            shares = np.exp(scores - scores.max())
            rows.append(shares / shares.sum() @ np.array(values[group]))
        context.append(np.array(rows))
    return np.concatenate(context, -1) @ w.out.floats().T + (0 if w.out.bias is None else w.out.bias)


@pytest.mark.parametrize("form", FORMS)
def test_forms_are_their_formulas(form):
    encoder = FORMS[form]()
    x = np.random.default_rng(1).normal(size=(len(POSITIONS), encoder.hidden_size))
    for one in encoder.blocks:
        if isinstance(one.body, Attention):
            got, want = attention(Numpy(), x, None, one.body, POSITIONS), attention_in_loops(one.body, x, POSITIONS)
        else:
            got, want = feed_forward(Numpy(), x, one.body), feed_forward_in_loops(one.body, x)
        assert np.abs(got - want).max() < 1e-9 * np.abs(want).max()


def feed_forward_in_loops(w: FeedForward, x):
    def product(linear, row):
        return linear.floats().astype(float) @ row + (0 if linear.bias is None else linear.bias)

    rows = []
    for row in x:
        act = ACTIVATIONS[w.activation]
        inner = act(product(w.up, row)) if w.gate is None else act(product(w.gate, row)) * product(w.up, row)
        rows.append(product(w.down, inner))
    return np.array(rows)


@pytest.mark.parametrize("form", FORMS)
def test_distances_alone_count(form):
    """Where a sequence begins in its padded row changes nothing but rounding."""
    encoder = FORMS[form]()
    x = np.random.default_rng(1).normal(size=(2, len(POSITIONS), encoder.hidden_size))
    first, later = (block(Numpy(), x, None, encoder.blocks[0], POSITIONS + shift) for shift in (0, 7))
    assert np.abs(first - later).max() < 1e-5


@pytest.mark.parametrize("form", FORMS)
def test_the_recorded_graph_means_the_same(form):
    encoder = FORMS[form]()
    record = Record()
    tensor = "x"
    for weights in encoder.blocks:
        tensor = block(record, tensor, None, weights, "positions")
    x = np.random.default_rng(1).normal(size=(1, len(POSITIONS), encoder.hidden_size))
    want = x
    for weights in encoder.blocks:
        want = block(Numpy(), want, None, weights, POSITIONS)
    graph = record.graph(("x", "positions"), (tensor,))
    assert np.array_equal(evaluate(graph, {"x": x, "positions": POSITIONS})[tensor], want)


def test_a_window_of_everything_is_none():
    encoder = random_encoder()
    x = np.random.default_rng(1).normal(size=(2, 9, encoder.hidden_size))
    wide = replace(encoder.blocks[0], body=replace(encoder.blocks[0].body, window=8))
    assert np.array_equal(block(Numpy(), x, None, wide), block(Numpy(), x, None, encoder.blocks[0]))
