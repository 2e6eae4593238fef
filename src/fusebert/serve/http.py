"""The HTTP front: a table of calls, each with the type of its body and the function that translates it, becomes an ASGI
application. Bodies, their limits and departures of clients are the same for all of them, and live here."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from fusebert.serve.front import Asked, Bounds, Failure, Server, StatusError, describe, explain
from fusebert.serve.service import Request, clock

_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.?)*+"?', re.S)  # whatever begins as one matches, so that time is linear
_STEPS = np.array([1 if byte in b"[{" else -1 if byte in b"]}" else 0 for byte in range(256)], np.int8)
_PATIENCE = 0.05  # seconds before anyone looks whether a client is still there: most answers are quicker
_LARGE = 64 << 10  # bytes of an answer: more are not sent at once
encode_json = msgspec.json.Encoder().encode


def tell(failure: Failure) -> Any:
    """The body of an error, as most clients read it."""
    kinds = {401: "Unauthorized", 413: "TooLarge", 429: "Overloaded", 503: "NotReady", 504: "Deadline", 500: "Backend"}
    kind = kinds.get(failure.status, "Validation")
    return {"error": failure.message, "error_type": kind, "message": failure.message}


@dataclass(frozen=True)
class Call:
    """One line of a protocol's table. `body` is the type of its JSON, `bytes` where the protocol reads it itself, or
    None where there is none; `work` gives JSON values, of the type `answer`, or a Response. `public` calls
    need no key; `documented` ones are in the OpenAPI document; `tell` makes the body of an error."""

    method: str
    path: str
    work: Callable[..., Awaitable[Any]]
    body: Any = None
    answer: Any = None
    public: bool = False
    documented: bool = True
    tell: Callable[[Failure], Any] = tell


class Events(Response):
    """Server-sent events: JSON values as they come, until there are no more or the client leaves."""

    def __init__(self, values: AsyncIterator[Any]) -> None:
        super().__init__(headers={"cache-control": "no-store"}, media_type="text/event-stream")
        del self.headers["content-length"]
        self._values = values

    async def stream(self, receive: Receive, send: Send) -> None:
        """Sends the values."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        leaving = asyncio.ensure_future(_left(receive))
        try:
            async for value in self._values:
                if leaving.done():
                    break
                line = b"data: " + encode_json(value) + b"\n\n"
                await send({"type": "http.response.body", "body": line, "more_body": True})
        finally:
            leaving.cancel()
        await send({"type": "http.response.body"})


class Endpoint:
    """A Call as an ASGI application."""

    def __init__(self, server: Server, call: Call) -> None:
        self._server, self._call = server, call
        decode = bytes if call.body in (None, bytes) else msgspec.json.Decoder(call.body).decode
        self._decode: Callable[[bytes], Any] = decode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun, request = clock(), Request()
        asked = Asked(self._server, request, scope["path_params"], dict(scope["headers"]))
        try:
            response = await self._answer(asked, receive)
        except asyncio.CancelledError:
            if not asked.gone:
                raise
            response = self._fail(Failure(499, "the client has gone"))
        try:
            told = describe(request, begun).items()
            response.raw_headers += [(name.encode(), value.encode("latin-1")) for name, value in told]
            self._server.record(self._call.path, response.status_code, begun, request)
            await (response.stream(receive, send) if isinstance(response, Events) else _send(response, send))
        finally:
            request.release()

    async def _answer(self, asked: Asked, receive: Receive) -> Response:
        try:
            asked.admit(self._call.public)
            body = await _read(asked.headers, receive, self._server.bounds) if self._call.method == "POST" else b""
            asked.request.watch = _watch(asked, receive)
            if self._call.body:
                if self._call.body is not bytes:
                    check_depth(body, self._server.bounds.depth)
                result = await self._call.work(asked, decode_json(self._decode, body))
            else:
                result = await self._call.work(asked)
            if isinstance(result, Response):
                return result
            return Response(encode_json(result), media_type="application/json")
        except Exception as error:
            return self._fail(explain(error, self._call.path))

    def _fail(self, failure: Failure) -> Response:
        return _error(failure, self._call.tell)


