"""ONNX's element types: their numbers, NumPy's types for them, and the field that lists a tensor's elements."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_TYPES: tuple[tuple[int, Any, str], ...] = (
    (1, np.float32, "float_data"), (2, np.uint8, "int32_data"), (3, np.int8, "int32_data"),
    (4, np.uint16, "int32_data"), (5, np.int16, "int32_data"), (6, np.int32, "int32_data"), (7, np.int64, "int64_data"),
    (9, np.bool_, "int32_data"), (10, np.float16, "int32_data"), (11, np.float64, "double_data"),
    (12, np.uint32, "uint64_data"), (13, np.uint64, "uint64_data"), (16, ml_dtypes.bfloat16, "int32_data"),
)  # fmt: skip
STRING = 8  # a type that NumPy does not have
DTYPES: dict[int, Any] = {number: dtype for number, dtype, _ in _TYPES}
LISTED: dict[int, str] = {number: field for number, _, field in _TYPES}
NAMES: dict[int, str] = {number: np.dtype(dtype).name for number, dtype, _ in _TYPES}
NUMBERS: dict[str, int] = {name: number for number, name in NAMES.items()}
