"""Engines side by side: their rounds interleaved, so that a noisy machine is noisy for all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.progress import progress


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call: the best, and percentiles over all rounds."""

    best: float
    p50: float
    p90: float
    calls: int


def interleave(
    calls: Mapping[str, Callable[[], Any]], rounds: int = 5, seconds: float = 0.3, show: bool = False
) -> dict[str, Timing]:
    """Times every call for `seconds` in each of `rounds` turns, after one turn of warming up."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    with progress("measuring", (rounds + 1) * len(calls), show) as advance:
        for turn in range(rounds + 1):
            for name, call in calls.items():
                until = time.perf_counter() + (seconds if turn else seconds / 3)
                while True:
                    start = time.perf_counter()
                    call()
                    end = time.perf_counter()
                    if turn:
                        taken[name].append((end - start) * 1e3)
                    if end >= until:
                        break
                advance(1)
    return {name: _timing(times) for name, times in taken.items()}


def _timing(times: list[float]) -> Timing:
    p50, p90 = (float(p) for p in np.percentile(times, (50, 90)))
    return Timing(min(times), p50, p90, len(times))
