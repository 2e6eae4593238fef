"""Histogram: how often which value was seen, and which range of them is worth 8 bits. Pure: rows in, a range out."""

from __future__ import annotations

import numpy as np

from fusebert.errors import FusebertError, unknown
from fusebert.ops.graph import Array

METHODS = ("minmax", "percentile", "entropy")
_BINS = 4096
_LEVELS = 256
_CANDIDATES = 128  # ends of a range that are tried, from far out to near zero
_NEVER = 1e-12  # the share that a level gives to values it does not have


class Histogram:
    """Counts of values from `low` to `high`, a range that holds zero and that all values are known to lie in."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = float(low), float(high)
        self.counts = np.zeros(_BINS, np.int64)

    def add(self, rows: Array) -> None:
        """Counts values of any shape."""
        width = self.high - self.low
        if width <= 0 or not rows.size:
            return
        places = ((rows.ravel() - np.float32(self.low)) * np.float32(_BINS / width)).astype(np.int32)
        self.counts += np.bincount(np.clip(places, 0, _BINS - 1), minlength=_BINS)

    def edge(self, place: int) -> float:
        """Where a bin begins; the last edge is where the last bin ends."""
        return self.high if place == _BINS else self.low + (self.high - self.low) * place / _BINS

    @property
    def zero(self) -> int:
        """The bin that holds zero."""
        width = self.high - self.low
        return min(int(-self.low / width * _BINS), _BINS - 1) if width > 0 else 0


def choose_range(histogram: Histogram, method: str, percentile: float = 99.99) -> tuple[float, float, float]:
    """Low, high and the share of values outside of them.

    minmax: everything that was seen. percentile: at least so much of it, cut evenly at both ends. entropy: what loses
    least information when it becomes 256 levels (Kullback-Leibler). The range always holds zero."""
    check_method(method, percentile)
    total = int(histogram.counts.sum())
    if method == "minmax" or not total:
        return histogram.low, histogram.high, 0.0
    first, last = _most(histogram, percentile / 100) if method == "percentile" else _telling(histogram)
    kept = int(histogram.counts[first:last].sum())
    return histogram.edge(first), histogram.edge(last), (total - kept) / total


def check_method(method: str, percentile: float) -> None:
    """Refuses what `choose_range` does not know."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if not 50 <= percentile <= 100:
        raise FusebertError(f"percentile must be from 50 to 100, not {percentile:g}")


def _most(histogram: Histogram, share: float) -> tuple[int, int]:
    """The bins that are left when half of the rest is cut off at each end."""
    spare = histogram.counts.sum() * (1 - share) / 2
    first = int(np.searchsorted(histogram.counts.cumsum(), spare, "right"))
    last = _BINS - int(np.searchsorted(histogram.counts[::-1].cumsum(), spare, "right"))
    return min(first, histogram.zero), max(last, histogram.zero + 1)


def _telling(histogram: Histogram) -> tuple[int, int]:
    """The bins whose 256 levels tell most about the values: the best high end, then low end, then high end again."""
    counts = histogram.counts.astype(np.float64)
    zero = histogram.zero
    first, last = 0, _BINS
    for _ in range(2):
        ends = {int(e) for e in np.linspace(zero + 1, _BINS, _CANDIDATES)}
        last = min((e for e in ends if e - first >= _LEVELS), key=lambda e: (_loss(counts, first, e), -e), default=last)
        ends = {int(e) for e in np.linspace(0, zero, _CANDIDATES)}
        first = min((e for e in ends if last - e >= _LEVELS), key=lambda e: (_loss(counts, e, last), e), default=first)
    return first, last


def _loss(counts: Array, first: int, last: int) -> float:
    """The divergence of the values, clipped to bins `first` to `last`, from what 256 levels keep of these bins."""
    inside = counts[first:last]
    clipped = inside.copy()
    clipped[0] += counts[:first].sum()
    clipped[-1] += counts[last:].sum()
    levels = np.arange(len(inside)) * _LEVELS // len(inside)
    filled = inside > 0
    means = np.bincount(levels, inside, _LEVELS) / np.maximum(np.bincount(levels, filled, _LEVELS), 1)
    kept = np.where(filled, means[levels], 0)
    if not kept.sum():
        return float("inf")
    seen = clipped > 0
    want, have = clipped[seen] / clipped.sum(), np.maximum(kept[seen] / kept.sum(), _NEVER)
    return float((want * np.log(want / have)).sum())
