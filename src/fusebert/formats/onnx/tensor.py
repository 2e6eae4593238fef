"""Array -> bytes of an ONNX TensorProto, the form in which ONNX tools keep inputs and outputs of a model."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.ops.graph import Array

_TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip


@cache
def _tensor() -> Any:
    from fusebert.formats.protobuf.schema import messages

    schema = "Tensor: 1 dims int64*, 2 data_type int32, 8 name string, 9 raw_data bytes"
    return messages("fusebert.onnx_tensor", schema)["Tensor"]


def encode(name: str, array: Array) -> bytes:
    """A tensor with its name."""
    kind = _TYPES.get(array.dtype.name)
    if kind is None:
        raise UnsupportedError(f"{name}: ONNX has no element type {array.dtype}")
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    message = _tensor()(dims=array.shape, data_type=kind, name=name, raw_data=little.tobytes())
    return bytes(message.SerializeToString())
