"""What a piece of work costs: memory, and steps of Python instead of seconds, which other programs would disturb."""

from __future__ import annotations

import faulthandler
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

MEMORY = 200 << 20


@contextmanager
def little_memory(most: int = MEMORY) -> Iterator[None]:
    """Fails if the process ever held so much more than before. Resets the kernel's record of the peak: Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _peak()
    yield
    assert _peak() - before < most


def _peak() -> int:
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


@contextmanager
def no_hang(seconds: int) -> Iterator[None]:
    """Ends the process with a traceback if it stays inside that long: for what would go on for ever."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def steps(work: Callable[[], Any]) -> int:
    """How many lines of Python it runs; a loop counts each round."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def assert_in_proportion(work: Callable[[int], Any], size: int) -> None:
    """Four times the size takes about four times the steps, not sixteen."""
    work(size)  # what is only done once
    few, many = steps(lambda: work(size)), steps(lambda: work(4 * size))
    assert many < 5 * few, (few, many)
