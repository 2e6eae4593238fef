"""Protobuf bytes without their large payloads: a mapped file in, a small message and a list of cut-out ranges out.

Weights are nearly all of a model file. They are found by walking the encoded fields and left where they are, so that
the rest can be parsed in a moment and a weight is read only when somebody wants its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusebert.errors import FusebertError

CUT = "cut"
MAPPED = 536870911  # the largest field number: holds the index of the range that was cut out
_SMALL = 1024  # bytes: not worth cutting
_DEEPEST = 100  # messages within messages, protobuf's own limit

# For each message the fields to look into: another message's name, or CUT for bytes that may be large.
Grammar = Mapping[str, Mapping[int, str]]


@dataclass(frozen=True)
class Skeleton:
    """A message without its large payloads, and where those are in the file: (offset, length)."""

    message: bytes
    ranges: tuple[tuple[int, int], ...]


def cut(data: memoryview, grammar: Grammar, message: str) -> Skeleton:
    """Walks an encoded message; raises FusebertError where the bytes are not protobuf."""
    ranges: list[tuple[int, int]] = []
    pieces: list[bytes] = []
    _walk(data, 0, len(data), grammar, message, pieces, ranges, 0)
    return Skeleton(b"".join(pieces), tuple(ranges))


def _walk(
    data: memoryview,
    at: int,
    end: int,
    grammar: Grammar,
    message: str,
    pieces: list[bytes],
    ranges: list[tuple[int, int]],
    depth: int,
) -> None:
    if depth > _DEEPEST:
        raise FusebertError("messages are nested too deeply")
    fields = grammar[message]
    kept = at  # everything before this has been put into pieces
    while at < end:
        start = at
        tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == MAPPED:
            raise FusebertError("a field has a number that no model uses")
        if kind != 2:
            at = _skip(data, at, end, kind)
            continue
        length, at = varint(data, at, end)
        if length > end - at:
            raise FusebertError("a field is longer than its message")
        inner = fields.get(number)
        if inner is not None and length > _SMALL:
            pieces.append(bytes(data[kept:start]))
            if inner == CUT:
                pieces += [_encoded(MAPPED << 3), _encoded(len(ranges))]
                ranges.append((at, length))
            else:
                inside: list[bytes] = []
                _walk(data, at, at + length, grammar, inner, inside, ranges, depth + 1)
                pieces += [_encoded(tag), _encoded(sum(map(len, inside))), *inside]
            kept = at + length
        at += length
    pieces.append(bytes(data[kept:end]))


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
