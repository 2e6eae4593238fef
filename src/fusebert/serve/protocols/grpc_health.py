"""gRPC's own health service: the state of the server (an empty name), of a model or of a gRPC service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fusebert.formats.protobuf.schema import messages
from fusebert.serve.front import Asked, StatusError
from fusebert.serve.grpc import GrpcService, Method
from fusebert.serve.protocols import oip_grpc

_M = messages(
    "grpc.health.v1",
    """
    HealthCheckRequest: 1 service string
    ServingStatus = UNKNOWN:0 SERVING:1 NOT_SERVING:2 SERVICE_UNKNOWN:3
    HealthCheckResponse: 1 status ServingStatus
    """,
)
_LOOK = 0.5  # seconds between two looks for those who watch


def _status(asked: Asked, name: str) -> str:
    if name in ("", oip_grpc.SERVICE.name):
        serves = asked.server.ready
    elif name in asked.server.services:
        serves = asked.server.services[name].healthy and not asked.server.stopping
    else:
        return "SERVICE_UNKNOWN"
    return "SERVING" if serves else "NOT_SERVING"


async def check(asked: Asked, message: Any) -> Any:
    """The state now."""
    status = _status(asked, message.service)
    if status == "SERVICE_UNKNOWN":
        raise StatusError(404, f"there is no service or model {message.service!r:.80}")
    return _M["HealthCheckResponse"](status=status)


async def watch(asked: Asked, stream: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """The state now, and whenever it changes."""
    async for message in stream:
        told = ""
        while True:
            if (status := _status(asked, message.service)) != told:
                yield _M["HealthCheckResponse"](status=status)
                told = status
            if asked.server.stopping:
                return
            await asyncio.sleep(_LOOK)


_TYPES = _M["HealthCheckRequest"], _M["HealthCheckResponse"]
SERVICE = GrpcService(
    "grpc.health.v1.Health",
    [Method("Check", *_TYPES, check, public=True), Method("Watch", *_TYPES, watch, "answers", public=True)],
)
