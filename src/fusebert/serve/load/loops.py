"""The two ways to offer load. Closed: so many clients, each of which asks again when it was answered. Open: requests
are due at times that do not depend on the server, and a latency begins when its request was due."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fusebert.serve.load.connection import Answer, Caller
from fusebert.serve.load.outcome import Outcome

ARRIVALS = ("poisson", "constant")
_PAUSE = 0.1  # seconds before a client asks again that was not answered at all
_BURST = 16  # requests that are late are sent so many at a time, so that answers are seen between them

clock = time.perf_counter


@dataclass(frozen=True)
class Load:
    """What is sent: payloads in turn. `judge` sees each answered body with its payload's number."""

    caller: Caller
    payloads: Sequence[bytes]
    judge: Callable[[Outcome, int, bytes], None] | None = None
    bound: float | None = None

    def note(self, outcome: Outcome, number: int, answer: Answer, seconds: float) -> None:
        """Counts an answer."""
        outcome.add(answer, seconds)
        if self.judge and answer.status == 200:
            self.judge(outcome, number % len(self.payloads), answer.body)


async def closed(load: Load, clients: int, cycle: int | None, seconds: float = math.inf) -> Outcome:
    """`clients` that ask `cycle` times each, or again and again for so many seconds."""
    outcome, finished = Outcome(load.bound), asyncio.Event()
    total = math.inf if cycle is None else clients * cycle
    sent = waiting = 0
    loop = asyncio.get_running_loop()
    await load.caller.connect(clients)
    cpu, begin = time.process_time(), clock()

    def again() -> None:
        nonlocal sent, waiting
        start = clock()
        if sent >= total or start - begin >= seconds:
            if not waiting:
                finished.set()
            return
        number, sent, waiting = sent, sent + 1, waiting + 1

        def done(answer: Answer) -> None:
            nonlocal waiting
            waiting -= 1
            load.note(outcome, number, answer, clock() - start)
            if answer.status:
                again()
            else:  # a server that is gone is not asked in a spin
                loop.call_later(_PAUSE, again)

        load.caller.request(load.payloads[number % len(load.payloads)], done)

    for _ in range(clients):
        again()
    await finished.wait()
    outcome.seconds = outcome.drained = clock() - begin
    outcome.cpu = time.process_time() - cpu
    return outcome


async def open_loop(
    load: Load, rate: float, seconds: float, warmup: float, arrivals: str = "poisson", hopeless: bool = False
) -> Outcome:
    """Requests at a mean rate for so many seconds, after a warm-up that does not count. With `hopeless`, it ends as
    soon as the bound cannot be kept any more."""
    run = _Open(load, Outcome(load.bound))
    draw = random.Random(round(rate * 1000))
    begin = due = clock() + 0.05
    cpu = time.process_time()
    planned = rate * seconds
    while (due := due + (draw.expovariate(rate) if arrivals == "poisson" else 1 / rate)) < begin + warmup + seconds:
        wait = due - clock()
        if wait > 0:
            await asyncio.sleep(wait)
        elif run.sent % _BURST == 0:
            await asyncio.sleep(0)
        run.send(due, due >= begin + warmup)
        if hopeless and run.sent % 32 == 0 and run.lost() > 0.01 * planned + 1:
            break
    outcome = run.outcome
    await run.drain()
    outcome.seconds, outcome.drained = seconds, max(seconds, clock() - begin - warmup)
    outcome.cpu = (time.process_time() - cpu) * seconds / (seconds + warmup)
    return outcome


class _Open:
    """The requests of an open loop that are under way."""

    def __init__(self, load: Load, outcome: Outcome) -> None:
        self._load, self.outcome, self.sent = load, outcome, 0
        self._pending: dict[int, float] = {}
        self._late = 0
        self._empty = asyncio.Event()

    def send(self, due: float, counts: bool) -> None:
        number, self.sent = self.sent, self.sent + 1
        if counts:
            self._pending[number] = due
            self.outcome.lags.record_value(max(1, round((clock() - due) * 1e6)))

        def done(answer: Answer) -> None:
            if not counts:
                return
            seconds = clock() - due
            self._pending.pop(number, None)
            self._load.note(self.outcome, number, answer, seconds)
            self._late += answer.status != 200 or (self._load.bound is not None and seconds > self._load.bound)
            if not self._pending:
                self._empty.set()

        self._load.caller.request(self._load.payloads[number % len(self._load.payloads)], done)

    def lost(self) -> int:
        """Requests that did not keep the bound, or that cannot any more."""
        limit = clock() - (self._load.bound or math.inf)
        return self._late + sum(1 for due in self._pending.values() if due < limit)

    async def drain(self) -> None:
        """Waits for what is under way."""
        while self._pending:
            self._empty.clear()
            await self._empty.wait()
