"""A progress bar for long work, on a terminal only and on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Moves the bar on; a new label may say how it is going."""

    def __call__(self, steps: int, label: str | None = None, /) -> None: ...


@contextmanager
def progress(label: str, total: int | None, show: bool = True) -> Iterator[Advance]:
    """Yields `advance(steps)`; draws nothing unless `show` is set and standard error is a terminal. Without a total the
    bar only moves to and fro."""
    if not (show and sys.stderr.isatty()):
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps, label=None: bar.update(task, advance=steps, description=label)
