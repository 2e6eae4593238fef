"""How much a process grows by doing something again and again."""

import gc
import resource
from collections.abc import Callable
from pathlib import Path


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def growth(work: Callable[[], object], times: int, rounds: int = 3) -> int:
    """The least growth of any round, in bytes: a leak shows in every round, a heap that settles only in some."""

    def one_round() -> int:
        before = resident()
        for _ in range(times):
            work()
        gc.collect()
        return resident() - before

    return min(one_round() for _ in range(rounds))
