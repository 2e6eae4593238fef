"""Crew: the workers of a service. It hands batches to those that are free, and replaces those that are lost. All of it
happens on the event loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import numpy as np

from fusebert.engine.model import Model
from fusebert.engine.native import cores
from fusebert.engine.topology import nodes, pinned
from fusebert.serve.batcher import Batch, Batcher, Job
from fusebert.serve.worker import Home, Output, Question, Worker

clock = time.monotonic
_log = logging.getLogger("fusebert.serve")
_PROBE = 512  # tokens of the batch that a new worker must answer first
_HOPELESS = 3  # workers that were lost before their first answer, one after the other
_LONGEST_PAUSE = 30.0  # seconds until the next is tried
_STUCK = 60.0  # seconds: a batch that takes longer is given up with its worker


class Owner(Protocol):
    """What a crew tells."""

    def finished(self, batch: Batch, outputs: Sequence[Output], seconds: float) -> None:
        """A batch has run."""

    def lost(self, batch: Batch) -> None:
        """A batch was lost with its worker."""

    def hopeless(self) -> None:
        """There is no worker, and new ones do not live."""

    def late(self, jobs: Sequence[Job]) -> None:
        """Jobs were dropped because of their deadline."""


def settle(load: Callable[[], Model], width: int | None = None) -> list[Home]:
    """A home on every NUMA node, where weights are packed once; a machine with one node pins nothing. With a `width`,
    the cores are a share of a machine that others use too, and nothing is pinned either."""
    found = nodes()
    if width or len(found) == 1:
        return [Home(load(), (), width or cores())]
    homes = []
    for node in found:
        with pinned(node.cores):
            homes.append(Home(load(), node.cores, min(cores(), len(node.cores))))
    return homes


class Crew:
    """`replicas` workers that run a batcher's batches side by side, each on `threads` threads; a batch that has the
    machine to itself gets all cores of its home."""

    def __init__(
        self, owner: Owner, batcher: Batcher, homes: Sequence[Home], pooling: str | None, replicas: int, threads: int
    ) -> None:
        self._owner, self._batcher, self._homes, self._pooling = owner, batcher, homes, pooling
        self.replicas, self.threads = replicas, threads
        self.crashes = 0
        self._workers: list[Worker] = []
        self._ready: set[Worker] = set()
        self._failures = 0  # workers in a row that never answered
        self._closed = self._paced = False
        self._changed = asyncio.Event()
        self._beside: set[asyncio.Task[None]] = set()

    @property
    def healthy(self) -> bool:
        """Whether all workers are there."""
        return len(self._ready) == self.replicas

    @property
    def hopeless(self) -> bool:
        """Whether there is none, and new ones do not live."""
        return not self._ready and self._failures >= _HOPELESS

    @property
    def processes(self) -> list[int]:
        """The workers' process ids."""
        return [worker.pid for worker in self._workers]

    async def start(self) -> None:
        """Forks the workers and waits until each has answered a probe."""
        gc.collect()
        gc.freeze()  # what is there now stays in pages that the workers share
        self._keep(self._watch())
        for _ in range(self.replicas):
            await self._add()
        while not self.healthy and not self.hopeless:
            self._changed.clear()
            await self._changed.wait()

    async def close(self) -> None:
        """Ends the workers."""
        self._closed = True
        for task in self._beside:
            task.cancel()
        for worker in self._workers:
            worker.close()
        for worker in self._workers:
            await asyncio.to_thread(worker.reap)

    def dispatch(self) -> None:
        """Hands out batches as long as there are any, and a worker for them."""
        while worker := self._free():
            batch = self._batcher.take(clock())
            if batch.late:
                self._owner.late(batch.late)
            elif not batch.pieces:
                return
            if batch.pieces:
                self._send(worker, batch)

    async def _watch(self) -> None:
        """Ends workers that are stuck."""
        while True:
            await asyncio.sleep(_STUCK / 10)
            for worker in self._workers:
                if worker.batches and clock() - worker.batches[0].started > _STUCK:
                    _log.error("a worker has not answered for %g seconds and is ended", _STUCK)
                    worker.kill()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs something beside, until the crew is closed."""
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    def _free(self) -> Worker | None:
        """A worker without a batch; or, with a full batch waiting, one that has none but the one it runs: it finds the
        next there when it is done, and does not wait for the server to wake up."""
        idle = next((worker for worker in self._ready if not worker.batches), None)
        if idle or self._batcher.backlog < self._batcher.budget:
            return idle
        fillable = [worker for worker in self._ready if len(worker.batches) == 1]
        return min(fillable, key=lambda worker: worker.batches[0].started, default=None)

    def _send(self, worker: Worker, batch: Batch) -> None:
        near = [other for other in self._ready if other.home is worker.home and other is not worker]
        others = sum(1 for other in near if other.batches)
        threads = self.threads
        if not worker.batches and not self._batcher.backlog:
            threads = max(threads, worker.home.width // (others + 1))
        batch.wide = threads > self.threads
        if worker.batches:
            batch.started = math.inf  # not yet
        pieces: list[tuple[Any, int]] = batch.pieces
        ids = [task.ids[number] for task, number in pieces]
        types = [task.types[number] if task.types else np.zeros_like(task.ids[number]) for task, number in pieces]
        worker.send(batch, Question.make(threads, [task.want for task, _ in pieces], ids, types))

    async def _add(self) -> None:
        home = min(self._homes, key=lambda home: sum(w.home is home for w in self._workers) / home.width)
        worker = await Worker.start(home, self._pooling, self._answered, self._gone)
        self._workers.append(worker)
        network = home.model.network
        embeddings = network.embeddings
        length = min(embeddings.longest, 64)
        ids = np.full(length, min(3, len(embeddings.word) - 1))
        count = max(1, _PROBE // length)
        wants = ["head" if network.head.steps else "pooled", *["pooled"] * (count - 1)]
        question = Question.make(self.threads, wants, [ids] * count, [np.zeros_like(ids)] * count)
        for _ in range(2):  # the first warms up
            worker.send(Batch(clock(), tokens=count * length), question)

    def _answered(self, worker: Worker, seconds: float, outputs: list[Output]) -> None:
        batch = worker.batches.popleft()
        if worker.batches:
            worker.batches[0].started = clock()
        if worker in self._ready:
            self._owner.finished(batch, outputs, seconds)
        elif worker.answers == 2:
            self._failures = 0
            self._ready.add(worker)
            self._changed.set()
            if not self._paced:
                self._paced, self._batcher.seconds_per_token = True, max(seconds / batch.tokens, 1e-9)
        self.dispatch()

    def _gone(self, worker: Worker) -> None:
        self._workers.remove(worker)
        lived = worker in self._ready
        self._ready.discard(worker)
        self._changed.set()
        if self._closed:
            return
        self._failures = 0 if lived else self._failures + 1
        self.crashes += 1
        _log.error("a worker was lost (%s) and is replaced", worker.reap())
        for batch in worker.batches if lived else ():
            self._owner.lost(batch)
        if self.hopeless:
            self._owner.hopeless()
        pause = 0.0 if lived else min(_LONGEST_PAUSE, 0.1 * 2**self._failures)
        self._keep(self._replace(pause))

    async def _replace(self, pause: float) -> None:
        await asyncio.sleep(pause)
        await self._add()
