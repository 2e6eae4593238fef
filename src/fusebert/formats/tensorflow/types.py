"""TensorFlow's element types, shapes and tensor names, and ours for them. The only table of its element types."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from fusebert.errors import FusebertError
from fusebert.values import limits

_TYPES: tuple[tuple[int, Any, str], ...] = (  # number, NumPy's type, the field that lists a tensor's elements
    (1, np.float32, "float_val"), (2, np.float64, "double_val"), (3, np.int32, "int_val"), (4, np.uint8, "int_val"),
    (5, np.int16, "int_val"), (6, np.int8, "int_val"), (9, np.int64, "int64_val"), (10, np.bool_, "bool_val"),
    (14, ml_dtypes.bfloat16, "half_val"), (17, np.uint16, "int_val"), (19, np.float16, "half_val"),
    (22, np.uint32, "uint32_val"), (23, np.uint64, "uint64_val"),
)  # fmt: skip
DTYPES: dict[int, Any] = {number: dtype for number, dtype, _ in _TYPES}
LISTED: dict[int, str] = {number: field for number, _, field in _TYPES}
STRING, RESOURCE = 7, 20  # types that NumPy does not have
NUMBERS: dict[str, int] = {np.dtype(dtype).name: number for number, dtype, _ in _TYPES} | {"qint8": 11}
_NAMES = {number: name for name, number in NUMBERS.items()}
NUMBERS["string"] = STRING  # as it is written; what is read is told by its number


@dataclass(frozen=True)
class Type:
    """An attribute's value that is an element type."""

    name: str


@cache
def dtype_name(number: int) -> str:
    """A type's name; resources, strings and others have none."""
    return _NAMES.get(number % 100, f"type {number}")  # from 100 on: references to variables of that type


def shape_of(shape: Any, where: str) -> tuple[int, ...]:
    """The shape of a tensor that has content: every size is known and together they are possible."""
    sizes = tuple(dim.size for dim in shape.dim)
    if shape.unknown_rank or len(sizes) > 32 or min(sizes, default=0) < 0 or max(sizes, default=0) > limits.ELEMENTS:
        raise FusebertError(f"{where} has an impossible shape {sizes[:8]}")
    if math.prod(sizes) > limits.ELEMENTS:
        raise FusebertError(f"{where} has an impossible shape {sizes[:8]}")
    return sizes


def declared_shape(shape: Any) -> tuple[int | None, ...] | None:
    """A shape as it is declared: unknown sizes are None, and so is an unknown rank."""
    if shape.unknown_rank:
        return None
    sizes = [dim.size for dim in shape.dim]
    return tuple(sizes) if min(sizes, default=0) >= 0 else tuple([size if size >= 0 else None for size in sizes])


def output_number(tensor: str) -> int:
    """Which of its node's outputs a tensor is: the number that its name ends with."""
    number = tensor.rpartition(":")[2]
    return int(number) if number.isdecimal() and len(number) < 10 else 0
