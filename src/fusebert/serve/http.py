"""The HTTP front: a table of calls, each with the type of its body and the function that translates it, becomes an ASGI
application. Limits, keys, deadlines, departures of clients and errors are the same for all of them, and live here."""

from __future__ import annotations

import asyncio
import hmac
import logging
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fusebert.errors import FusebertError
from fusebert.serve.batcher import LANES, RefusedError
from fusebert.serve.metrics import Metrics
from fusebert.serve.service import NotReadyError, Request, Service, clock

_log = logging.getLogger("fusebert.serve")
_REFUSALS = {"stopping": 503, "size": 413, "deadline": 504}  # all others: 429
_PATIENCE = 0.05  # seconds before anyone looks whether a client is still there: most answers are quicker
_ENCODE = msgspec.json.Encoder().encode


class HttpError(FusebertError):
    """An error with a status of its own."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Bounds:
    """What a single request may be: bytes of its body, texts, bytes of a text, and seconds that sending it may take."""

    body: int = 8 << 20
    texts: int = 512
    text: int = 100 << 10
    seconds: float = 30.0


@dataclass
class Server:
    """What all calls share: the models by name (the first is the default one), bounds, key and metrics."""

    services: dict[str, Service] = field(default_factory=dict)
    bounds: Bounds = field(default_factory=Bounds)
    key: str = ""
    metrics: Metrics = field(default_factory=Metrics)
    stopping: bool = False

    @property
    def ready(self) -> bool:
        """Whether requests are answered."""
        return bool(self.services) and not self.stopping and all(s.healthy for s in self.services.values())

    def service(self, name: str | None = None) -> Service:
        """The model of that name. Clients of a server with one model may call it what they like."""
        if not self.services:
            raise NotReadyError("the model is being loaded; try again in a moment")
        if len(self.services) == 1 or not name:
            return next(iter(self.services.values()))
        if name not in self.services:
            raise HttpError(404, f"there is no model {name!r:.80}; there are {', '.join(self.services)}")
        return self.services[name]


@dataclass
class Asked:
    """A request as translators see it."""

    server: Server
    request: Request
    path: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    gone: bool = False  # the client, before it had its answer


@dataclass(frozen=True)
class Call:
    """One line of a protocol's table. `body` is the type of its JSON, or None where there is none; `work` gives JSON
    values or a Response. `public` calls need no key."""

    method: str
    path: str
    work: Callable[..., Awaitable[Any]]
    body: Any = None
    public: bool = False


class Endpoint:
    """A Call as an ASGI application."""

    def __init__(self, server: Server, call: Call) -> None:
        self._server, self._call = server, call
        self._decode = msgspec.json.Decoder(call.body).decode if call.body else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, request = clock(), Request()
        headers = dict(scope["headers"])
        asked = Asked(self._server, request, scope["path_params"], headers)
        try:
            response = await self._answer(asked, headers, receive)
        except asyncio.CancelledError:
            if not asked.gone:
                raise
            response = _error(499, "the client has gone")
        try:
            if request.tasks:
                response.headers.update(_timings(request, begun))
                response.headers["x-fingerprint"] = request.tasks[0][0].fingerprint
            self._server.metrics.record(self._call.path, response.status_code, begun, request)
            await response(scope, receive, send)
        finally:
            request.release()

    async def _answer(self, asked: Asked, headers: Mapping[bytes, bytes], receive: Receive) -> Response:
        try:
            if self._server.key and not self._call.public:
                _check_key(headers, self._server.key)
            body = await _read(headers, receive, self._server.bounds) if self._call.method == "POST" else b""
            _direct(asked, receive)
            if self._decode:
                result = await self._call.work(asked, _decoded(self._decode, body))
            else:
                result = await self._call.work(asked)
        except RefusedError as error:
            response = _error(_REFUSALS.get(error.reason, 429), str(error))
            if error.retry_after is not None and response.status_code == 429:
                response.headers["retry-after"] = str(max(1, round(error.retry_after)))
            return response
        except NotReadyError as error:
            response = _error(503, str(error))
            response.headers["retry-after"] = "1"
            return response
        except HttpError as error:
            return _error(error.status, str(error))
        except FusebertError as error:
            return _error(422, str(error))
        except Exception:
            _log.exception("a request to %s failed", self._call.path)
            return _error(500, "the server failed on this request")
        if not isinstance(result, Response):
            result = Response(_ENCODE(result), media_type="application/json")
        return result


def application(server: Server, calls: Sequence[Call]) -> Starlette:
    """The ASGI application that answers these calls."""

    async def unknown(request: Any, error: Any) -> Response:
        return _error(error.status_code, f"there is no {request.method} {request.url.path[:200]}")

    routes = [Route(call.path, Endpoint(server, call), methods=[call.method]) for call in calls]
    return Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown})


def _error(status: int, message: str) -> Response:
    kinds = {401: "Unauthorized", 413: "TooLarge", 429: "Overloaded", 503: "NotReady", 504: "Deadline", 500: "Backend"}
    body = {"error": message, "error_type": kinds.get(status, "Validation"), "message": message}
    return Response(_ENCODE(body), status, media_type="application/json")


def _check_key(headers: Mapping[bytes, bytes], key: str) -> None:
    given = headers.get(b"authorization", b"").removeprefix(b"Bearer ") or headers.get(b"x-api-key", b"")
    if not hmac.compare_digest(given, key.encode()):
        raise HttpError(401, "a valid key is needed: Authorization: Bearer KEY")


async def _read(headers: Mapping[bytes, bytes], receive: Receive, bounds: Bounds) -> bytes:
    """The body, decompressed; never more of it than allowed."""
    too_large = HttpError(413, f"the body is larger than {bounds.body} bytes; send less at once")
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > bounds.body:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(bounds.seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise HttpError(499, "the client left before its request was complete")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > bounds.body:
                    raise too_large
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise HttpError(408, f"the request was not complete after {bounds.seconds:g} seconds") from None
    body = b"".join(parts)
    coding = headers.get(b"content-encoding", b"identity").lower()
    if coding in (b"identity", b""):
        return body
    if coding not in (b"gzip", b"deflate"):
        raise HttpError(415, "the body is compressed in a way that is not known; use gzip or deflate")
    machine = zlib.decompressobj(47)  # gzip or zlib, whichever it is
    try:
        whole = machine.decompress(body, bounds.body + 1)
    except zlib.error:
        raise HttpError(400, "the body cannot be decompressed") from None
    if len(whole) > bounds.body:
        raise too_large
    if not machine.eof:
        raise HttpError(400, "the compressed body is not complete")
    return whole


def _decoded(decode: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise HttpError(422, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None


def _direct(asked: Asked, receive: Receive) -> None:
    """Lane and deadline, from headers, and the watch for a client that leaves."""
    lane = asked.headers.get(b"x-lane", b"").decode("latin-1")
    if lane and lane not in LANES:
        raise HttpError(422, f"x-lane: {' or '.join(LANES)} is expected, not {lane!r:.40}")
    asked.request.lane = lane or None
    if given := asked.headers.get(b"x-timeout-ms"):
        if not given.isdigit() or len(given) > 9:
            raise HttpError(422, "x-timeout-ms: a whole number of milliseconds is expected")
        asked.request.deadline = clock() + int(given) / 1000
    loop = asyncio.get_running_loop()

    def watch(future: asyncio.Future[None]) -> asyncio.Handle:
        return loop.call_later(_PATIENCE, lambda: asyncio.ensure_future(_leave(asked, receive, future)))

    asked.request.watch = watch


async def _leave(asked: Asked, receive: Receive, future: asyncio.Future[None]) -> None:
    """Cancels what is waited for when the client closes its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not future.done():
        asked.gone = True
        future.cancel()


def _timings(request: Request, begun: float) -> dict[str, str]:
    """What the time was spent on, in milliseconds."""
    tasks = [task for _, task in request.tasks if task.ended]
    spent = {
        "x-total-time": clock() - begun,
        "x-tokenization-time": sum(task.tokenised - task.arrived for task in tasks),
        "x-queue-time": sum(task.started - task.tokenised for task in tasks),
        "x-inference-time": sum(task.ended - task.started for task in tasks),
    }
    return {name: f"{seconds * 1000:.3f}" for name, seconds in spent.items()} | {
        "x-compute-tokens": str(sum(sum(task.tokens) for task in tasks))
    }
