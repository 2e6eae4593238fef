"""Rotations: a `turn` whose cosines and sines are those of positions 0, 1, 2 and so on times some frequencies becomes a
`rotate` with these. The frequencies are a constant of the model, or read off the numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fusebert.errors import FusebertError
from fusebert.match.findings import Lifted
from fusebert.match.trials import Trials
from fusebert.ops.graph import Array, Weight

LONGEST = 8192  # tokens that rotary positions are tried with
_LENGTHS = (LONGEST, 4096, 2048, 1024, 521, 509, 251, 127, 61)
_TOLERANCE = 2e-5
_ROUNDING = 2e-7  # of an angle, by position


def rotated(raised: Lifted) -> tuple[Lifted, dict[str, int]]:
    """The graph with rotations in place of turns, and for how many tokens the frequencies, by name, are known."""
    trials = Trials(raised)
    weights, lengths = dict(raised.graph.weights), dict[str, int]()
    known: dict[tuple[str, ...], str | None] = {}
    same: dict[bytes, str] = {}
    nodes = []
    for node in raised.graph.nodes:
        if node.op == "turn":
            if (key := node.inputs[1:]) not in known:
                found = _frequencies(raised, trials, *key)
                known[key] = None
                if found is not None:
                    name = same.setdefault(found[0].tobytes(), f"frequencies of {key[0]}")
                    known[key], weights[name] = name, Weight.of(found[0])
                    lengths[name] = min(found[1], lengths.get(name, found[1]))
            if (frequencies := known[key]) is not None:
                node = replace(node, op="rotate", inputs=(node.inputs[0], frequencies))
        nodes.append(node)
    return replace(raised, graph=replace(raised.graph, nodes=tuple(nodes), weights=weights)), lengths


def _frequencies(raised: Lifted, trials: Trials, cos: str, sin: str) -> tuple[Array, int] | None:
    """The frequencies of two tables, and the most tokens that they were tried with."""
    if trials.inputs_of({cos, sin}).difference(raised.probes[0]):
        return None
    makers = [*trials.makers(cos), *trials.makers(sin)]
    if any(node.op in ("linear", "layer_norm", "rms_norm") for node in makers):
        return None
    named = (cos, sin, *(name for node in makers for name in node.inputs))
    weights = {name: raised.graph.weights[name] for name in named if name in raised.graph.weights}
    rows = {n for weight in weights.values() for n in weight.shape if 61 < n < LONGEST}
    lengths = tuple(sorted({*_LENGTHS, *rows}, reverse=True))
    try:
        tables = [[array for _, array in trials.try_all(name, lengths)] for name in (cos, sin)]
    except FusebertError:
        return None
    pairs = [(_flat(c), _flat(s)) for c, s in zip(*tables, strict=True)]
    longest = max(pairs, key=lambda pair: pair[0].shape[1])
    for frequencies in _candidates(weights, *longest):
        if all(_turns(c, s, frequencies) for c, s in pairs):
            return frequencies, longest[0].shape[1]
    return None


def _flat(table: Array) -> Array:
    return table.reshape(-1, *table.shape[-2:]).astype(np.float64)


def _candidates(weights: dict[str, Weight], cos: Array, sin: Array) -> Iterator[Array]:
    """Constants of the right size, and what the numbers say."""
    half = cos.shape[-1] // 2
    for weight in weights.values():
        if weight.is_numbers and "float" in weight.dtype and int(np.prod(weight.shape)) == half:
            yield weight.read().reshape(-1).astype(np.float32)
    angles = np.arctan2(sin[0, :, :half], cos[0, :, :half])  # [tokens, half]
    frequencies, step = angles[min(1, len(angles) - 1)], 2
    while step < len(angles):
        wrapped = (angles[step] - step * frequencies + np.pi) % (2 * np.pi) - np.pi
        frequencies, step = frequencies + wrapped / step, 2 * step
    yield frequencies.astype(np.float32)


def _turns(cos: Array, sin: Array, frequencies: Array) -> bool:
    """Whether tables `[any, tokens, size]` are those of positions times frequencies, for both halves alike."""
    places = np.arange(cos.shape[1], dtype=np.float32)[:, None]
    angles = np.tile(places * frequencies, 2).astype(np.float64)
    if cos.shape != sin.shape or cos.shape[2] != angles.shape[1]:
        return False
    near = _TOLERANCE + _ROUNDING * places * np.maximum(np.tile(np.abs(frequencies), 2), 1e-3)
    return bool((np.abs(cos - np.cos(angles)) <= near).all() and (np.abs(sin - np.sin(angles)) <= near).all())
