"""Shrink: a file with a finding -> the smallest that still has it, found by leaving parts out: fields of protobuf
messages, parts of JSON, bytes of anything else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from fuzz.mutate import fields, joined

_ROUNDS = 8
_MOST = 4096  # parts of one size that are tried


def shrink(data: bytes, still: Callable[[bytes], bool]) -> bytes:
    """The smallest file found for which `still` is true."""
    for _ in range(_ROUNDS):
        before = len(data)
        for smaller in (_wire, _json, _bytes):
            data = smaller(data, still)
        if len(data) == before:
            break
    return data


def _wire(data: bytes, still: Callable[[bytes], bool]) -> bytes:
    whole = fields(data)
    if not whole:
        return data
    queue = [whole]
    while queue:
        level = queue.pop(0)
        for begin, end in _runs(len(level)):
            taken = level[begin:end]
            if taken and all(taken):
                level[begin:end] = [None] * len(taken)  # type: ignore[list-item]
                if not still(joined(whole)):
                    level[begin:end] = taken
        level[:] = [one for one in level if one]
        queue += [one.inside for one in level if one.inside]
    return joined(whole)


def _json(data: bytes, still: Callable[[bytes], bool]) -> bytes:
    try:
        value = json.loads(data)
    except ValueError:
        return data
    queue: list[Any] = [value] if isinstance(value, dict | list) else []
    while queue:
        inner = queue.pop(0)
        for key in list(inner) if isinstance(inner, dict) else range(len(inner) - 1, -1, -1):
            taken = inner.pop(key)
            if not still(json.dumps(value).encode()):
                inner.__setitem__(key, taken) if isinstance(inner, dict) else inner.insert(key, taken)
        queue += [one for one in (inner.values() if isinstance(inner, dict) else inner) if isinstance(one, dict | list)]
    shorter = json.dumps(value).encode()
    return shorter if still(shorter) else data


def _bytes(data: bytes, still: Callable[[bytes], bool]) -> bytes:
    size = len(data)
    while size >= 1:
        if len(data) // size <= _MOST:  # from the end, so that places before it stay
            for begin in range((len(data) - 1) // size * size, -1, -size):
                if still(smaller := data[:begin] + data[begin + size :]):
                    data = smaller
        size //= 2
    return data


def _runs(count: int) -> Iterator[tuple[int, int]]:
    """Ranges to try: halves, quarters, and so on down to single ones."""
    size = count
    while size >= 1:
        if count // size <= _MOST:
            yield from ((at, min(at + size, count)) for at in range(0, count, size))
        size //= 2
