"""The gRPC front: tables of methods, each with its messages and the function that translates them, become a server on
the event loop. Keys, deadlines, departures of clients and errors mean what they mean over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from fusebert.errors import FusebertError
from fusebert.serve.front import Asked, Failure, Server, StatusError, describe, explain
from fusebert.serve.service import Request, clock

_CODES = {
    401: grpc.StatusCode.UNAUTHENTICATED, 404: grpc.StatusCode.NOT_FOUND, 429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL, 501: grpc.StatusCode.UNIMPLEMENTED, 503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip
_METADATA_BYTES = 32 << 10
_STREAMS = 1024  # calls of one connection at a time
_LOOK = 0.5  # seconds between two looks of an idle stream at whether the server stops


@dataclass(frozen=True)
class Method:
    """One method of a gRPC service: `work` takes what is asked and a message, and gives the answer. If it `streams`
    ("answers", or "both" ways), it takes messages as they come, and yields answers. `public` methods need no key."""

    name: str
    question: Any
    answer: Any
    work: Callable[..., Any]
    streams: str = ""
    public: bool = False


@dataclass(frozen=True)
class GrpcService:
    """A service: its full name, and its methods."""

    name: str
    methods: Sequence[Method]


async def listen(
    server: Server, services: Sequence[GrpcService], host: str, port: int, pem: tuple[bytes, bytes] | None = None
) -> tuple[Any, int]:
    """A server that answers these services, and its port; `pem` is a private key and its certificates."""
    limits = {
        "max_receive_message_length": server.bounds.body, "max_send_message_length": -1, "so_reuseport": 0,
        "max_metadata_size": _METADATA_BYTES, "max_concurrent_streams": _STREAMS,
    }  # fmt: skip
    front = grpc.aio.server(options=[(f"grpc.{name}", value) for name, value in limits.items()])
    front.add_generic_rpc_handlers([_handler(server, service) for service in services])
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if pem:
            port = front.add_secure_port(where, grpc.ssl_server_credentials([pem]))
        else:
            port = front.add_insecure_port(where)
    except RuntimeError:
        raise FusebertError(f"{where} cannot be listened on; is it in use? choose another port") from None
    try:
        await front.start()
    except asyncio.CancelledError:
        await front.stop(None)
        raise
    return front, port


def _handler(server: Server, service: GrpcService) -> Any:
    handlers = {}
    for method in service.methods:
        own = Handler(server, f"/{service.name}/{method.name}", method)
        if method.streams:
            handlers[method.name] = grpc.stream_stream_rpc_method_handler(own.stream)
        else:
            handlers[method.name] = grpc.unary_unary_rpc_method_handler(own.answer)
    return grpc.method_handlers_generic_handler(service.name, handlers)


class Handler:
    """A Method as grpc calls it: bytes in, bytes out."""

    def __init__(self, server: Server, path: str, method: Method) -> None:
        self._server, self._path, self._method = server, path, method

    async def answer(self, data: bytes, context: Any) -> bytes:
        """The answer to one message."""
        begun, request = clock(), Request()
        context.add_done_callback(lambda _: request.release())
        record = partial(self._server.record, self._path, begun=begun, request=request)
        try:
            answer = await self._method.work(self._admit(request, context), self._parse(data))
            told: bytes = answer.SerializeToString()
        except asyncio.CancelledError:  # the client has gone
            record(499)
            raise
        except Exception as error:
            failure = explain(error, self._path)
            record(failure.status)
            await _abort(context, failure)
        record(200)
        context.set_trailing_metadata(tuple(describe(request, begun).items()))
        return told

    async def stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        """The answers to a stream of messages."""
        try:
            async for answer in self._method.work(self._admit(Request(), context), self._receive(messages)):
                yield answer.SerializeToString()
        except Exception as error:
            await _abort(context, explain(error, self._path))

    def _admit(self, request: Request, context: Any) -> Asked:
        pairs = context.invocation_metadata() or ()
        headers = {key.encode(): value.encode() if isinstance(value, str) else value for key, value in pairs}
        asked = Asked(self._server, request, {}, headers)
        asked.admit(self._method.public)
        if (left := context.time_remaining()) is not None:
            request.deadline = min(request.deadline, clock() + left)
        return asked

    def _parse(self, data: bytes) -> Any:
        try:
            return self._method.question.FromString(data)
        except DecodeError:
            raise StatusError(400, f"the message is not a {self._method.question.DESCRIPTOR.name}") from None

    async def _receive(self, messages: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        """Messages as they come; none any more when the server stops, so that an idle client does not hold it up."""
        while True:
            coming = asyncio.ensure_future(anext(messages, None))
            while not (await asyncio.wait([coming], timeout=_LOOK))[0]:
                if self._server.stopping:
                    coming.cancel()
                    return
            if (data := await coming) is None:
                return
            yield self._parse(data)


async def _abort(context: Any, failure: Failure) -> NoReturn:
    trailing = () if failure.retry_after is None else (("retry-after", str(failure.retry_after)),)
    await context.abort(_CODES.get(failure.status, grpc.StatusCode.INVALID_ARGUMENT), failure.message, trailing)
    raise AssertionError  # abort always raises
