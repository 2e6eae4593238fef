"""Array -> bytes of an ONNX TensorProto, the form in which ONNX tools keep inputs and outputs of a model."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.formats.onnx.types import NUMBERS
from fusebert.ops.graph import Array


@cache
def _tensor() -> Any:
    from fusebert.formats.protobuf.schema import messages

    schema = "Tensor: 1 dims int64*, 2 data_type int32, 8 name string, 9 raw_data bytes"
    return messages("fusebert.onnx_tensor", schema)["Tensor"]


def encode(name: str, array: Array) -> bytes:
    """A tensor with its name."""
    kind = NUMBERS.get(array.dtype.name)
    if kind is None:
        raise UnsupportedError(f"{name}: ONNX has no element type {array.dtype}")
    little = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
    message = _tensor()(dims=array.shape, data_type=kind, name=name, raw_data=little.tobytes())
    return bytes(message.SerializeToString())
