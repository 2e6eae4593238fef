"""Batcher: which sequences run next. Jobs in, batches out, by rules alone: it has no clock, no thread and no timer, and
the caller says what time it is. It also counts what it decides, for the metrics."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from fusebert.errors import FusebertError

INTERACTIVE, BULK = LANES = ("interactive", "bulk")
BULK_SHARE = 1 / 8  # of the tokens that run while bulk jobs wait: they go first until they had that much
_REPRESENTATIVE = 256  # tokens: the pace of a smaller batch tells more about its overhead than about the machine
_LOSSES = 2  # workers that may be lost with a sequence before it is given up
_WEIGHT = 0.2  # of the newest batch in the estimate of the pace


class RefusedError(FusebertError):
    """A job that is not taken in; `reason` is a word for the metrics, `retry_after` the seconds to wait, if any."""

    def __init__(self, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.reason, self.retry_after = reason, retry_after


@dataclass(frozen=True)
class Limits:
    """`batch_tokens` and `batch_seconds` close a batch, whichever comes first; `sequences` may wait, for at most `wait`
    seconds; `memory` is the bytes of all jobs that are not yet answered."""

    batch_tokens: int = 8192
    batch_seconds: float = 0.02
    sequences: int = 8192
    wait: float = 5.0
    memory: int = 1 << 30


@dataclass(eq=False)
class Job:
    """A request: `count` sequences of about `estimate` tokens in all, which `tokens` tells exactly once they are known.
    `bytes` is the memory it holds until it is released; `deadline` is when its answer is of no use any more."""

    count: int
    estimate: int
    bytes: int = 0
    lane: str = INTERACTIVE
    deadline: float = math.inf
    tokens: Sequence[int] = ()
    begun: int = 0  # sequences that were taken once; those before this number
    taken: int = 0  # sequences that were taken and not lost
    finished: int = 0
    waiting: int = 0  # tokens that are counted as waiting
    gone: bool = False
    released: bool = False


@dataclass(eq=False)
class Batch:
    """What runs together: `pieces` are jobs with the number of one of their sequences. `late` are jobs that were
    dropped, because their deadline cannot be kept. `started` is infinite while the batch waits for its worker; `wide`
    is one that had more than its share of the machine, `losses` are the workers that were lost with what is in it."""

    started: float
    pieces: list[tuple[Job, int]] = field(default_factory=list)
    late: list[Job] = field(default_factory=list)
    tokens: int = 0
    wide: bool = False
    losses: int = 0


class Batcher:
    """The queue of one model. A job is admitted, then queued, when its tokens are known; its sequences are taken, each
    in one batch, and finished; and it is released when its answer has been sent."""

    def __init__(self, limits: Limits, seconds_per_token: float, workers: int = 1) -> None:
        self.limits, self.seconds_per_token, self.workers = limits, seconds_per_token, workers
        self.bytes = 0
        self.sequences = 0  # admitted, but not yet taken
        self.closed = False
        self.counts: Counter[tuple[str, ...]] = Counter()
        self.running: list[Batch] = []
        self._waiting = dict.fromkeys(LANES, 0)
        self._queues: dict[str, deque[Job]] = {lane: deque() for lane in LANES}
        self._lost: deque[tuple[Job, int, int]] = deque()  # sequences that run once more, alone, and how often lost
        self._owed = 0.0  # tokens that bulk jobs may run ahead of the others

    @property
    def budget(self) -> int:
        """The most tokens of a batch; a longer sequence runs alone."""
        in_time = int(self.limits.batch_seconds / self.seconds_per_token)
        return min(self.limits.batch_tokens, max(in_time, _REPRESENTATIVE))

    @property
    def backlog(self) -> int:
        """Tokens that wait."""
        return sum(self._waiting.values())

    def waiting(self, lane: str) -> int:
        """Tokens of a lane that wait."""
        return self._waiting[lane]

    def expected_wait(self, lane: str, now: float) -> float:
        """Seconds until a job that comes now would begin."""
        ahead = self._waiting[INTERACTIVE]
        if lane == BULK:
            ahead += self._waiting[BULK]
        elif self._waiting[BULK]:
            ahead = int(ahead / (1 - BULK_SHARE))
        seconds = ahead * self.seconds_per_token
        if len(self.running) >= self.workers:
            costs = ((b.tokens * self.seconds_per_token, max(0.0, now - b.started)) for b in self.running)
            seconds += sum(max(0.0, cost - done) for cost, done in costs)
        return seconds / self.workers

    def admit(self, job: Job, now: float) -> None:
        """Takes a job in, or refuses it with the reason."""
        try:
            self._check(job, now)
        except RefusedError as refused:
            self.counts["refused", refused.reason, job.lane] += 1
            raise
        self.bytes += job.bytes
        self.sequences += job.count
        job.waiting = job.estimate
        self._waiting[job.lane] += job.waiting
        self.counts["admitted", job.lane] += 1

    def _check(self, job: Job, now: float) -> None:
        limits = self.limits
        if self.closed:
            raise RefusedError("stopping", "the server is stopping; ask another one")
        if job.bytes > limits.memory:
            raise RefusedError(
                "size", f"this request and its answer take {job.bytes} bytes, of {limits.memory} that all may; split it"
            )
        wait = self.expected_wait(job.lane, now)
        if self.bytes + job.bytes > limits.memory:
            raise RefusedError("memory", "the memory for requests is full; try again later", max(wait, 0.1))
        if self.sequences and self.sequences + job.count > limits.sequences:
            raise RefusedError("queue", f"{self.sequences} texts are waiting; try again later", max(wait, 0.1))
        if wait > limits.wait:
            raise RefusedError("wait", f"the wait would be {wait:.3f} seconds; try again later", wait - limits.wait)
        if now + wait + job.estimate * self.seconds_per_token / self.workers > job.deadline:
            raise RefusedError(
                "deadline", "the answer cannot be ready in time; allow more time, or try again later", wait
            )

    def queue(self, job: Job, tokens: Sequence[int]) -> None:
        """The tokens of an admitted job's sequences are known, and it may run."""
        if job.gone:
            return
        job.tokens = tokens
        self._count_waiting(job, sum(tokens))
        self._queues[job.lane].append(job)

    def take(self, now: float) -> Batch:
        """The next batch, which is empty when nothing waits. The oldest go first: interactive ones before bulk ones,
        except for what those are owed."""
        batch = Batch(now)
        if self._lost:
            self._take_lost(batch)
        if not batch.pieces:
            self._take_waiting(batch)
        if batch.pieces:
            self.running.append(batch)
            self.counts["batches",] += 1
            self.counts["tokens",] += batch.tokens
            self.counts["sequences",] += len(batch.pieces)
            self.counts["room",] += max(self.budget, batch.tokens)  # a longer sequence runs alone
            longest = max(job.tokens[number] for job, number in batch.pieces)
            self.counts["padding",] += longest * len(batch.pieces) - batch.tokens
        return batch

    def _take_waiting(self, batch: Batch) -> None:
        budget = self.budget
        self._fill(batch, BULK, budget, self._owed)
        taken = batch.tokens
        self._fill(batch, INTERACTIVE, budget)
        interactive = batch.tokens - taken
        self._fill(batch, BULK, budget)
        if not self._queues[BULK]:
            self._owed = 0.0
        else:
            self._owed = max(0.0, self._owed - taken) + interactive * BULK_SHARE

    def _take_lost(self, batch: Batch) -> None:
        while self._lost and not batch.pieces:
            job, number, losses = self._lost.popleft()
            if not job.gone:
                batch.losses = losses
                self._take_piece(batch, job, number)

    def _take_piece(self, batch: Batch, job: Job, number: int) -> None:
        batch.pieces.append((job, number))
        batch.tokens += job.tokens[number]
        job.taken += 1
        self.sequences -= 1
        self._count_waiting(job, job.waiting - job.tokens[number])

    def _fill(self, batch: Batch, lane: str, budget: int, owed: float = math.inf) -> None:
        queue = self._queues[lane]
        while queue:
            job = queue[0]
            if not job.gone and batch.started + self._cost(job) > job.deadline:
                batch.late.append(job)
                self.counts["late", lane] += 1
                self.leave(job)
            if job.gone:
                queue.popleft()
                continue
            cost = job.tokens[job.begun]
            if cost > owed or (batch.pieces and batch.tokens + cost > budget):
                return
            owed -= cost
            self._take_piece(batch, job, job.begun)
            job.begun += 1
            if job.begun == job.count:
                queue.popleft()

    def finish(self, batch: Batch, seconds: float) -> list[Job]:
        """A batch has run, for so many seconds: the jobs that are complete, in the order in which they were taken."""
        self.running.remove(batch)
        pace = seconds / max(batch.tokens, 1)
        enough = batch.tokens >= min(_REPRESENTATIVE, self.limits.batch_tokens)
        if not batch.wide and (enough or pace < self.seconds_per_token):
            self.seconds_per_token += _WEIGHT * (max(pace, 1e-9) - self.seconds_per_token)
        complete = []
        for job, _ in batch.pieces:
            job.finished += 1
            if job.finished == job.count and not job.gone:
                complete.append(job)
        return complete

    def lose(self, batch: Batch) -> list[Job]:
        """A batch was lost with its worker. Its sequences will run once more, each alone, so that one that ends workers
        takes no other with it; the job of one that was lost too often is given up, and returned."""
        self.running.remove(batch)
        losses = batch.losses + 1
        given_up = []
        for job, number in batch.pieces:
            if job.gone:
                continue
            if losses > _LOSSES:
                self.counts["lost", job.lane] += 1
                self.leave(job)
                given_up.append(job)
                continue
            job.taken -= 1
            self.sequences += 1
            self._count_waiting(job, job.waiting + job.tokens[number])
            self._lost.append((job, number, losses))
        return given_up

    def abandon(self) -> list[Job]:
        """Nothing that waits will run: the jobs, which have left."""
        queued = [job for queue in self._queues.values() for job in queue]
        jobs = dict.fromkeys([*queued, *(job for job, _, _ in self._lost)])
        for job in jobs:
            self.leave(job)
        return list(jobs)

    def leave(self, job: Job) -> None:
        """Nobody waits for this job any more: what has not run will not."""
        if not job.gone:
            job.gone = True
            self.sequences -= job.count - job.taken
            self._count_waiting(job, 0)
        self.release(job)

    def release(self, job: Job) -> None:
        """The job's answer has been sent, or there will be none: its memory is free."""
        if not job.released:
            job.released = True
            self.bytes -= job.bytes

    def _cost(self, job: Job) -> float:
        """Seconds that what is left of a job will take."""
        return job.waiting * self.seconds_per_token / self.workers

    def _count_waiting(self, job: Job, tokens: int) -> None:
        self._waiting[job.lane] += tokens - job.waiting
        job.waiting = tokens
