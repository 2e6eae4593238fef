"""A progress bar for long work, on a terminal only and on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(label: str, total: int | None, show: bool = True) -> Iterator[Callable[[int], None]]:
    """Yields `advance(steps)`; draws nothing unless `show` is set and standard error is a terminal. Without a total the
    bar only moves to and fro."""
    if not (show and sys.stderr.isatty()):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)
