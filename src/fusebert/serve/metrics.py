"""Metrics for Prometheus: times of each stage and answers by status, recorded once a request; what batchers count, read
when it is asked for."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from fusebert.serve.batcher import LANES
from fusebert.serve.service import Request, Service, clock

if TYPE_CHECKING:  # a server is ready before it is asked for them
    from prometheus_client.core import Metric

_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, 0.1, 0.13, 0.2, 0.35, 0.5, 1, 2, 5, 10, 30)
_BOUNDS = [*(str(float(bound)) for bound in _BUCKETS), "+Inf"]
STAGES = ("total", "tokenisation", "queue", "inference")


class _Times:
    """How often a stage took how long, and in all."""

    def __init__(self) -> None:
        self.counts = [0] * len(_BOUNDS)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(_BUCKETS, seconds)] += 1
        self.sum += seconds


class Metrics:
    """The metrics of a server; prometheus_client, which writes them, is imported when they are first asked for."""

    def __init__(self) -> None:
        self._answers: Counter[tuple[str, int]] = Counter()  # by path and status
        self._stages: dict[str, list[_Times]] = {}  # of each model, in the order of STAGES
        self.recent: deque[tuple[float, int]] = deque(maxlen=100_000)  # seconds and texts of the latest answers
        self.latest: dict[str, float] = {}  # when each model last answered, in seconds since 1970
        self._services: Iterable[Service] = ()

    def watch(self, services: Iterable[Service]) -> None:
        """Shows what the batchers of these services count."""
        self._services = services

    def record(self, path: str, status: int, begun: float, request: Request) -> None:
        """A request has been answered."""
        self._answers[path, status] += 1
        if status == 200:
            for service, task in request.tasks:
                seconds = clock() - begun
                stages = self._stages.get(service.name) or self._stages.setdefault(
                    service.name, [_Times() for _ in STAGES]
                )
                for times, taken in zip(stages, (seconds, *task.stages), strict=True):
                    times.observe(taken)
                self.recent.append((seconds, task.count))
                self.latest[service.name] = time.time()

    def totals(self, model: str) -> dict[str, tuple[int, float]]:
        """How many requests of a model were answered, and the seconds that each stage took in all."""
        stages = self._stages.get(model) or [_Times() for _ in STAGES]
        return {name: (sum(times.counts), times.sum) for name, times in zip(STAGES, stages, strict=True)}

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry()
        registry.register(self)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        """What was recorded, and what batchers count, by model."""
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        answers = CounterMetricFamily("fusebert_requests", "Answers by path and status", labels=["path", "status"])
        for (path, status), count in list(self._answers.items()):
            answers.add_metric([path, str(status)], count)
        seconds = HistogramMetricFamily("fusebert_seconds", "Seconds of a request's stages", labels=["model", "stage"])
        for model, stages in list(self._stages.items()):
            for stage, times in zip(STAGES, stages, strict=True):
                seconds.add_metric([model, stage], list(zip(_BOUNDS, accumulate(times.counts), strict=True)), times.sum)
        yield from (answers, seconds, *self._collect_batchers())

    def _collect_batchers(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        gauges: dict[str, tuple[str, Any]] = {
            "queue_sequences": ("Sequences that wait", lambda b: b.sequences),
            "memory_bytes": ("Bytes of requests that are not answered yet", lambda b: b.bytes),
            "seconds_per_token": ("The pace that is expected", lambda b: b.seconds_per_token),
            "budget_tokens": ("Tokens that close a batch", lambda b: b.budget),
        }
        services = list(self._services)
        for name, (text, value) in gauges.items():
            gauge = GaugeMetricFamily(f"fusebert_{name}", text, labels=["model"])
            for service in services:
                gauge.add_metric([service.name], value(service.batcher))
            yield gauge
        waiting = GaugeMetricFamily("fusebert_queue_tokens", "Tokens that wait, by lane", labels=["model", "lane"])
        counted = {
            ("batches",): CounterMetricFamily("fusebert_batches", "Batches", labels=["model"]),
            ("tokens",): CounterMetricFamily("fusebert_tokens", "Tokens in batches", labels=["model"]),
            ("sequences",): CounterMetricFamily("fusebert_sequences", "Sequences in batches", labels=["model"]),
            ("padding",): CounterMetricFamily(
                "fusebert_padding_avoided_tokens", "Tokens that padding every batch would have added", labels=["model"]
            ),
        }
        refused = CounterMetricFamily("fusebert_refused", "Requests refused", labels=["model", "reason", "lane"])
        crashes = CounterMetricFamily("fusebert_worker_crashes", "Workers replaced", labels=["model"])
        for service in services:
            batcher = service.batcher
            crashes.add_metric([service.name], service.crashes)
            for lane in LANES:
                waiting.add_metric([service.name, lane], batcher.waiting(lane))
            for key, value in list(batcher.counts.items()):
                if key in counted:
                    counted[key].add_metric([service.name], value)
                elif key[0] == "refused":
                    refused.add_metric([service.name, *key[1:]], value)
                elif key[0] == "late":
                    refused.add_metric([service.name, "late", key[1]], value)
        yield from (waiting, *counted.values(), refused, crashes)
