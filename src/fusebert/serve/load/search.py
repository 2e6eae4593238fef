"""The highest rate at which 99 % of the requests are answered within a bound: from a first guess up or down until one
holds and one does not, then halfway between, then once more for longer."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from fusebert.serve.load.outcome import Outcome

_STEP = 1.03  # how near to each other the highest rate that holds and the lowest that does not must come
_LEAST = 0.5  # requests a second

Tried = list[tuple[float, Outcome]]


async def highest_rate(
    probe: Callable[[float], Awaitable[Outcome]], confirm: Callable[[float], Awaitable[Outcome]], start: float
) -> tuple[float, Tried]:
    """The rate, 0 if none holds, and everything that was tried; the last one is the confirmation."""
    tried: Tried = []

    async def holds(rate: float, offer: Callable[[float], Awaitable[Outcome]]) -> bool:
        tried.append((rate, await offer(rate)))
        return tried[-1][1].kept

    low, high, rate = 0.0, math.inf, start
    while high == math.inf or (low == 0.0 and rate > _LEAST):
        if await holds(rate, probe):
            low, rate = rate, rate * 1.25
        else:
            high, rate = rate, rate / 1.3
    while low and high / low > _STEP:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if await holds(middle, probe) else (low, middle)
    while low > _LEAST:
        if await holds(low, confirm):
            return low, tried
        low /= _STEP
    return 0.0, tried
