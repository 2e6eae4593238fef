"""Pairs: an output of the baseline and the other model's that belongs to it, compared sample by sample. Answers of both
models to a sample in, tallies out; what is at hidden positions is kept apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fusebert.engine.answers import likeliest
from fusebert.measure.difference import Tally, Tolerance, decisions
from fusebert.measure.kinds import Kind, probabilities
from fusebert.ops.graph import Array


@dataclass(frozen=True)
class Pair:
    """Two outputs that are compared: the baseline's and the other's name, what they are, the axes of sequences and
    tokens (or the one that has both, or none), and the tallies for visible and hidden positions."""

    name: str
    other: str
    kind: Kind
    axes: tuple[int, ...]
    visible: Tally
    hidden: Tally

    def add(self, value: Array, other: Array, mask: Array) -> None:
        """Compares one sample."""
        parts = zip(self._parts(value, mask), self._parts(other.reshape(value.shape), mask), strict=True)
        for tally, (a, b) in zip((self.visible, self.hidden), parts, strict=True):
            tally.add(a, b)

    def texts(self, value: Array, mask: Array) -> list[Array]:
        """The scores `[1, tokens]` of each text's visible tokens, of an output with a score per position."""
        scores = self._parts(value, mask)[0].reshape(1, -1).astype(np.float64)
        return np.split(scores, np.cumsum((mask != 0).sum(1))[:-1], axis=1)

    def _parts(self, value: Array, mask: Array) -> tuple[Array, Array]:
        """Rows `[rows, width]` of visible and of hidden positions; what has no positions is all visible."""
        if not self.axes:
            return rows_of(value), np.empty((0, 1))
        if len(self.axes) == 2:
            value = np.moveaxis(value, self.axes, (0, 1))
        placed = value.reshape(*mask.shape, -1)
        return placed[mask != 0], placed[mask == 0]


class Positions:
    """Decisions of outputs with a score per position: of two together, where an answer begins and ends; of others,
    which position has the highest."""

    def __init__(self, pairs: Sequence[Pair], tolerance: Tolerance) -> None:
        self._pairs = sorted(pairs, key=lambda pair: "end" in pair.name.lower())
        self.answer = Tally("answer", tolerance, Kind("answer")) if len(pairs) == 2 else None

    def add(self, expected: Mapping[str, Array], got: Mapping[str, Array], mask: Array) -> None:
        """Compares one sample."""
        both = [(pair.texts(expected[pair.name], mask), pair.texts(got[pair.other], mask)) for pair in self._pairs]
        if self.answer is not None:
            (starts, other_starts), (ends, other_ends) = both
            for start, end, other_start, other_end in zip(starts, ends, other_starts, other_ends, strict=True):
                self._add_answer((start, end), (other_start, other_end), self.answer)
            return
        for pair, (texts, others) in zip(self._pairs, both, strict=True):
            for a, b in zip(texts, others, strict=True):
                pair.visible.decide(*decisions(a, b, pair.kind))

    def _add_answer(self, baseline: Sequence[Array], other: Sequence[Array], tally: Tally) -> None:
        kinds = [pair.kind.form for pair in self._pairs]
        if not baseline[0].size or not all(np.isfinite(part).all() for part in (*baseline, *other)):
            return  # which the outputs themselves are judged by
        *mine, wanted = likeliest(*(probabilities(part, form)[0] for part, form in zip(baseline, kinds, strict=True)))
        *others, got = likeliest(*(probabilities(part, form)[0] for part, form in zip(other, kinds, strict=True)))
        place, instead = tuple(mine), tuple(others)
        tally.add(wanted[place].reshape(1, 1), got[place].reshape(1, 1))
        change, margin = abs(wanted[place] - got[place]), wanted[place] - wanted[instead]
        tally.decide(np.array([place != instead]), np.array([change]), np.array([margin]))


def rows_of(value: Array) -> Array:
    """An output as rows: its last axis is one, unless it is the only one."""
    return value.reshape(-1, value.shape[-1] if value.ndim > 1 else 1)
