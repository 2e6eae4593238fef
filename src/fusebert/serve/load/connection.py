"""Connections of the load generator: requests as bytes in, answers out. It is light, so that one core asks more than a
server can answer: requests are made before the clock starts, and bodies of answers are not looked into."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

from fusebert.errors import FusebertError

STAGES = {b"x-tokenization-time": "tokenisation", b"x-queue-time": "queue", b"x-inference-time": "inference"}
_MOST = 8000  # connections at once; further requests wait here, which counts as their latency
_SWEEP = 0.25  # seconds between looks at requests that get no answer


@dataclass
class Answer:
    """Status 0: none came. `stages` are milliseconds, as the server tells them."""

    status: int = 0
    body: bytes = b""
    stages: dict[str, float] = field(default_factory=dict)


Done = Callable[[Answer], None]


class Caller(Protocol):
    """Whatever sends requests; `done` is called once for each."""

    async def connect(self, count: int) -> None:
        """Opens connections beforehand."""

    def request(self, payload: bytes, done: Done) -> None:
        """Sends one request."""

    async def close(self) -> None:
        """Gives up what is under way."""


class _Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.since = 0.0
        self._parts: list[bytes] = []
        self._done: Callable[[_Connection, Answer], None] | None = None

    @property
    def alive(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # a stream has nothing else

    def send(self, payload: bytes, now: float, done: Callable[[_Connection, Answer], None]) -> None:
        import httptools

        assert self.transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._answer, self._parts, self._done, self.since = Answer(), [], done, now
        self.transport.write(payload)

    def data_received(self, data: bytes) -> None:
        if self._done is None:  # nothing was asked
            self._abort()
            return
        try:
            self._parser.feed_data(data)
        except Exception:  # not HTTP
            self._abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        if stage := STAGES.get(name.lower()):
            self._answer.stages[stage] = float(value)

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._answer.status, self._answer.body = self._parser.get_status_code(), b"".join(self._parts)
        if not self._parser.should_keep_alive() and self.transport:
            self.transport.close()
        self._finish(self._answer)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self.transport = None
        self._finish(Answer())

    def _abort(self) -> None:
        if self.transport:
            self.transport.abort()

    def _finish(self, answer: Answer) -> None:
        done, self._done = self._done, None
        if done:
            done(self, answer)


class HttpCaller:
    """Connections to one server, as many as there are requests under way."""

    def __init__(self, url: str, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise FusebertError(f"{url!r:.80} is no address of a server; use http://HOST:PORT")
        self._host, self._port = parts.hostname, parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._timeout = timeout
        self._idle: list[_Connection] = []
        self._busy: set[_Connection] = set()
        self._waiting: deque[tuple[bytes, Done]] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._sweeper = self._loop.create_task(self._sweep())

    async def connect(self, count: int) -> None:
        """Opens connections beforehand, so that none is opened while the clock runs."""
        while len(self._idle) < count:
            try:
                self._idle.append(await self._connection())
            except OSError as error:
                raise FusebertError(f"{self._host}:{self._port} does not answer: {error}; is the server up?") from None

    def request(self, payload: bytes, done: Done) -> None:
        """Sends a request over a connection that is free, or over a new one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.alive:
                self._send(connection, payload, done)
                return
        if len(self._busy) + len(self._opening) >= _MOST:
            self._waiting.append((payload, done))
            return
        opening = self._loop.create_task(self._open(payload, done))
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)

    async def ask(self, payload: bytes) -> Answer:
        """One request and its answer."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self.request(payload, lambda answer: None if future.done() else future.set_result(answer))
        return await future

    async def close(self) -> None:
        """Closes all connections; what is under way gets no answer."""
        self._sweeper.cancel()
        for connection in (*self._idle, *self._busy):
            connection._abort()
        await asyncio.sleep(0)

    def payload(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """A request as the bytes that are sent."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}:{self._port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        lines += [f"Content-Length: {len(body)}"] if method == "POST" else []
        return "\r\n".join([*lines, "", ""]).encode() + body

    async def _connection(self) -> _Connection:
        found: Any = await self._loop.create_connection(_Connection, self._host, self._port, ssl=self._tls)
        connection: _Connection = found[1]
        return connection

    async def _open(self, payload: bytes, done: Done) -> None:
        try:
            connection = await self._connection()
        except OSError:
            done(Answer())
            return
        self._send(connection, payload, done)

    def _send(self, connection: _Connection, payload: bytes, done: Done) -> None:
        def finished(connection: _Connection, answer: Answer) -> None:
            self._busy.discard(connection)
            if connection.alive:
                self._idle.append(connection)
            done(answer)
            if self._waiting and self._idle:
                self.request(*self._waiting.popleft())

        self._busy.add(connection)
        connection.send(payload, self._loop.time(), finished)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP)
            limit = self._loop.time() - self._timeout
            for connection in [c for c in self._busy if c.since < limit]:
                connection._abort()
