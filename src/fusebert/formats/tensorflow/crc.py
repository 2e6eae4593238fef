"""CRC-32C, which TensorFlow holds every tensor of a bundle against. Python has none, so NumPy computes it: in lanes
that run side by side and are put together at the end, which a remainder of a division allows."""

from __future__ import annotations

import numpy as np

from fusebert.ops.graph import Array

_POLYNOMIAL = 0x82F63B78
_SHORT = 64  # bytes that are taken one by one
_MOST_LANES = 1 << 16
_TURNED = 64  # columns of lanes that are laid out anew at a time
_MASK = 0xA282EAD8


def masked(data: memoryview) -> int:
    """The CRC-32C of bytes as TensorFlow stores it: turned, and moved on."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def crc32c(data: memoryview) -> int:
    """The CRC-32C of bytes."""
    begun = _apply(_zeros(len(data)), np.array([0xFFFFFFFF], np.uint32))
    return int(begun[0] ^ np.uint32(_remainder(data))) ^ 0xFFFFFFFF


def _remainder(data: memoryview) -> int:
    """What is left of bytes alone."""
    if len(data) < _SHORT:
        state = 0
        for byte in data:
            state = state >> 8 ^ int(_TABLES[3][(state ^ byte) & 0xFF])
        return state
    lanes = min(_MOST_LANES, 1 << (len(data) // _SHORT).bit_length() - 1)
    words = len(data) // (4 * lanes)
    head, rest = data[: 4 * words * lanes], data[4 * words * lanes :]
    rows: Array = np.zeros(lanes, np.uint32)
    grid = np.frombuffer(head, "<u4").reshape(lanes, words)
    for begin in range(0, words, _TURNED):
        for column in np.ascontiguousarray(grid[:, begin : begin + _TURNED].T):
            rows = _apply(_TABLES, rows ^ column)
    return int(_apply(_zeros(len(rest)), _joined(rows, 4 * words))[0] ^ np.uint32(_remainder(rest)))


def _joined(state: Array, size: int) -> Array:
    """One remainder of lanes of so many bytes, which follow each other."""
    behind = _zeros(size)
    while len(state) > 1:
        state = _apply(behind, state[::2]) ^ state[1::2]
        behind = _apply(behind, behind)
    return state


def _zeros(count: int) -> Array:
    """What so many zero bytes make of a remainder: a linear map, as a table for each of its four bytes."""
    made, power = _SAME, _ONE
    while count:
        made = _apply(power, made) if count & 1 else made
        power, count = _apply(power, power), count >> 1
    return made


def _apply(tables: Array, state: Array) -> Array:
    made: Array = tables[0][state & np.uint32(0xFF)]
    for i in range(1, 4):
        made = made ^ tables[i][state >> np.uint32(8 * i) & np.uint32(0xFF)]
    return made


def _make_tables() -> tuple[Array, Array, Array]:
    """The map that changes nothing, that of one zero byte, and that of a word that was added."""
    bytes_ = np.arange(256, dtype=np.uint32)
    same = np.stack([bytes_ << np.uint32(8 * i) for i in range(4)])
    one = bytes_.copy()
    for _ in range(8):
        one = np.where(one & 1, one >> np.uint32(1) ^ np.uint32(_POLYNOMIAL), one >> np.uint32(1))
    step = np.stack([one, *(bytes_ << np.uint32(8 * i) for i in range(3))])
    word = same
    for _ in range(4):
        word = _apply(step, word)
    return same, step, word


_SAME, _ONE, _TABLES = _make_tables()
