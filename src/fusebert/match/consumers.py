"""Consumers: who reads the encoder's output, and what of it. That decides whether hidden positions may be skipped."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping

import numpy as np

from fusebert.errors import FusebertError
from fusebert.match import axes as ax
from fusebert.match.axes import Axis
from fusebert.match.findings import EACH, FIRST, MASKED, SCORE, UNKNOWN, UNMASKED, Lifted, Mask
from fusebert.match.lift.shapes import ELEMENTWISE, numbers_read
from fusebert.match.mask import visible
from fusebert.match.trials import Trials
from fusebert.ops.graph import Node

_ROWWISE = ELEMENTWISE | {"linear", "layer_norm", "identity", "arrange", "softmax", "log_softmax", "stack", "concat"}


def consumers_of(
    lifted: Lifted, trials: Trials, outputs: tuple[str, ...], mask: Mask, inside: set[int]
) -> tuple[str, ...]:
    """The kinds of consumers of an encoder's outputs, each once; nodes inside the encoder do not count."""
    after: dict[str, list[int]] = {}
    for i, node in enumerate(lifted.graph.nodes):
        for name in numbers_read(node) if id(node) not in inside else ():
            after.setdefault(name, []).append(i)
    readings = (_Reading(lifted, trials, name, mask, after) for name in outputs)
    return tuple(dict.fromkeys(kind for reading in readings for kind in reading.kinds()))


class _Reading:
    def __init__(self, lifted: Lifted, trials: Trials, output: str, mask: Mask, after: Mapping[str, list[int]]) -> None:
        self._lifted, self._trials, self._mask, self._after = lifted, trials, mask, after
        tokens = ax.settled(lifted.dims[output])[:-1]
        self._tokens: Axis | None = tokens[-1][-1] if tokens and tokens[-1] else None
        self._rows = {output}  # tensors with one row per position
        self._masked: set[str] = set()  # of these, the ones that are nothing where the mask hides

    def kinds(self) -> Iterator[str]:
        (output,) = self._rows
        waiting, done = list(self._after.get(output, ())), -1
        while waiting:  # in the graph's order
            if (i := heapq.heappop(waiting)) == done:
                continue
            node, done = self._lifted.graph.nodes[i], i
            yield from self._node(node, [name for name in numbers_read(node) if name in self._rows])
            for name in self._rows.intersection(node.outputs):
                for following in self._after.get(name, ()):
                    heapq.heappush(waiting, following)
        for name in self._lifted.graph.outputs:
            if name in self._rows:
                last = ax.settled(self._lifted.dims[name])[-1]
                yield SCORE if last == () or last == (self._tokens,) else EACH

    def _node(self, node: Node, read: list[str]) -> Iterator[str]:
        out = node.outputs[0]
        if self._has_tokens(out):
            along = node.op.endswith("softmax") or node.op == "layer_norm"
            if node.op not in _ROWWISE or (along and self._tokens_last(out)):
                yield UNMASKED if node.op.endswith("softmax") else UNKNOWN
                return
            self._rows.add(out)
            masked = all(name in self._masked for name in read)
            if masked or (node.op in ("mul", "where") and self._hides(node)):
                self._masked.add(out)
        elif node.op == "select" and node.attributes["index"] == 0:
            yield FIRST
        elif node.op in ("sum", "mean", "max") and read[0] in self._masked:
            yield MASKED
        elif node.op in ("sum", "mean", "max", "min"):
            yield UNMASKED
        else:
            yield UNKNOWN

    def _has_tokens(self, name: str) -> bool:
        return name in self._lifted.dims and self._tokens in ax.flat(self._lifted.dims[name])

    def _tokens_last(self, name: str) -> bool:
        return self._tokens in ax.settled(self._lifted.dims[name])[-1]

    def _hides(self, node: Node) -> bool:
        """Whether a node leaves nothing of the rows that the mask hides: it multiplies them by nothing, or puts
        something else in their place."""
        if node.op == "mul":
            return any(self._is_where_hidden(n, False) for n in node.inputs if n not in self._rows)
        condition, yes, no = node.inputs
        if (yes in self._rows) == (no in self._rows) or condition in self._rows:
            return False
        return self._is_where_hidden(condition, no in self._rows)

    def _is_where_hidden(self, name: str, wanted: bool) -> bool:
        """Whether a tensor is true (or false) wherever the mask hides."""
        if name in self._lifted.graph.weights or name not in self._lifted.content:
            return False
        try:
            for probe, array in self._trials.try_all(name):
                seen = visible(self._mask, probe, array.shape[1] if array.ndim > 1 else 0)
                if seen is None or array.ndim < 2 or array.shape[:2] != seen.shape:
                    return False
                hidden = array.reshape(*seen.shape, -1)[~seen]
                if not np.array_equal(hidden.astype(bool), np.full_like(hidden, wanted, bool)):
                    return False
        except FusebertError:
            return False
        return True
