"""Limits: how much a file from outside may ask for, all in one place: bytes, nodes, numbers and time. No model comes
near them. How much of a name an error repeats stands in errors.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fusebert.errors import FusebertError

JSON_BYTES = 64 << 20
TABLE_BYTES = 1 << 30  # of a file of labelled texts, which is read at once
RANGES_BYTES = 16 << 20
LINE_BYTES = 64 << 20  # of a data set that is read row by row
MESSAGE_BYTES = 512 << 20  # of a protobuf message without its weights, or as text
MESSAGE_FIELDS = 4_000_000  # that are looked at: nodes, weights and their parts
MESSAGE_DEPTH = 100  # messages within messages, protobuf's own limit
NODES = 1_000_000  # of a graph, and of one whose calls are put in place
ELEMENTS = 1 << 40  # of a tensor that a file describes
FILLED = 1 << 28  # elements that a constant leaves out, after several that it lists
NUMBERS = 1 << 24  # in anything that is computed to understand a graph
TEXT_GROWTH = 1024  # times that a tokenizer makes a text longer; sentencepiece models reach about 130
_SECONDS, _SECONDS_A_NODE = 3.0, 0.002  # of this thread's processor; a node takes 0.00002 on a machine of 2023

_end: ContextVar[float | None] = ContextVar("_end", default=None)


@contextmanager
def patience(nodes: int) -> Iterator[None]:
    """Bounds the processor time of what is done inside for a graph of so many nodes, where it calls `spend`."""
    if _end.get() is not None:
        yield
        return
    token = _end.set(time.thread_time() + _SECONDS + _SECONDS_A_NODE * nodes)
    try:
        yield
    finally:
        _end.reset(token)


def spend() -> None:
    """Raises FusebertError if the time is used up."""
    end = _end.get()
    if end is not None and time.thread_time() > end:
        raise FusebertError(
            "this graph takes far longer to understand than any of its size, as a damaged one may; export it again"
        )
