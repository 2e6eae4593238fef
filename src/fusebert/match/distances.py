"""Distances: what is added to scores by the distance of key and query: a table by head, a window beyond which nothing
is seen, or both. Told by the numbers for every trial, so that it does not matter how they are computed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fusebert.ops.graph import Array

_FAR = -9000.0  # no bias of distances goes below it, and no mask of padding or window stays above it
_TOLERANCE = 1e-5
_FLAT = 4  # times as far as a table changes it must have been seen; buckets of logarithms end within half of it
_TELLING = 60  # distances that tell a line
_LINEAR_REACH = 8192 - 1  # as far as biases that grow with the distance are continued


@dataclass(frozen=True)
class ByDistance:
    """`table` is `[heads or 1, 2 * reach + 1]` by key minus query position, `window` the farthest that is seen, and
    `longest` so many tokens as the two are known for; each None where there is none."""

    table: Array | None = None
    window: int | None = None
    longest: int | None = None


ANYWHERE = ByDistance()  # nothing depends on the distance


def by_distance(whole: Array, tried: Iterable[tuple[Array, Array | None]]) -> ByDistance | None:
    """What `whole`, `[batch, heads, queries, keys]` of a long sequence that is shown in full, holds for each distance;
    None if it holds something else, or if one of the others does, of which some positions `[batch, keys]` are seen."""
    length = whole.shape[-1]
    seen = _profile(whole, np.ones((len(whole), length), bool))
    if seen is None or length < 3:
        return None
    far = np.abs(np.arange(1 - length, length))
    window = int(far[seen.hides].min()) - 1 if seen.hides.any() else None
    if window is not None and (window < 1 or not np.array_equal(seen.hides, far > window)):
        return None
    reach = length - 1 if window is None else window
    table = seen.low[:, length - 1 - reach : length + reach]
    tolerance = _TOLERANCE * max(1.0, float(np.abs(table).max()))
    if not seen.agrees(table, reach, window, tolerance):
        return None
    for array, shown in tried:
        profile = None if shown is None or array.shape[-1] > length else _profile(array, shown)
        if profile is None or not profile.agrees(table, reach, window, tolerance):
            return None
    return _continued(table, window, length, tolerance)


def _continued(table: Array, window: int | None, length: int, tolerance: float) -> ByDistance:
    """The table for any length, where it ends in the same numbers for long or grows with the distance."""
    if np.ptp(table, axis=1).max() <= tolerance:  # the same for all keys, which changes nothing
        return ANYWHERE if window is None else ByDistance(None, window)
    middle = table.shape[1] // 2
    differs = np.abs(table - table[:, [0] * middle + [middle] + [-1] * middle]).max(0) > tolerance
    reach = int(np.abs(np.flatnonzero(differs) - middle).max(initial=1)) + 1
    if window is not None or reach <= middle // _FLAT:
        reach = min(reach, middle)
        return ByDistance(np.ascontiguousarray(table[:, middle - reach : middle + reach + 1], np.float32), window)
    far = np.abs(np.arange(-_LINEAR_REACH, _LINEAR_REACH + 1))
    nearest = table[:, middle : middle + 1]
    slopes = (table[:, -1:] - nearest) / middle
    apart = np.abs(table - nearest - slopes * np.abs(np.arange(-middle, middle + 1)))
    if apart.max() <= tolerance and middle > _TELLING:
        return ByDistance((slopes * far).astype(np.float32), None, _LINEAR_REACH + 1)
    return ByDistance(np.ascontiguousarray(table, np.float32), None, length)


@dataclass(frozen=True)
class _Profile:
    """The least and the most that is added at each distance to what is seen, `[heads, distances]`, and the distances at
    which something is hidden that the mask shows."""

    low: Array
    high: Array
    hides: Array

    def agrees(self, table: Array, reach: int, window: int | None, tolerance: float) -> bool:
        """Whether all numbers are those of a table, and what is hidden is beyond the window."""
        length = (self.low.shape[1] + 1) // 2
        far = np.arange(1 - length, length)
        wanted = table[:, np.clip(far, -reach, reach) + reach]
        wanted = np.broadcast_to(wanted, np.broadcast_shapes(wanted.shape, self.low.shape))
        shows = self.low <= self.high
        beyond = np.zeros(len(far), bool) if window is None else np.abs(far) > window
        if (self.hides & ~beyond).any() or (shows & beyond).any():
            return False
        apart = np.maximum(np.abs(self.low - wanted), np.abs(self.high - wanted))
        return not (np.where(shows, apart, 0) > tolerance).any()


def _profile(array: Array, seen: Array) -> _Profile | None:
    """None where what a mask hides is not hidden, or there are other queries than keys."""
    batch, length = seen.shape
    if array.ndim != 4 or array.shape[0] not in (1, batch) or array.shape[2] not in (1, length):
        return None
    if array.shape[3] != length:
        return None
    array = np.broadcast_to(array, (batch, array.shape[1], length, length))
    keys = seen[:, None, None, :]
    hidden = array <= _FAR
    if not (hidden | keys).all() or np.isnan(array).any():
        return None
    shown = keys & ~hidden
    low, high = (np.where(shown, array, edge) for edge in (np.inf, -np.inf))
    low, high, hides = low.min(0), high.max(0), (keys & hidden).any((0, 1))
    far = range(1 - length, length)
    return _Profile(
        np.stack([np.diagonal(low, d, 1, 2).min(-1) for d in far], -1),
        np.stack([np.diagonal(high, d, 1, 2).max(-1) for d in far], -1),
        np.array([np.diagonal(hides, d).any() for d in far]),
    )
