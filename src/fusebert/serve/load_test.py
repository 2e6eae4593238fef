"""Load-test: a server's address and texts in, a Report of what it did under load out. The load is a closed loop of
clients, an open loop of a rate, or a search for the highest rate that keeps a bound."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fusebert.errors import FusebertError
from fusebert.measure.tasks import Task, built_in_texts, read_texts
from fusebert.report import Report, Table
from fusebert.serve.load.connection import HttpCaller
from fusebert.serve.load.files import Files
from fusebert.serve.load.loops import ARRIVALS, Load, closed, open_loop
from fusebert.serve.load.outcome import Outcome
from fusebert.serve.load.protocols import Facts, Protocol, find_protocol, requests
from fusebert.serve.load.search import Tried, highest_rate

_BUSY = 0.9  # of a core: more, and the generator cannot be trusted to be on time
_LATE = 10.0  # milliseconds that 1 % of the requests may be sent too late
_GUESS = 2.0  # seconds of a closed loop, whose rate the search begins near
_PROBE = 0.4  # of the duration, for each rate that is tried; at least 4 seconds
Result = TypeVar("Result")


@dataclass(frozen=True)
class Settings:
    """Without a rate, `clients` ask `cycle` times each, or for `duration` seconds. With one, requests arrive at that
    rate for that time. `find_max` searches the highest rate with which 99 % of the requests are answered within `p99`
    seconds. `batch` texts go into each request."""

    clients: int = 96
    cycle: int = 128
    rate: float | None = None
    arrivals: str = "poisson"
    duration: float | None = None
    warmup: float = 1.0
    find_max: bool = False
    p99: float | None = None
    batch: int = 1
    timeout: float = 30.0
    model: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.arrivals not in ARRIVALS:
            raise FusebertError(f"arrivals {self.arrivals!r:.40} are unknown; use one of {', '.join(ARRIVALS)}")
        if self.find_max and (self.rate or not self.p99):
            raise FusebertError("the highest rate is searched for a bound and without a rate: --find-max --p99 130ms")


def load_test(
    url: str,
    data: str | Path | None = None,
    protocol: str | None = None,
    settings: Settings | None = None,
    files: Files | None = None,
) -> Report:
    """Offers load to the server at `url` with the texts of a file, or built-in ones, and tells what became of it."""
    settings, files = settings or Settings(), files or Files()
    files.check()
    task = read_texts(Path(data)) if data else built_in_texts()
    order = random.Random(0).sample(range(len(task.texts)), len(task.texts))
    task = Task(task.name, tuple(task.texts[i] for i in order), tuple(task.labels[i] for i in order), task.kind)
    return _run(_Test(url, task, protocol, settings, files).run())


class _Test:
    """One load test."""

    def __init__(self, url: str, task: Task, protocol: str | None, settings: Settings, files: Files) -> None:
        self._url, self._task, self._wanted, self._settings, self._files = url, task, protocol, settings, files

    async def run(self) -> Report:
        """Asks what the server is, offers the load, and reports."""
        settings = self._settings
        caller = HttpCaller(self._url, settings.timeout)
        try:
            await caller.connect(1)
            self._facts = await _facts(caller, settings.headers)
            self._name, self._protocol = find_protocol(self._wanted, self._facts)
            self._check_labels()
            self._load = Load(caller, self._payloads(caller, self._protocol), self._judge(), settings.p99)
            await self._check_first(caller)
            if settings.find_max:
                return await self._search()
            outcome = await (self._closed() if settings.rate is None else self._open(settings.rate))
        finally:
            await caller.close()
        loop = f"closed loop of {settings.clients} clients"
        if settings.rate is not None:
            loop = f"open loop, {settings.arrivals} arrivals of {settings.rate:g} a second"
        return self._report(loop, outcome)

    async def _closed(self) -> Outcome:
        settings = self._settings
        if settings.warmup:
            await closed(self._load, settings.clients, None, settings.warmup)
        if settings.duration:
            return await closed(self._load, settings.clients, None, settings.duration)
        return await closed(self._load, settings.clients, settings.cycle)

    async def _open(self, rate: float, seconds: float | None = None, hopeless: bool = False) -> Outcome:
        settings = self._settings
        seconds = seconds or settings.duration or 30.0
        return await open_loop(self._load, rate, seconds, settings.warmup, settings.arrivals, hopeless)

    async def _search(self) -> Report:
        settings = self._settings
        seconds = settings.duration or 30.0
        guess = await closed(self._load, settings.clients, None, _GUESS)
        rate, tried = await highest_rate(
            lambda rate: self._open(rate, max(4.0, _PROBE * seconds), hopeless=True),
            lambda rate: self._open(rate, seconds, hopeless=True),
            max(1.0, 0.8 * guess.rate),
        )
        p99 = settings.p99 or 0.0
        found = {"highest_rate": round(rate, 1), "p99_bound_ms": p99 * 1e3}
        return self._report(f"highest rate with p99 within {p99 * 1e3:g} ms", tried[-1][1], found, _tried(tried))

    def _payloads(self, caller: HttpCaller, protocol: Protocol) -> list[bytes]:
        settings = self._settings
        headers = {"Content-Type": "application/json", **settings.headers}
        path, bodies = requests(protocol, self._task.texts, settings.batch, settings.model, self._facts)
        return [caller.payload("POST", path, body, headers) for body in bodies]

    def _judge(self) -> Any:
        read, batch, number = self._protocol.labels, self._settings.batch, self._facts.number
        if read is None or not any(self._task.labels):
            return None

        def judge(outcome: Outcome, request: int, body: bytes) -> None:
            for place, label in enumerate(read(json.loads(body)), request * batch):
                outcome.said[place][number(label)] += 1

        return judge

    def _check_labels(self) -> None:
        if self._files.accuracy and not (self._protocol.labels and any(self._task.labels)):
            raise FusebertError(
                f"{self._name} on {self._task.name} has no accuracy: it takes a classifier and texts with labels"
            )

    async def _check_first(self, caller: HttpCaller) -> None:
        """A server that does not understand the first request will understand none."""
        answer = await caller.ask(self._load.payloads[0])
        if answer.status not in (200, 429, 503):
            said = answer.body.decode("utf-8", "replace")[:200] or "nothing"
            raise FusebertError(f"{self._url} answers {self._name} with status {answer.status}: {said}")

    def _report(self, loop: str, outcome: Outcome, found: dict[str, Any] | None = None, *tables: Table) -> Report:
        settings, files = self._settings, self._files
        facts: dict[str, Any] = {
            "protocol": self._name, "texts": self._task.name, **(found or {}), "requests": outcome.requests,
            "answered": outcome.statuses[200], "refused": outcome.refusals, "failed": outcome.failures,
            "seconds": round(outcome.seconds, 2), "answers_per_second": round(outcome.rate, 1),
        }  # fmt: skip
        if settings.p99:
            facts["within_bound_per_second"] = round(outcome.good / max(outcome.drained, 1e-9), 1)
        if outcome.refusals:
            facts["refused_after_ms_p99"] = round(outcome.refused.get_value_at_percentile(99) / 1e3, 1)
        facts |= self._accuracy(outcome)
        facts["generator_cores"] = round(outcome.cpu / max(outcome.seconds, 1e-9), 2)
        if files.accuracy:
            files.write_accuracy(facts["accuracy"])
        files.write_histogram(outcome.answered, outcome.seconds)
        title = f"{self._url}: {loop}"
        files.write_plot(title, {"answered": outcome.answered}, settings.p99)
        latencies, split = outcome.latencies(), outcome.split()
        rows = [Table("latency_ms", tuple(latencies), (tuple(latencies.values()),))]
        rows += [Table("server_ms", tuple(split), (tuple(split.values()),))] if split else []
        statuses = tuple((str(status) if status else "none", count) for status, count in outcome.statuses.items())
        rows.append(Table("statuses", ("status", "requests"), statuses))
        return Report(title, facts, (*rows, *tables), tuple(_doubts(outcome)))

    def _accuracy(self, outcome: Outcome) -> dict[str, Any]:
        """Each text counts once, however often it was asked: an answer never changes, and if it did, that is told."""
        if not outcome.said:
            return {}
        wanted = [self._facts.number(label) for label in self._task.labels]
        right = sum(said.most_common(1)[0][0] == wanted[place] for place, said in outcome.said.items())
        most = Counter(wanted[place] for place in outcome.said).most_common(1)[0][1]
        count = len(outcome.said)
        return {
            "accuracy": round(right / count, 4), "accuracy_of_always_the_same": round(most / count, 4),
            "texts_judged": count, "changed_answers": sum(len(said) > 1 for said in outcome.said.values()),
        }  # fmt: skip


async def _facts(caller: HttpCaller, headers: dict[str, str]) -> Facts:
    """What the server says it is; other servers have no such page."""
    answer = await caller.ask(caller.payload("GET", "/info", b"", headers))
    try:
        return Facts.read(json.loads(answer.body)) if answer.status == 200 else Facts()
    except ValueError:
        return Facts()


def _tried(tried: Tried) -> Table:
    rows = ((round(rate, 1), one.kept, round(one.percentile(99), 1), one.refusals) for rate, one in tried)
    return Table("tried", ("rate", "kept", "p99_ms", "refused"), tuple(rows))


def _doubts(outcome: Outcome) -> Sequence[str]:
    """Why the figures may be the generator's rather than the server's."""
    found = []
    cores = outcome.cpu / max(outcome.seconds, 1e-9)
    late = outcome.lags.get_value_at_percentile(99) / 1e3 if outcome.lags.get_total_count() else 0.0
    if cores > _BUSY:
        found.append(
            f"The generator was the bottleneck: it computed for {cores:.0%} of the time, on one core. Share the load "
            "out over several generators."
        )
    if late > _LATE:
        found.append(
            f"The generator was late: 1 % of the requests were sent {late:.1f} ms after they were due, or later. It, "
            "or the machine that it shares with the server, is the bottleneck. The latencies include that."
        )
    return found


def _run(work: Coroutine[Any, Any, Result]) -> Result:
    import uvloop

    return uvloop.run(work)
