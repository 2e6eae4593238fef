"""Service: one model that is served. A Task goes through admission, the tokeniser thread of its lane and the batches
that worker threads run; its outputs come back on the event loop. Nothing spins: idle threads sleep."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np

from fusebert.engine.fingerprint import fingerprint
from fusebert.engine.model import Model
from fusebert.engine.sentence import Embedder
from fusebert.engine.tokenizer import Text, Tokenizer, Tokens
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.serve.batcher import BULK, INTERACTIVE, LANES, Batch, Batcher, Job, Limits, RefusedError

clock = time.monotonic
_log = logging.getLogger("fusebert.serve")
_BULK_TEXTS, _BULK_TOKENS = 32, 8192  # a request with more is bulk, unless it says what it is
_JSON = 64  # bytes that a number takes on its way out: as an array, as a Python object and as text


class NotReadyError(FusebertError):
    """The model is not loaded yet, or its worker has crashed and is being replaced."""


@dataclass(eq=False)
class Task(Job):
    """A job with what it is about. `want` is what is computed of each input: "pooled" rows, all "rows", the "head"'s
    outputs or "sparse" weights of the vocabulary."""

    inputs: Sequence[Text | Array] = ()
    types: Sequence[Array] = ()
    want: str = "pooled"
    cut: bool = True  # too long texts, or refuse them
    extra: int = 0  # bytes that the answer takes beside the outputs
    ids: list[Array] = field(default_factory=list)
    encodings: list[Tokens] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    future: asyncio.Future[None] | None = None
    error: FusebertError | None = None
    arrived: float = 0.0
    tokenised: float = 0.0
    started: float = 0.0
    ended: float = 0.0


@dataclass
class Request:
    """What a protocol knows of a request beside its contents; the tasks that it led to are added. `watch` is called
    with the future that is waited for, and may cancel it when the client leaves."""

    lane: str | None = None
    deadline: float = float("inf")
    watch: Callable[[asyncio.Future[None]], asyncio.Handle] | None = None
    tasks: list[tuple[Service, Task]] = field(default_factory=list)

    def release(self) -> None:
        """The answer has been sent, or there will be none."""
        for service, task in self.tasks:
            service.release(task)


class Service:
    """A model with its queue, tokenisers and workers: `workers` calls run side by side, each on the model's threads."""

    def __init__(
        self, name: str, model: Model, pooling: str | None = None, limits: Limits | None = None, workers: int = 1
    ) -> None:
        self.name, self.model = name, model
        self.embed = Embedder(model.engine, model.network.sentence, pooling, normalize=False)
        self.pooling = self.embed.pooling
        self.longest = model.tokenizer.max_length if model.tokenizer else model.network.embeddings.longest
        self.vocabulary = len(model.network.embeddings.word)
        self.outputs = len(model.network.head.steps[-1].linear.weight) if model.network.head.steps else 0
        self.fingerprint = fingerprint(model, self.pooling)
        limits = self._without_scratch(limits or Limits(), workers)
        self.crashes = 0
        self.healthy = True
        self._condition = threading.Condition()
        self._closed = False
        self.batcher = Batcher(limits, self._pace(), workers)
        self._texts: dict[str, SimpleQueue[Task | None]] = {lane: SimpleQueue() for lane in LANES}
        names: list[tuple[str, Callable[..., None], tuple[str, ...]]]
        names = [(f"tokeniser-{lane}", self._tokenise, (lane,)) for lane in LANES]
        names += [(f"worker-{i}", self._work, ()) for i in range(workers)]
        self._threads = [
            threading.Thread(target=target, args=args, name=f"{self.name}-{role}", daemon=True)
            for role, target, args in names
        ]
        for thread in self._threads:
            thread.start()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, without which there are only token ids."""
        if self.model.tokenizer is None:
            raise FusebertError("the model has no tokenizer; send token ids, or start the server with --tokenizer")
        return self.model.tokenizer

    def close(self) -> None:
        """Ends the threads, once what was taken in has run."""
        with self._condition:
            self.batcher.closed = self._closed = True
            self._condition.notify_all()
        for texts in self._texts.values():
            texts.put(None)
        for thread in self._threads:
            thread.join()

    async def run(self, task: Task, request: Request) -> Task:
        """Runs a task; raises RefusedError, or what is wrong with it. A cancelled caller's task is dropped."""
        if not self.healthy:
            raise NotReadyError(f"{self.name} is not ready; try again later")
        self._prepare(task, request)
        task.arrived = clock()
        loop = asyncio.get_running_loop()
        task.future = loop.create_future()
        with self._condition:
            self.batcher.admit(task, task.arrived)
        request.tasks.append((self, task))
        if task.ids:
            task.tokenised = task.arrived
            self._queue(task)
        else:
            self._texts[task.lane].put(task)
        watched = request.watch(task.future) if request.watch else None
        try:
            await task.future
        except BaseException:
            with self._condition:
                self.batcher.leave(task)
            raise
        finally:
            if watched:
                watched.cancel()
        return task

    def release(self, task: Task) -> None:
        """The task's answer has been sent."""
        with self._condition:
            self.batcher.leave(task) if task.finished < task.count else self.batcher.release(task)

    def _prepare(self, task: Task, request: Request) -> None:
        """Sizes, lane and deadline of a task; token ids are checked here, for a wrong one would fail a whole batch."""
        task.count = len(task.inputs)
        sizes = []
        for number, value in enumerate(task.inputs):
            if isinstance(value, np.ndarray):
                sizes.append(len(value))
                task.ids.append(self._checked(value, number))
            else:
                sizes.append(len(value) if isinstance(value, str) else len(value[0]) + len(value[1]))
        if task.ids and len(task.ids) != task.count:
            raise FusebertError("texts and token ids cannot be mixed in one request")
        task.estimate = sum(sizes) if task.ids else sum(min(self.longest, size // 4 + 2) for size in sizes)
        most = sum(min(self.longest, size + 3) for size in sizes)
        task.bytes = 8 * sum(sizes) + 64 * most + self._output_bytes(task.want, task.count, most) + task.extra
        task.outputs = [None] * task.count
        large = task.count > _BULK_TEXTS or task.estimate > _BULK_TOKENS
        task.lane = request.lane or (BULK if large else INTERACTIVE)
        task.deadline = request.deadline

    def _checked(self, ids: Array, number: int) -> Array:
        longest = self.model.network.embeddings.longest
        if not 1 <= len(ids) <= longest:
            raise FusebertError(f"input {number} has {len(ids)} token ids; from 1 to {longest} are possible")
        if ids.min() < 0 or ids.max() >= self.vocabulary:
            raise FusebertError(f"input {number} has a token id outside 0 to {self.vocabulary - 1}")
        return ids

    def _output_bytes(self, want: str, count: int, tokens: int) -> int:
        hidden = self.model.network.encoder.hidden_size
        if want == "pooled":
            return count * self.embed.width(hidden) * _JSON
        if want == "rows":
            return tokens * hidden * _JSON
        if want == "sparse":
            return count * self.vocabulary * 16
        return (count if self.model.network.head.pools else tokens) * self.outputs * _JSON

    def _without_scratch(self, limits: Limits, workers: int) -> Limits:
        """The limits with the memory that is left for requests when every worker runs the largest batch."""
        hidden, head = self.model.network.encoder.hidden_size, self.model.network.head
        scratch = workers * max(limits.batch_tokens, self.longest) * hidden * 16
        if head.kind == "masked":
            scratch += workers * self.longest * self.vocabulary * 8
        if scratch > limits.memory // 2:
            raise FusebertError(
                f"memory: {limits.memory} bytes are too few for batches of {limits.batch_tokens} tokens, which take "
                f"{scratch}; allow more memory, or fewer tokens in a batch"
            )
        return Limits(**{**vars(limits), "memory": limits.memory - scratch})

    def _pace(self) -> float:
        """Seconds per token, of a batch that also warms everything up."""
        length = min(self.longest, 64)
        offsets = np.arange(0, 512 + length, length)
        ids = np.full(offsets[-1], min(3, self.vocabulary - 1))
        best = float("inf")
        for _ in range(2):
            start = clock()
            rows = self.model.rows(ids, offsets)
            best = min(best, clock() - start)
        if self.model.network.head.steps:
            self.model.head(rows[:length], offsets[:2])
        return max(best / len(ids), 1e-9)

    def _tokenise(self, lane: str) -> None:
        """A lane's thread: texts to ids. Each lane has its own, so that a long one holds up only its own lane."""
        while (task := self._texts[lane].get()) is not None:
            try:
                if not task.gone:
                    self._encode(task)
            except FusebertError as error:
                self._fail([task], error)
            except Exception:
                _log.exception("the tokeniser of %s failed", self.name)
                self._fail([task], FusebertError("the tokeniser failed"))
            else:
                self._queue(task)

    def _encode(self, task: Task) -> None:
        task.encodings = self.tokenizer([value for value in task.inputs if not isinstance(value, np.ndarray)])
        for number, tokens in enumerate(task.encodings):
            if tokens.cut and not task.cut:
                raise FusebertError(
                    f"input {number} is longer than {self.longest} tokens; shorten it or allow truncation"
                )
            if not tokens.ids:
                raise FusebertError(f"input {number} has no tokens")
        task.ids = [np.array(tokens.ids, np.int64) for tokens in task.encodings]
        task.types = [np.array(tokens.kinds, np.int64) for tokens in task.encodings]
        task.tokenised = clock()

    def _queue(self, task: Task) -> None:
        with self._condition:
            self.batcher.queue(task, [len(ids) for ids in task.ids])
            self._condition.notify()

    def _work(self) -> None:
        """A worker's thread: batches to outputs. One that fails for a reason of its own is replaced: it says so in
        readiness, and serves again as soon as the model answers."""
        while True:
            with self._condition:
                while not (batch := self.batcher.take(clock())).pieces and not batch.late:
                    if self._closed and not self.batcher.sequences:
                        return
                    self._condition.wait(0.1 if self._closed else None)  # for texts that are still being tokenised
            if batch.late:
                self._fail(batch.late, RefusedError("deadline", "the answer could not be ready in time"))
            try:
                if batch.pieces:
                    self._run(batch)
            except Exception:
                self._crashed(batch)

    def _run(self, batch: Batch) -> None:
        try:
            self._compute(batch.pieces)
        except FusebertError:
            self._compute_alone(batch.pieces)
        now = clock()
        with self._condition:
            tasks: list[Any] = list(self.batcher.finish(batch, now))
        for task in tasks:
            task.ended = now
        self._deliver(tasks)

    def _compute(self, pieces: Sequence[tuple[Any, int]]) -> None:
        """Runs all pieces together and puts their outputs into their tasks."""
        ids = [task.ids[number] for task, number in pieces]
        types = [
            task.types[number] if task.types else np.zeros(len(task.ids[number]), np.int64) for task, number in pieces
        ]
        offsets = np.cumsum([0, *map(len, ids)])
        now = clock()
        rows = self.model.rows(np.concatenate(ids), offsets, np.concatenate(types))
        wanted = {task.want for task, _ in pieces}
        together = {"pooled": self.embed(rows, offsets)} if "pooled" in wanted else {}
        if "head" in wanted and self.model.network.head.pools:
            together["head"] = self.model.head(rows, offsets)
        for i, (task, number) in enumerate(pieces):
            task.started = task.started or now
            if task.want in together:
                task.outputs[number] = together[task.want][i]
            else:
                task.outputs[number] = self._output(task.want, rows[offsets[i] : offsets[i + 1]])

    def _output(self, want: str, rows: Array) -> Array:
        """Of one sequence."""
        if want == "rows":
            return rows.copy()
        logits = self.model.head(rows, [0, len(rows)])
        return np.log1p(np.maximum(logits.max(0), 0)) if want == "sparse" else logits

    def _compute_alone(self, pieces: Sequence[tuple[Any, int]]) -> None:
        """One after the other, so that only those fail that are the reason."""
        for piece in pieces:
            try:
                self._compute([piece])
            except FusebertError as error:
                self._fail([piece[0]], error)

    def _crashed(self, batch: Batch) -> None:
        _log.exception("a worker of %s failed and is replaced", self.name)
        self.crashes += 1
        self.healthy = False
        with self._condition:
            if batch in self.batcher.running:
                self.batcher.finish(batch, clock())
        self._fail(list(dict.fromkeys(task for task, _ in batch.pieces)), NotReadyError("the model failed; try again"))
        while not self._closed:
            try:
                self._pace()
            except Exception:
                time.sleep(1)
            else:
                self.healthy = True
                return

    def _fail(self, jobs: Sequence[Any], error: FusebertError) -> None:
        with self._condition:
            for task in jobs:
                self.batcher.leave(task)
                task.error = error
        self._deliver(jobs)

    def _deliver(self, tasks: Sequence[Any]) -> None:
        """Wakes those who wait, once for all of them: each call into the event loop costs a system call."""
        waiting = [task for task in tasks if task.future]
        if waiting:
            try:
                waiting[0].future.get_loop().call_soon_threadsafe(_wake, waiting)
            except RuntimeError:  # the loop is closed: nobody waits
                _log.warning("%d answers came after the server had stopped", len(waiting))


def _wake(tasks: Sequence[Task]) -> None:
    for task in tasks:
        if task.future and not task.future.done():
            if task.error:
                task.future.set_exception(task.error)
            else:
                task.future.set_result(None)
