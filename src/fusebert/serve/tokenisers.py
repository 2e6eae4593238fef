"""Tokenisers: a thread for each lane that turns texts into tokens, several requests at a time when many wait, and hands
them back to the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from fusebert.errors import FusebertError
from fusebert.serve.batcher import LANES

_log = logging.getLogger("fusebert.serve")
_MOST = 32  # requests that are handed back together

Encode = Callable[[Any], None]


class Tokenisers:
    """Each lane has a thread of its own, so that a long text holds up its own lane only. `encode` tokenises a task;
    `done` is called on the loop with tasks and what was wrong with each, if anything."""

    def __init__(self, encode: Encode, done: Callable[[list[tuple[Any, FusebertError | None]]], None]) -> None:
        self._encode, self._done = encode, done
        self._loop = asyncio.get_running_loop()
        self._queues: dict[str, SimpleQueue[Any]] = {lane: SimpleQueue() for lane in LANES}
        self._threads = [
            threading.Thread(target=self._work, args=(queue,), name=f"tokeniser-{lane}", daemon=True)
            for lane, queue in self._queues.items()
        ]
        for thread in self._threads:
            thread.start()

    def put(self, task: Any) -> None:
        """Takes a task in."""
        self._queues[task.lane].put(task)

    def close(self) -> None:
        """Ends the threads."""
        for queue in self._queues.values():
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self, queue: SimpleQueue[Any]) -> None:
        while tasks := _some(queue):
            told = [(task, self.tokenise(task)) for task in tasks if task]
            try:
                self._loop.call_soon_threadsafe(self._done, told)
            except RuntimeError:  # the loop is closed: nobody waits
                return
            if None in tasks:
                return

    def tokenise(self, task: Any) -> FusebertError | None:
        """Tokenises a task, here and now; what was wrong with it, if anything."""
        try:
            if not task.gone:
                self._encode(task)
        except FusebertError as error:
            return error
        except Exception:
            _log.exception("a tokeniser failed")
            return FusebertError("the tokeniser failed")
        return None


def _some(queue: SimpleQueue[Any]) -> Sequence[Any]:
    """What waits, at least one."""
    found = [queue.get()]
    try:
        while len(found) < _MOST and found[-1] is not None:
            found.append(queue.get_nowait())
    except Empty:
        pass
    return found
