"""Made-up inputs: random ids with padding to the right, to the left, in holes, or none; or with lengths. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fusebert.ops.graph import Array

PADDINGS = ("right", "left", "holes", "none")
_VARIOUS = ((1, 1), (4, 16), (3, 64), (2, 128), (1, 384))
_HIDDEN_SHARE = 0.3  # of the positions, for holes


@dataclass(frozen=True)
class Sample:
    """One padded batch `[sequences, length]`: ids, a 0/1 mask, token types; and how it is padded."""

    ids: Array
    mask: Array
    types: Array
    padding: str = "none"


@dataclass(frozen=True)
class Source:
    """What samples are made of: ids below `vocabulary`, types below `kinds`. `padding_id`, if any, stands at the hidden
    positions and nowhere else."""

    vocabulary: int
    kinds: int = 1
    padding_id: int | None = None

    def fill(self, random: np.random.Generator, mask: Array, padding: str = "none") -> Sample:
        """Random ids and types under a mask; a sequence is of the first types, then of later ones."""
        ids = random.integers(0, self.vocabulary, mask.shape)
        if self.padding_id is not None and self.vocabulary > 1:
            ids[ids == self.padding_id] = (self.padding_id + 1) % self.vocabulary
            ids[mask == 0] = self.padding_id
        return Sample(ids, mask, np.sort(random.integers(0, self.kinds, mask.shape), axis=1), padding)

    def alike(self, shape: tuple[int, int], paddings: tuple[str, ...], count: int, seed: int) -> Iterator[Sample]:
        """`count` samples of one shape; the kinds of padding take turns."""
        random = np.random.default_rng(seed)
        for i in range(count):
            padding = paddings[i % len(paddings)]
            yield self.fill(random, pad(random, shape, padding), padding)

    def various(self, longest: int, paddings: tuple[str, ...], seed: int) -> Iterator[Sample]:
        """A few samples of different shapes, whose rows are padded in different ways."""
        random = np.random.default_rng(seed)
        order = sorted(paddings, key=("none", "right", "left", "holes").index)
        for batch, length in _VARIOUS:
            shape = 1, min(length, longest)
            rows = [pad(random, shape, order[row % len(order)]) for row in range(batch)]
            yield self.fill(random, np.concatenate(rows), "mixed" if batch > 1 else "none")


def pad(random: np.random.Generator, shape: tuple[int, int], padding: str) -> Array:
    """A 0/1 mask. Every row of more than one position shows some and, unless padding is "none", hides some."""
    batch, length = shape
    mask = np.ones(shape, np.int64)
    if length < 2 or padding == "none":
        return mask
    cuts = random.integers(1, length, (batch, 1))
    places = np.arange(length)
    if padding == "right":
        mask[places >= length - cuts] = 0
    elif padding == "left":
        mask[places < cuts] = 0
    else:
        mask[random.random(shape) < _HIDDEN_SHARE] = 0
        shown, hidden = random.permuted(np.tile(places, (batch, 1)), axis=1)[:, :2].T
        mask[np.arange(batch), shown], mask[np.arange(batch), hidden] = 1, 0
    return mask


def pad_to_lengths(random: np.random.Generator, shape: tuple[int, int], average: int, vary: bool) -> Array:
    """A 0/1 mask padded to the right: every row shows `average` positions, or a random number that is so on average."""
    batch, length = shape
    low, high = max(1, 2 * average - length), min(2 * average - 1, length)
    lengths = random.integers(low, high + 1, batch) if vary else np.full(batch, average)
    return (np.arange(length) < lengths[:, None]).astype(np.int64)
