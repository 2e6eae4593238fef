"""TensorFlow's element types, shapes and names of tensors as ours."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from fusebert.errors import FusebertError

DTYPES: dict[int, Any] = {
    1: np.float32, 2: np.float64, 3: np.int32, 4: np.uint8, 5: np.int16, 6: np.int8, 9: np.int64, 10: np.bool_,
    14: ml_dtypes.bfloat16, 17: np.uint16, 19: np.float16, 22: np.uint32, 23: np.uint64,
}  # fmt: skip
_MOST_ELEMENTS = 1 << 40


@cache
def dtype_name(number: int) -> str:
    """A type's name; resources, strings and others have none in NumPy."""
    dtype = DTYPES.get(number % 100)  # from 100 on: references to variables of that type
    return f"type {number}" if dtype is None else np.dtype(dtype).name


def shape_of(shape: Any, where: str) -> tuple[int, ...]:
    """The shape of a tensor that has content: every size is known and together they are possible."""
    sizes = tuple(dim.size for dim in shape.dim)
    if shape.unknown_rank or len(sizes) > 32 or min(sizes, default=0) < 0 or max(sizes, default=0) > _MOST_ELEMENTS:
        raise FusebertError(f"{where} has an impossible shape {sizes[:8]}")
    if math.prod(sizes) > _MOST_ELEMENTS:
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
