"""Live: what a server does now, for the charts of its page: a value every second for each page that looks on."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from fusebert.serve.front import Server
from fusebert.serve.service import Request, clock

_SECONDS = 1.0
_MOST = 20_000  # answers that are remembered


class Live:
    """Remembers the latest answers; one of the server's recorders."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._recent: deque[tuple[float, float, int]] = deque(maxlen=_MOST)  # when, seconds, texts

    def record(self, path: str, status: int, begun: float, request: Request) -> None:  # noqa: ARG002
        """A request has been answered."""
        if status == 200 and request.tasks:
            now = clock()
            self._recent.append((now, now - begun, sum(task.count for _, task in request.tasks)))

    async def values(self, every: float = _SECONDS) -> AsyncIterator[dict[str, Any]]:
        """What happened since the value before, until the server stops."""
        since, counts = clock() - every, self._counts()
        while not self._server.stopping:
            now, new = clock(), self._counts()
            yield self._value(since, now, {name: new[name] - counts[name] for name in new})
            since, counts = now, new
            await asyncio.sleep(every)

    def _value(self, since: float, now: float, counts: dict[str, int]) -> dict[str, Any]:
        answers = [(taken * 1000, texts) for when, taken, texts in tuple(self._recent) if since < when <= now]
        p50, p99 = np.percentile([ms for ms, _ in answers], (50, 99)) if answers else (None, None)
        tokens, padded = counts["tokens"], counts["tokens"] + counts["padding"]
        return {
            "ready": self._server.ready,
            "rate": round(sum(texts for _, texts in answers) / max(now - since, 1e-3), 1),
            "p50": None if p50 is None else round(float(p50), 2),
            "p99": None if p99 is None else round(float(p99), 2),
            "queue": sum(service.batcher.sequences for service in self._server.services.values()),
            "fill": round(tokens / counts["room"], 3) if counts["room"] else None,
            "padding_avoided": round(1 - tokens / padded, 3) if padded else None,
            "refused": counts["refused"],
        }

    def _counts(self) -> dict[str, int]:
        """What all batchers have counted."""
        batchers = [service.batcher for service in self._server.services.values()]
        told = {name: sum(b.counts[name,] for b in batchers) for name in ("tokens", "padding", "room")}
        refused = sum(n for b in batchers for key, n in list(b.counts.items()) if key[0] in ("refused", "late"))
        return {**told, "refused": refused}
