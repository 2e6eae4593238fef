"""Tensors as inference protocols carry them: raw bytes or lists in, checked values out, and back."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.ops.graph import Array

_WHOLE: dict[str, np.dtype[Any]] = {"INT64": np.dtype("<i8"), "INT32": np.dtype("<i4")}
_DIMENSIONS = 8


@dataclass(frozen=True)
class Tensor:
    """A tensor with its values: an array of numbers, or for BYTES a flat list of bytes or texts."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Any


def read_tensor(name: str, datatype: str, shape: Sequence[int], content: Any) -> Tensor:
    """A tensor of texts or whole numbers from its content: bytes in the binary form, or lists, nested or flat."""
    if len(shape) > _DIMENSIONS or any(length < 0 for length in shape):
        raise FusebertError(f"{name}: a shape is up to {_DIMENSIONS} lengths, none below 0")
    if datatype == "BYTES":
        values: Any = _unpack(name, content) if isinstance(content, bytes) else _flatten(name, content)
    elif (dtype := _WHOLE.get(datatype)) is None:
        raise FusebertError(f"{name}: the datatype {datatype!r:.20} is not one of BYTES, INT64 and INT32")
    elif isinstance(content, bytes):
        if len(content) % dtype.itemsize:
            raise FusebertError(f"{name}: {len(content)} bytes are no whole number of {datatype}")
        values = np.frombuffer(content, dtype)
    else:
        values = _whole(name, content, dtype)
    size = math.prod(shape)
    if len(values) != size:
        raise FusebertError(f"{name}: {len(values)} elements, but its shape has {size}")
    return Tensor(name, datatype, tuple(shape), values if datatype == "BYTES" else values.reshape(shape))


def pack(tensor: Tensor) -> bytes:
    """A tensor's values in the binary form."""
    if tensor.datatype == "BYTES":
        return b"".join(struct.pack("<I", len(value)) + value for value in tensor.values)
    return np.ascontiguousarray(tensor.values, "<f4").tobytes()


def rank(tensor: Tensor, count: int, labels: Sequence[str]) -> Tensor:
    """The `count` best numbers of each row as `value:index:label`: the classification extension."""
    if len(tensor.shape) != 2 or count < 1:
        raise FusebertError(f"{tensor.name}: classification takes one row for each input, and a count from 1 on")
    best = np.argsort(-tensor.values, axis=1, kind="stable")[:, :count]
    words = [
        f"{row[i]:f}:{i}" + (f":{labels[i]}" if i < len(labels) else "")
        for row, order in zip(tensor.values, best.tolist(), strict=True)
        for i in order
    ]
    return Tensor(tensor.name, "BYTES", best.shape, [word.encode() for word in words])


def _unpack(name: str, content: bytes) -> list[bytes]:
    """Elements that each follow their length."""
    values, at = [], 0
    while at < len(content):
        begin = at + 4
        at = begin + int.from_bytes(content[at:begin], "little")
        if at > len(content) or begin > len(content):
            raise FusebertError(f"{name}: an element is longer than the content")
        values.append(content[begin:at])
    return values


def _flatten(name: str, content: Any) -> list[Any]:
    """The elements of lists within lists, row by row."""
    for _ in range(_DIMENSIONS):
        if not any(isinstance(value, list) for value in content):
            return list(content)
        content = [element for value in content for element in (value if isinstance(value, list) else [value])]
    raise FusebertError(f"{name}: lists are nested more than {_DIMENSIONS} deep")


def _whole(name: str, content: Any, dtype: np.dtype[Any]) -> Array:
    """Whole numbers as an array; nothing is rounded, and nothing wraps around."""
    values = _flatten(name, content)
    limit = np.iinfo(dtype)
    if not all(type(value) is int and limit.min <= value <= limit.max for value in values):
        raise FusebertError(f"{name}: whole numbers of {8 * dtype.itemsize} bits are expected")
    return np.array(values, dtype)
