"""Timing: calls side by side, in turns, so that a noisy machine is noisy for all of them. Calls in, times out."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.progress import progress

PERCENTILES = (50, 75, 90, 95, 99)
_PAUSE = 0.06  # seconds before a turn: ONNX Runtime's threads keep a core busy for so long after they were needed
_LEAST = 3  # rounds, however little time there is


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
    within: float = math.inf,
) -> dict[str, Timing]:
    """Times every call for `seconds`, or `times` times, in each of `rounds` turns, after warming up for `warmup`
    seconds (a third of a turn). No round begins when `within` seconds are over, but three there are.

    A turn begins with a pause and a call that does not count, so that none suffers from the one before; of a call that
    fills its turn alone, where that hardly matters, every one counts."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    with progress("measuring", (rounds + 1) * len(calls), show) as advance:
        for turn in range(rounds + 1):
            if turn > _LEAST and time.perf_counter() - begin > within:
                break
            for name, call in calls.items():
                time.sleep(_PAUSE)
                if turn:
                    spent = _timed(call, seconds, times)
                    taken[name] += spent[1:] or spent
                else:
                    _timed(call, seconds / 3 if warmup is None else warmup, None)
                advance(1)
    return {name: _timing(milliseconds) for name, milliseconds in taken.items()}


def _timed(call: Callable[[], Any], seconds: float, times: int | None) -> list[float]:
    """Milliseconds of calls for `seconds`, or of one more than `times`."""
    spent: list[float] = []
    until = time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        end = time.perf_counter()
        spent.append((end - start) * 1e3)
        if len(spent) > times if times is not None else end >= until:
            return spent


def _timing(times: list[float]) -> Timing:
    p50, p75, p90, p95, p99 = (float(p) for p in np.percentile(times, PERCENTILES))
    return Timing(min(times), float(np.mean(times)), p50, p75, p90, p95, p99, float(np.std(times)), len(times))
