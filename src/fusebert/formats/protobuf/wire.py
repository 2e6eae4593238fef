"""Protobuf bytes without their large payloads: a mapped file in, a small message and a list of cut-out ranges out.

Weights are nearly all of a model file. They are found by walking the encoded fields and left where they are, so that
the rest can be parsed in a moment and a weight is read only when somebody wants its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fusebert.errors import FusebertError
from fusebert.values import limits

CUT = "cut"
MAPPED = 536870911  # the largest field number: holds the index of the range that was cut out
_SMALL = 1024  # bytes: not worth cutting

# For each message the fields to look into: another message's name, or CUT for bytes that may be large.
Grammar = Mapping[str, Mapping[int, str]]
Payload = bytes | memoryview


@dataclass(frozen=True)
class Skeleton:
    """A message without its large payloads, and where those are in the file: (offset, length)."""

    message: bytes
    ranges: tuple[tuple[int, int], ...]


def cut(data: memoryview, grammar: Grammar, message: str) -> Skeleton:
    """Walks an encoded message; raises FusebertError where the bytes are not protobuf, or more than a model has."""
    cutter = _Cutter(data, grammar)
    pieces = cutter.walk(0, len(data), message, 0)
    if sum(map(len, pieces)) > limits.MESSAGE_BYTES:
        raise FusebertError(f"it has more than {limits.MESSAGE_BYTES >> 20} MB without its weights, which no model has")
    return Skeleton(b"".join(pieces), tuple(cutter.ranges))


class _Cutter:
    """What is being walked, and what was found so far."""

    def __init__(self, data: memoryview, grammar: Grammar) -> None:
        self._data, self._grammar = data, grammar
        self._fields = 0
        self.ranges: list[tuple[int, int]] = []

    def walk(self, at: int, end: int, message: str, depth: int) -> list[bytes | memoryview]:
        """The message without what is cut out, in pieces."""
        if depth > limits.MESSAGE_DEPTH:
            raise FusebertError("messages are nested too deeply")
        data, fields = self._data, self._grammar[message]
        pieces: list[bytes | memoryview] = []
        kept = at  # everything before this has been put into pieces
        while at < end:
            start = at
            tag, at = varint(data, at, end)
            number, kind = tag >> 3, tag & 7
            self._fields += 1
            if number == MAPPED:
                raise FusebertError("a field has a number that no model uses")
            if self._fields > limits.MESSAGE_FIELDS:
                raise FusebertError(f"it has more than {limits.MESSAGE_FIELDS} nodes and weights, which no model has")
            if kind != 2:
                at = _skip(data, at, end, kind)
                continue
            length, at = varint(data, at, end)
            if length > end - at:
                raise FusebertError("a field is longer than its message")
            inner = fields.get(number)
            if inner is not None and length > _SMALL:
                pieces.append(data[kept:start])
                if inner == CUT:
                    pieces += [_encoded(MAPPED << 3), _encoded(len(self.ranges))]
                    self.ranges.append((at, length))
                else:
                    inside = self.walk(at, at + length, inner, depth + 1)
                    pieces += [_encoded(tag), _encoded(sum(map(len, inside))), *inside]
                kept = at + length
            at += length
        pieces.append(data[kept:end])
        return pieces


def varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """A number and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise FusebertError("the bytes end in the middle of a number")


def _skip(data: memoryview, at: int, end: int, kind: int) -> int:
    if kind == 0:
        return varint(data, at, end)[1]
    size = {1: 8, 5: 4}.get(kind)
    if size is None or size > end - at:
        raise FusebertError("the bytes are not a protobuf message")
    return at + size


def _encoded(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


_Part = TypeVar("_Part")


def placed(parts: Sequence[_Part], number: int) -> _Part:
    """What was cut out under a number; a file may have such numbers of its own."""
    if not 0 <= number < len(parts):
        raise FusebertError("a weight stands in a field that no model uses")
    return parts[number]


def fill(message: bytes, grammar: Grammar, name: str, payloads: Sequence[Payload]) -> list[Payload]:
    """The inverse of `cut`: a message whose cut-out places are filled again, in pieces to write one after another."""
    return _filled(memoryview(message), 0, len(message), grammar, name, payloads)


def _filled(
    data: memoryview, at: int, end: int, grammar: Grammar, name: str, payloads: Sequence[Payload]
) -> list[Payload]:
    fields = grammar[name]
    pieces: list[Payload] = []
    kept = at
    while at < end:
        start = at
        tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == MAPPED:
            index, at = varint(data, at, end)
            place = next((field for field, inner in fields.items() if inner == CUT), MAPPED)
            payload = placed(payloads, index if place != MAPPED else -1)
            pieces += [data[kept:start], _encoded(place << 3 | 2), _encoded(len(payload)), payload]
            kept = at
        elif kind != 2:
            at = _skip(data, at, end, kind)
        else:
            length, at = varint(data, at, end)
            inner = fields.get(number)
            if inner is not None and inner != CUT:
                inside = _filled(data, at, at + length, grammar, inner, payloads)
                pieces += [data[kept:start], _encoded(tag), _encoded(sum(map(len, inside))), *inside]
                kept = at + length
            at += length
    pieces.append(data[kept:end])
    return pieces
