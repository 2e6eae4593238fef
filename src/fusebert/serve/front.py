"""What the fronts (HTTP, gRPC) share: the models by name, the bounds of a request, the key, what headers ask for, and
what an error means to a client."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fusebert.errors import FusebertError
from fusebert.serve.batcher import LANES, RefusedError
from fusebert.serve.metrics import Metrics
from fusebert.serve.service import LostError, NotReadyError, Request, Service, clock
from fusebert.serve.trace import Trace

_log = logging.getLogger("fusebert.serve")
_REFUSALS = {"stopping": 503, "size": 413, "deadline": 504}  # all others: 429


class StatusError(FusebertError):
    """An error with a status of its own, one of HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Bounds:
    """What a single request may be: bytes of its body, texts, bytes of a text; levels of its JSON, headers, their
    bytes, chunks; and the seconds that sending it may take, and that fetching its answer may stand still."""

    body: int = 8 << 20
    texts: int = 512
    text: int = 100 << 10
    depth: int = 32
    headers: int = 100
    header_bytes: int = 32 << 10
    chunks: int = 16384
    seconds: float = 30.0


class Recorder(Protocol):
    """Whoever is told of answers."""

    def record(self, path: str, status: int, begun: float, request: Request) -> None:
        """A request has been answered."""


@dataclass
class Server:
    """What all calls share: the models by name (the first is the default one), bounds, key and metrics."""

    services: dict[str, Service] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=Bounds)
    key: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    recorders: list[Recorder] = field(default_factory=list)  # beside the metrics
    stopping: bool = False

    def record(self, path: str, status: int, begun: float, request: Request) -> None:
        """Tells all who want to know that a request has been answered."""
        for recorder in (self.metrics, *self.recorders):
            recorder.record(path, status, begun, request)

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return bool(self.services) and not self.stopping and all(s.healthy for s in self.services.values())

    def service(self, name: str | None = None) -> Service:
        """The model of that name. Clients of a server with one model may call it what they like."""
        if len(self.services) == 1 or (self.services and not name):
            return next(iter(self.services.values()))
        return self.named(name or "")

    def named(self, name: str) -> Service:
        """The model of exactly that name."""
        if not self.services:
            raise NotReadyError("the model is being loaded; try again in a moment")
        if name not in self.services:
            raise StatusError(404, f"there is no model {name!r:.80}; there are {', '.join(self.services)}")
        return self.services[name]


@dataclass
class Asked:
    """A request as translators see it: `path` are the variable parts of its path, `headers` also gRPC's metadata."""

    server: Server
    request: Request
    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    gone: bool = False  # the client, before it had its answer

    def admit(self, public: bool) -> None:
        """Checks the key, unless the call is public, and reads trace, lane and deadline from the headers."""
        self.request.trace = Trace.read(self.headers)
        if self.server.key and not public:
            given = self.headers.get(b"authorization", b"").removeprefix(b"Bearer ") or self.headers.get(
                b"x-api-key", b""
            )
            if not hmac.compare_digest(given, self.server.key.encode()):
                raise StatusError(401, "a valid key is needed: Authorization: Bearer KEY")
        lane = self.headers.get(b"x-lane", b"").decode("latin-1")
        if lane and lane not in LANES:
            raise StatusError(422, f"x-lane: {' or '.join(LANES)} is expected, not {lane!r:.40}")
        self.request.lane = lane or None
        if time := self.headers.get(b"x-timeout-ms"):
            if not time.isdigit() or len(time) > 9:
                raise StatusError(422, "x-timeout-ms: a whole number of milliseconds is expected")
            self.request.deadline = clock() + int(time) / 1000


@dataclass(frozen=True)
class Failure:
    """What a client is told instead of an answer: a status of HTTP, a sentence, and seconds until the next try."""

    status: int
    message: str
    retry_after: int | None = None


def explain(error: Exception, path: str) -> Failure:
    """What an error is to a client. One of our own is logged, and nothing of it is told."""
    if isinstance(error, RefusedError):
        status = _REFUSALS.get(error.reason, 429)
        waits = status == 429 and error.retry_after is not None
        return Failure(status, str(error), max(1, round(error.retry_after or 0)) if waits else None)
    if isinstance(error, NotReadyError):
        return Failure(503, str(error), 1)
    if isinstance(error, LostError):
        return Failure(500, str(error))
    if isinstance(error, StatusError):
        return Failure(error.status, str(error))
    if isinstance(error, FusebertError):
        return Failure(422, str(error))
    _log.error("a request to %s failed", path, exc_info=error)
    return Failure(500, "the server failed on this request")


def describe(request: Request, begun: float) -> dict[str, str]:
    """Headers of an answer: what its time was spent on, in milliseconds, its tokens, its vector space, its trace."""
    trace = {"traceparent": request.trace.header} if request.trace else {}
    if not request.tasks:
        return trace
    tasks = [task for _, task in request.tasks if task.ended]
    stages = [sum(seconds) for seconds in zip(*(task.stages for task in tasks), strict=True)] or [0.0] * 3
    names = ("x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time")
    spent = zip(names, (clock() - begun, *stages), strict=True)
    return {name: f"{seconds * 1000:.3f}" for name, seconds in spent} | {
        "x-compute-tokens": str(sum(sum(task.tokens) for task in tasks)),
        "x-fingerprint": request.tasks[0][0].fingerprint,
        **trace,
    }
