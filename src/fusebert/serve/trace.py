"""Trace: a client's W3C trace context, which is read from its request and told back with a span of our own."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


@dataclass(frozen=True)
class Trace:
    """The span of a request: of which trace it is, below which span of its client, and its own id."""

    trace: str
    parent: str
    flags: str
    span: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def header(self) -> str:
        """What is told back as `traceparent`."""
        return f"00-{self.trace}-{self.span}-{self.flags}"

    @staticmethod
    def read(headers: Mapping[bytes, bytes]) -> Trace | None:
        """The trace that a client is in; a `traceparent` that is not one is ignored, as the standard says."""
        found = _PARENT.fullmatch(headers.get(b"traceparent", b""))
        return Trace(*(part.decode() for part in found.groups())) if found else None