def application(server: Server, calls: Sequence[Call]) -> ASGIApp:
    """The ASGI application that answers these calls. Paths without a variable part, which are nearly all that is asked
    for, are looked up and need no router."""

    async def unknown(request: Any, error: Any) -> Response:
        return _error(Failure(error.status_code, f"there is no {request.method} {request.url.path[:200]}"))

    endpoints = {(call.method, call.path): Endpoint(server, call) for call in calls}
    routes = [Route(path, endpoint, methods=[method]) for (method, path), endpoint in endpoints.items()]
    router = Starlette(routes=routes, exception_handlers={404: unknown, 405: unknown})

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = endpoints.get((scope.get("method", ""), scope.get("path", "")))
        if endpoint is None or "{" in scope["path"]:
            await router(scope, receive, send)
        else:
            scope["path_params"] = {}
            await endpoint(scope, receive, send)

    return answer


async def _send(response: Response, send: Send) -> None:
    """Sends a response. A large one waits until the client has fetched most of it: until then its memory is taken."""
    await send({"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers})
    large = len(response.body) > _LARGE
    await send({"type": "http.response.body", "body": response.body, "more_body": large})
    if large:
        await send({"type": "http.response.body"})


def _error(failure: Failure, told: Callable[[Failure], Any] = tell) -> Response:
    headers = {} if failure.retry_after is None else {"retry-after": str(failure.retry_after)}
    if failure.status in (408, 413):
        headers["connection"] = "close"  # there may be more of the request that nobody will read
    return Response(encode_json(told(failure)), failure.status, headers, "application/json")


async def _read(headers: Mapping[bytes, bytes], receive: Receive, bounds: Bounds) -> bytes:
    """The body, decompressed; never more of it than allowed."""
    announced = headers.get(b"content-length", b"0")
    if announced.isdigit() and int(announced) > bounds.body:
        raise _too_large(bounds)
    parts, size = [], 0
    try:
        async with asyncio.timeout(bounds.seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise StatusError(499, "the client left before its request was complete")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > bounds.body:
                    raise _too_large(bounds)
                if not message.get("more_body"):
                    break
    except TimeoutError:
        raise StatusError(408, f"the request was not complete after {bounds.seconds:g} seconds") from None
    body = b"".join(parts)
    coding = headers.get(b"content-encoding", b"identity").lower()
    if coding in (b"identity", b""):
        return body
    if coding not in (b"gzip", b"deflate"):
        raise StatusError(415, "the body is compressed in a way that is not known; use gzip or deflate")
    machine = zlib.decompressobj(47)  # gzip or zlib, whichever it is
    try:
        whole = machine.decompress(body, bounds.body + 1)
    except zlib.error:
        raise StatusError(400, "the body cannot be decompressed") from None
    if len(whole) > bounds.body:
        raise _too_large(bounds)
    if not machine.eof or machine.unused_data:
        raise StatusError(400, "the compressed body is not complete, or something follows it")
    return whole


def _too_large(bounds: Bounds) -> StatusError:
    return StatusError(413, f"the body is larger than {bounds.body} bytes; send less at once")


def check_depth(body: bytes, most: int) -> None:
    """Refuses JSON with more levels of lists and objects than allowed, before it is read."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    steps = _STEPS[np.frombuffer(_STRINGS.sub(b"", body), np.uint8)]
    if np.cumsum(steps, dtype=np.int32).max(initial=0) > most:
        raise StatusError(400, f"the JSON has more than {most} levels")


def decode_json(decode: Callable[[Any], Any], body: Any) -> Any:
    """What a decoder makes of a body, or the status and sentence that its client is told."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise StatusError(422, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StatusError(400, f"the body is not JSON: {error}") from None


def _watch(asked: Asked, receive: Receive) -> Callable[[asyncio.Future[None]], asyncio.Handle]:
    """The watch for a client that leaves."""
    loop = asyncio.get_running_loop()

    def watch(future: asyncio.Future[None]) -> asyncio.Handle:
        return loop.call_later(_PATIENCE, lambda: asyncio.ensure_future(_leave(asked, receive, future)))

    return watch


async def _leave(asked: Asked, receive: Receive, future: asyncio.Future[None]) -> None:
    """Cancels what is waited for when the client closes its connection."""
    await _left(receive)
    if not future.done():
        asked.gone = True
        future.cancel()


async def _left(receive: Receive) -> None:
    """Returns when the client has closed its connection."""
    while (await receive())["type"] != "http.disconnect":
        pass
