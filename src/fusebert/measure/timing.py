"""Timing: calls side by side, in turns, so that a noisy machine is noisy for all of them. Calls in, times out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.progress import progress

PERCENTILES = (50, 75, 90, 95, 99)
_PAUSE = 0.06  # seconds before a turn: ONNX Runtime's threads keep a core busy for so long after they were needed


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the best, the mean, percentiles and the standard deviation over all rounds."""

    best: float
    mean: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    deviation: float
    calls: int


def interleave(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int = 5,
    seconds: float = 0.3,
    show: bool = False,
    *,
    times: int | None = None,
    warmup: float | None = None,
) -> dict[str, Timing]:
    """Times every call for `seconds`, or `times` times, in each of `rounds` turns, after warming up for `warmup`
    seconds (a third of a turn). A turn begins with a pause and a call that does not count, so that none suffers from
    the one before."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    with progress("measuring", (rounds + 1) * len(calls), show) as advance:
        for turn in range(rounds + 1):
            for name, call in calls.items():
                time.sleep(_PAUSE)
                call()
                if turn:
                    taken[name] += _timed(call, seconds, times)
                else:
                    list(_timed(call, seconds / 3 if warmup is None else warmup, None))
                advance(1)
    return {name: _timing(milliseconds) for name, milliseconds in taken.items()}


def _timed(call: Callable[[], Any], seconds: float, times: int | None) -> Iterator[float]:
    until = time.perf_counter() + seconds
    done = 0
    while True:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        yield (end - start) * 1e3
        done += 1
        if done >= times if times is not None else end >= until:
            return


def _timing(times: list[float]) -> Timing:
    p50, p75, p90, p95, p99 = (float(p) for p in np.percentile(times, PERCENTILES))
    return Timing(min(times), float(np.mean(times)), p50, p75, p90, p95, p99, float(np.std(times)), len(times))
