"""Service: one model that is served. A Task goes through admission, the tokeniser (a thread of its lane where texts are
long) and the batches that workers run; all else is done on the event loop. Nothing spins: who has no work sleeps."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusebert.engine.fingerprint import fingerprint
from fusebert.engine.model import Model
from fusebert.engine.sentence import Embedder
from fusebert.engine.tokenizer import Text, Tokenizer, Tokens
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.serve.batcher import BULK, INTERACTIVE, Batch, Batcher, Job, Limits, RefusedError
from fusebert.serve.crew import Crew
from fusebert.serve.tokenisers import Tokenisers
from fusebert.serve.trace import Trace
from fusebert.serve.worker import Home, Output

clock = time.monotonic
_BULK_TEXTS, _BULK_TOKENS = 32, 8192  # a request with more is bulk, unless it says what it is
_SHORT = 1000  # characters that are tokenised on the loop: to hand them to a thread and back costs more
_LOOK = 0.005  # seconds between two looks at whether all is answered
_JSON = 64  # bytes that a number takes on its way out: as an array, as a Python object and as text


class NotReadyError(FusebertError):
    """The model is not loaded yet, or it does not run any more."""


class LostError(FusebertError):
    """A request that ended the worker that ran it, and the next ones too."""


@dataclass(eq=False)
class Task(Job):
    """A job with what it is about. `want` is what is computed of each input: "pooled" rows, all "rows", the "head"'s
    outputs or "sparse" weights of the vocabulary."""

    inputs: Sequence[Text | Array] = ()
    types: Sequence[Array] = ()
    want: str = "pooled"
    cut: bool = True  # too long texts, or refuse them
    extra: int = 0  # bytes that the answer takes beside the outputs
    characters: int = 0  # of all texts
    ids: list[Array] = field(default_factory=list)
    encodings: list[Tokens] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    future: asyncio.Future[None] | None = None
    arrived: float = 0.0
    tokenised: float = 0.0
    started: float = 0.0
    ended: float = 0.0

    @property
    def stages(self) -> tuple[float, float, float]:
        """Seconds of tokenising, waiting and computing."""
        return self.tokenised - self.arrived, self.started - self.tokenised, self.ended - self.started


@dataclass
class Request:
    """What a protocol knows of a request beside its contents; the tasks that it led to are added. `watch` is called
    with the future that is waited for, and may cancel it when the client leaves."""

    lane: str | None = None
    deadline: float = float("inf")
    watch: Callable[[asyncio.Future[None]], asyncio.Handle] | None = None
    trace: Trace | None = None
    tasks: list[tuple[Service, Task]] = field(default_factory=list)

    def release(self) -> None:
        """The answer has been sent, or there will be none."""
        for service, task in self.tasks:
            service.release(task)


class Service:
    """A model with its queue, tokenisers and workers: `replicas` batches run side by side, on `threads` threads."""

    def __init__(
        self,
        name: str,
        model: Model,
        pooling: str | None = None,
        limits: Limits | None = None,
        replicas: int = 1,
        threads: int = 1,
        homes: Sequence[Home] = (),
    ) -> None:
        self.name, self.model = name, model
        self.embed = Embedder(model.engine, model.network.sentence, pooling, normalize=False)
        self.pooling = self.embed.pooling
        self.longest = model.tokenizer.max_length if model.tokenizer else model.network.embeddings.longest
        self.vocabulary = len(model.network.embeddings.word)
        self.outputs = len(model.network.head.steps[-1].linear.weight) if model.network.head.steps else 0
        self.fingerprint = ""  # once it is started
        self._own_pooling = pooling
        self.batcher = Batcher(self._without_scratch(limits or Limits(), replicas), 1e-3, replicas)
        self.crew = Crew(self, self.batcher, homes or [Home(model)], pooling, replicas, threads)
        self._tokenisers: Tokenisers | None = None

    @property
    def healthy(self) -> bool:
        """Whether all workers are there."""
        return self.crew.healthy

    @property
    def crashes(self) -> int:
        """Workers that were lost."""
        return self.crew.crashes

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer, without which there are only token ids."""
        if self.model.tokenizer is None:
            raise FusebertError("the model has no tokenizer; send token ids, or start the server with --tokenizer")
        return self.model.tokenizer

    async def start(self) -> None:
        """Starts workers and tokenisers, on the loop that requests will come on."""
        reading = asyncio.create_task(asyncio.to_thread(fingerprint, self.model, self._own_pooling))
        await self.crew.start()
        self.fingerprint = await reading  # of all weights, beside the first batches
        if self.crew.hopeless:
            await self.crew.close()
            raise FusebertError(f"{self.name}: the model's process ends on its first batch; its log says why")
        self._tokenisers = Tokenisers(self._encode, self._tokenised)

    async def close(self) -> None:
        """Ends workers and tokenisers, once what was taken in has run."""
        self.batcher.closed = True
        while self.batcher.sequences or self.batcher.running:
            await asyncio.sleep(_LOOK)
        if self._tokenisers:
            self._tokenisers.close()
        await self.crew.close()

    async def run(self, task: Task, request: Request) -> Task:
        """Runs a task; raises RefusedError, or what is wrong with it. A cancelled caller's task is dropped."""
        if self._tokenisers is None or self.crew.hopeless:
            raise NotReadyError(f"{self.name} is not ready; try again later")
        self._prepare(task, request)
        task.arrived = clock()
        self.batcher.admit(task, task.arrived)
        task.future = asyncio.get_running_loop().create_future()
        request.tasks.append((self, task))
        if task.ids:
            self._queue(task)
            self.crew.dispatch()
        elif task.characters <= _SHORT:
            self._tokenised([(task, self._tokenisers.tokenise(task))])
        else:
            self._tokenisers.put(task)
        watched = request.watch(task.future) if request.watch else None
        try:
            await task.future
        except BaseException:
            self.batcher.leave(task)
            raise
        finally:
            if watched:
                watched.cancel()
        return task

    def release(self, task: Task) -> None:
        """The task's answer has been sent."""
        self.batcher.leave(task) if task.finished < task.count else self.batcher.release(task)

    def finished(self, batch: Batch, outputs: Sequence[Output], seconds: float) -> None:
        """Outputs of a batch, for those who wait."""
        now = clock()
        pieces: list[tuple[Any, int]] = batch.pieces
        for (task, number), output in zip(pieces, outputs, strict=True):
            task.started = task.started or now - seconds
            if isinstance(output, FusebertError):
                self._fail([task], output)
            else:
                task.outputs[number] = output
        complete: list[Any] = list(self.batcher.finish(batch, seconds))
        for task in complete:
            task.ended = now
            if not task.future.done():
                task.future.set_result(None)

    def lost(self, batch: Batch) -> None:
        """A batch's worker is gone: what was in it runs again, or is given up."""
        self._fail(self.batcher.lose(batch), LostError("the model's process ended again and again on this request"))

    def hopeless(self) -> None:
        """There is no worker, and new ones do not live."""
        self._fail(self.batcher.abandon(), NotReadyError(f"{self.name} does not run any more; try again later"))

    def late(self, jobs: Sequence[Job]) -> None:
        """Jobs were dropped, for their time was over."""
        self._fail(jobs, RefusedError("deadline", "the answer could not be ready in time"))

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
        task.characters = sum(sizes)
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

    def _tokenised(self, told: list[tuple[Task, FusebertError | None]]) -> None:
        for task, error in told:
            if error:
                self._fail([task], error)
            else:
                self._queue(task)
        if self.crew.hopeless:
            self.hopeless()
        self.crew.dispatch()

    def _encode(self, task: Task) -> None:
        """In a tokeniser's thread."""
        placed = task.want == "head" and self.model.network.head.kind in ("token", "question")
        tokenize = self.tokenizer if placed else self.tokenizer.bare
        task.encodings = tokenize([value for value in task.inputs if not isinstance(value, np.ndarray)])
        for number, tokens in enumerate(task.encodings):
            if tokens.cut and not task.cut:
                raise FusebertError(
                    f"input {number} is longer than {self.longest} tokens; shorten it or allow truncation"
                )
            if not tokens.ids:
                raise FusebertError(f"input {number} has no tokens")
        task.ids = [np.array(tokens.ids, np.int64) for tokens in task.encodings]
        task.types = [np.array(tokens.kinds, np.int64) for tokens in task.encodings]

    def _queue(self, task: Task) -> None:
        task.tokenised = clock()
        self.batcher.queue(task, [len(ids) for ids in task.ids])

    def _fail(self, jobs: Sequence[Any], error: FusebertError) -> None:
        for task in jobs:
            self.batcher.leave(task)
            if task.future and not task.future.done():
                task.future.set_exception(error)
