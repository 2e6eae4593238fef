"""HTTP/1.1 on one connection, with bounds on what a client may send before and inside a request, and on how long it may
take to send it and to fetch its answer."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from fusebert.serve.front import Bounds


class Connection(HttpToolsProtocol):
    """uvicorn's connection, within bounds."""

    def __init__(self, *given: Any, bounds: Bounds, **more: Any) -> None:
        super().__init__(*given, **more)
        self._bounds = bounds
        self._heading = 0  # bytes of the headers that are being received
        self._chunks = 0
        self._reason = "this is not HTTP/1.1"
        self._impatience: asyncio.TimerHandle | None = None  # with a request that does not come
        self._stall: asyncio.TimerHandle | None = None  # of an answer that is not fetched

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there, and has some seconds to ask."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """A client is gone."""
        super().connection_lost(exc)
        for timer in (self._impatience, self._stall):
            if timer:
                timer.cancel()

    def on_message_begin(self) -> None:
        """Headers follow."""
        self._heading, self._chunks = 1, 0
        super().on_message_begin()

    def data_received(self, data: bytes) -> None:
        """Counts what comes until the headers are complete."""
        super().data_received(data)
        if self._heading and not self.transport.is_closing():
            self._heading += len(data)
            if self._heading > self._bounds.header_bytes:
                self.send_400_response(f"the headers are longer than {self._bounds.header_bytes} bytes")
            if self._impatience is None:
                self._expect()

    def on_headers_complete(self) -> None:
        """What follows is a body, whose bytes are bounded elsewhere."""
        self._heading = 0
        if self._impatience:
            self._impatience.cancel()
            self._impatience = None
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if len(self.headers) > self._bounds.headers or size > self._bounds.header_bytes:
            self._refuse(f"up to {self._bounds.headers} headers of {self._bounds.header_bytes} bytes in all are taken")
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # whose answers have no body to go with
            joined: Any = _Joined(self.transport)
            self.cycle.transport = joined

    def on_chunk_header(self) -> None:
        """A body may come in chunks, but not in crumbs."""
        self._chunks += 1
        if self._chunks > self._bounds.chunks:
            self._refuse(f"the body comes in more than {self._bounds.chunks} chunks; send larger ones")

    def _refuse(self, reason: str) -> None:
        """Ends parsing: the parser's caller answers with the reason."""
        self._reason = reason
        raise ValueError(reason)

    def send_400_response(self, msg: str) -> None:
        """Says what is wrong with what came, and closes."""
        told = self._reason if msg == "Invalid HTTP request received." else msg
        body = msgspec.json.encode({"error": told})
        head = b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: "
        self.transport.write(b"%b%d\r\n\r\n%b" % (head, len(body), body))
        self.transport.close()

    def _expect(self) -> None:
        def give_up() -> None:
            self.send_400_response(f"no request came within {self._bounds.seconds:g} seconds")

        self._impatience = asyncio.get_running_loop().call_later(self._bounds.seconds, give_up)

    def pause_writing(self) -> None:
        """The client does not fetch its answer as quickly as it comes."""
        super().pause_writing()
        self._watch_fetching(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has fetched most of it."""
        super().resume_writing()
        if self._stall:
            self._stall.cancel()
            self._stall = None

    def _watch_fetching(self, before: int) -> None:
        """Cuts off a client that fetches nothing any more, for its answer takes memory."""

        def look() -> None:
            now = self.transport.get_write_buffer_size()
            if now < before:
                self._watch_fetching(now)
            else:
                self.transport.abort()

        self._stall = asyncio.get_running_loop().call_later(self._bounds.seconds, look)


class _Joined:
    """What an answer is written to: its head waits for the first of its body, and goes out with it. That is one packet
    and one system call less for each request, here and at the client."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = None
        self._begun = False

    def write(self, data: bytes) -> None:
        """uvicorn writes the head at once and whole, and asks for a body (100) before it."""
        if self._begun or data.startswith(b"HTTP/1.1 100 "):
            self._transport.write(data)
        elif self._head is None:
            self._head = data
        else:
            self._begun = True
            self._transport.writelines((self._head, data))

    def is_closing(self) -> bool:
        """As the transport."""
        return self._transport.is_closing()

    def close(self) -> None:
        """As the transport, once all is sent."""
        self._transport.close()
