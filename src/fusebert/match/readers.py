"""Readers: who reads the encoder's output, and what of it. That decides whether hidden positions may be skipped."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fusebert.errors import FusebertError
from fusebert.graph import Node
from fusebert.match import axes as ax
from fusebert.match.axes import Axis
from fusebert.match.lift.lifting import ELEMENTWISE, Lifted, numbers_read
from fusebert.match.mask import Mask, computed

FIRST, MASKED, EACH, SCORE, UNMASKED, UNKNOWN = (
    "first token", "masked mean", "every position by itself", "one score per position", "unmasked reduction", "unknown",
)  # fmt: skip
_SKIPPING = frozenset((FIRST, MASKED, EACH))  # no answer depends on a hidden row, except at that row
_ROWWISE = ELEMENTWISE | {"linear", "layer_norm", "identity", "arrange", "softmax", "log_softmax", "stack", "concat"}


def may_skip(kinds: tuple[str, ...]) -> bool:
    """Whether hidden positions may be left out for these readers."""
    return _SKIPPING.issuperset(kinds)


def readers_of(lifted: Lifted, outputs: tuple[str, ...], mask: Mask, inside: set[int]) -> tuple[str, ...]:
    """The kinds of readers of an encoder's outputs, each once; nodes inside the encoder are none."""
    return tuple(dict.fromkeys(kind for name in outputs for kind in _Reading(lifted, name, mask, inside).kinds()))


class _Reading:
    def __init__(self, lifted: Lifted, output: str, mask: Mask, inside: set[int]) -> None:
        self._lifted, self._mask, self._inside = lifted, mask, inside
        tokens = ax.settled(lifted.dims[output])[:-1]
        self._tokens: Axis | None = tokens[-1][-1] if tokens and tokens[-1] else None
        self._rows = {output}  # tensors with one row per position
        self._masked: set[str] = set()  # of these, the ones that are nothing where the mask hides

    def kinds(self) -> Iterator[str]:
        for node in self._lifted.graph.nodes:
            read = [name for name in numbers_read(node) if name in self._rows]
            if read and id(node) not in self._inside:
                yield from self._node(node, read)
        for name in self._lifted.graph.outputs:
            if name in self._rows:
                last = ax.settled(self._lifted.dims[name])[-1]
                yield SCORE if last == () or last == (self._tokens,) else EACH

    def _node(self, node: Node, read: list[str]) -> Iterator[str]:
        out = node.outputs[0]
        if self._has_tokens(out):
            if node.word not in _ROWWISE or (node.word.endswith("softmax") and self._tokens_last(out)):
                yield UNMASKED if node.word.endswith("softmax") else UNKNOWN
                return
            self._rows.add(out)
            masked = all(name in self._masked for name in read)
            if masked or (node.word in ("mul", "where") and self._hides(node)):
                self._masked.add(out)
        elif node.word == "select" and node.attributes["index"] == 0:
            yield FIRST
        elif node.word in ("sum", "mean", "max") and read[0] in self._masked:
            yield MASKED
        elif node.word in ("sum", "mean", "max", "min"):
            yield UNMASKED
        else:
            yield UNKNOWN

    def _has_tokens(self, name: str) -> bool:
        return name in self._lifted.dims and self._tokens in ax.flat(self._lifted.dims[name])

    def _tokens_last(self, name: str) -> bool:
        return self._tokens in ax.settled(self._lifted.dims[name])[-1]

    def _hides(self, node: Node) -> bool:
        """Whether a node leaves nothing (or nothing that a maximum would take) where the mask hides."""
        for name in node.inputs:
            if name in self._rows or name in self._lifted.graph.weights or name not in self._lifted.content:
                continue
            try:
                array = computed(self._lifted.graph, name, self._lifted.probes[0])
            except FusebertError:
                return False
            mask = self._lifted.probes[0].get(self._mask.tensor)
            if mask is None or array.ndim < 2 or array.shape[:2] not in (mask.shape, (1, *mask.shape[1:])):
                return False
            hidden = np.broadcast_to(array.reshape(*array.shape[:2], -1).any(-1), mask.shape)[mask == 0]
            return not hidden.any()
        return False
