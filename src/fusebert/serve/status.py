"""Status: what a server did since it was last asked, as one line for a terminal."""

from __future__ import annotations

import numpy as np

from fusebert.serve.front import Server


class Status:
    """Reads a server's counts, and remembers them until the next look."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._before = (0, 0, 0)

    def line(self, seconds: float) -> str:
        """Texts per second, latencies, queue, how full batches were and what was refused; "" when nothing happened."""
        recent, services = self._server.metrics.recent, self._server.services.values()
        answers = [recent.popleft() for _ in range(len(recent))]
        batchers = [service.batcher for service in services]
        refused = sum(count for b in batchers for key, count in b.counts.items() if key[0] in ("refused", "late"))
        tokens, room = (sum(b.counts[what,] for b in batchers) for what in ("tokens", "room"))
        now = (tokens, room, refused)
        tokens, room, refused = (new - old for new, old in zip(now, self._before, strict=True))
        self._before = now
        waiting = sum(b.sequences for b in batchers)
        if not (answers or waiting or refused):
            return ""
        parts = [f"{sum(texts for _, texts in answers) / seconds:,.0f} texts/s"]
        if answers:
            p50, p99 = np.percentile([latency * 1000 for latency, _ in answers], (50, 99))
            parts.append(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms")
        parts.append(f"{waiting} waiting")
        if room:
            parts.append(f"batches {tokens / room:.0%} full")
        if refused:
            parts.append(f"{refused} refused")
        return ", ".join(parts)
