"""Tensors: types and shapes of all that a graph computes, in the words of people; and what is in a weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from fusebert.errors import unknown
from fusebert.match import Finding, dtype_of
from fusebert.ops.graph import Graph, Weight

_BINS = 48
_MOST_READ = 1 << 22  # numbers of a weight that are looked at, spread evenly over it


def describe(flat: Graph, finding: Finding) -> list[dict[str, Any]]:
    """Type and shape of every tensor that a node of the flat graph reads or makes; None where nobody knows."""
    names = _Names(finding)
    translated = finding.translated
    maker = {tensor: node for node in translated.nodes for tensor in node.outputs}
    found: list[dict[str, Any]] = []
    for tensor in _tensors(flat):
        weight = flat.weights.get(tensor)
        if weight is not None:
            found.append({"name": tensor, "dtype": weight.dtype, "shape": list(weight.shape), "weight": True})
            continue
        dtype = dtype_of(tensor, maker, translated.weights, translated.types)
        found.append({"name": tensor, "dtype": dtype or None, "shape": names.shape(tensor, flat)})
    return found


def _tensors(flat: Graph) -> Iterator[str]:
    seen = {*flat.inputs, *flat.outputs}
    for node in flat.nodes:
        seen.update(node.inputs, node.outputs)
    yield from sorted(filter(None, seen))


class _Names:
    """Sizes by the names that people have for them."""

    def __init__(self, finding: Finding) -> None:
        self._raised = finding.raised
        first, second = finding.raised.probes
        pairs = [(a.shape, b.shape) for a, b in zip(first.values(), second.values(), strict=True)]
        batch, length = next((tuple(zip(a, b, strict=True)) for a, b in pairs if len(a) == 2), ((0, 0), (0, 0)))
        both = batch[0] * length[0], batch[1] * length[1]
        self._known = {size: name for name, size in (("batch·length", both), ("length", length), ("batch", batch))}

    def shape(self, tensor: str, flat: Graph) -> list[Any] | None:
        """A shape: numbers of the model, names of what a batch decides, "?" for the rest."""
        sizes = self._raised.sizes(tensor)
        if sizes is not None:
            return [self._known.get((a, b), a if a == b else "?") for a, b in sizes]
        declared = flat.types.get(tensor)
        return None if declared is None or declared.shape is None else [n if n else "?" for n in declared.shape]


def histogram(flat: Graph, name: str) -> dict[str, Any]:
    """What the numbers of a weight are: how many, their range, mean and spread, and how often each size is there."""
    weight = flat.weights.get(name)
    if weight is None:
        raise unknown("weight", name, flat.weights)
    count = math.prod(weight.shape)
    facts: dict[str, Any] = {"name": name, "dtype": weight.dtype, "shape": list(weight.shape), "count": count}
    numbers = _numbers(weight) if count and weight.dtype != "string" else np.empty(0)
    good = numbers[np.isfinite(numbers)]
    if not good.size:
        return facts
    low, high = float(good.min()), float(good.max())
    counts, _ = np.histogram(good, _BINS, (low, high) if low < high else (low - 0.5, high + 0.5))
    return {
        **facts, "looked_at": int(numbers.size), "min": low, "max": high, "mean": float(good.mean()),
        "std": float(good.std()), "zeros": float((good == 0).mean()), "not_finite": int(numbers.size - good.size),
        "bins": counts.tolist(),
    }  # fmt: skip


def _numbers(weight: Weight) -> Any:
    flat = weight.read().reshape(-1)
    return flat[:: max(1, len(flat) // _MOST_READ)].astype(np.float64)
