"""A Tensor message -> Weight: its numbers stand in the message as bytes or one by one, or in the file it came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.protobuf.wire import placed
from fusebert.formats.tensorflow.types import DTYPES, LISTED, dtype_name, shape_of
from fusebert.ops.graph import Array, Weight
from fusebert.values import limits


@dataclass(frozen=True)
class Tensors:
    """Those of one file: its bytes, and where in them the tensors are that were cut out."""

    path: str
    data: memoryview
    ranges: tuple[tuple[int, int], ...]

    def weight(self, tensor: Any, where: str) -> Weight:
        """A tensor whose numbers are read when they are asked for; `where` names its node in errors."""
        shape = shape_of(tensor.tensor_shape, where)
        dtype = DTYPES.get(tensor.dtype)
        count = math.prod(shape)
        if dtype is None:
            strings = tensor.string_val
            self._check_listed(len(strings), count, where)
            return Weight(shape, "string", lambda: _filled(np.array(list(strings) or [b""], object), shape))
        content: Any = tensor.tensor_content
        if tensor.HasField("mapped"):
            offset, length = placed(self.ranges, tensor.mapped)
            content = self.data[offset : offset + length]
        if len(content):
            size = count * np.dtype(dtype).itemsize
            if len(content) != size:
                raise FusebertError(f"{self.path}: {where} has {len(content)} bytes, but its shape needs {size}")
            return Weight(shape, dtype_name(tensor.dtype), lambda: np.frombuffer(content, dtype).reshape(shape))
        values = getattr(tensor, LISTED[tensor.dtype])
        self._check_listed(len(values), count, where)
        return Weight(shape, dtype_name(tensor.dtype), lambda: _filled(_numbers(values, tensor.dtype, dtype), shape))

    def _check_listed(self, listed: int, count: int, where: str) -> None:
        if listed > count or (listed > 1 and count - listed > limits.FILLED):
            raise FusebertError(f"{self.path}: {where} has {listed} elements, but its shape needs {count}")


def tensor_value(tensor: Any, where: str) -> Array:
    """The numbers of a Tensor message that has them all in it."""
    return Tensors(where, memoryview(b""), ()).weight(tensor, where).read()


def _numbers(values: Any, kind: int, dtype: Any) -> Array:
    """A tensor's listed elements; none stands for a zero."""
    if LISTED[kind] == "half_val":
        return np.array(list(values) or [0], np.int64).astype(np.uint16).view(dtype)
    return np.array(list(values) or [0]).astype(dtype)


def _filled(listed: Array, shape: tuple[int, ...]) -> Array:
    """All elements: the last one that is listed stands for those that are left out. A single one is not copied: the
    array is a view of it."""
    if len(listed) == 1:
        return np.broadcast_to(listed[0], shape)
    return np.concatenate([listed, np.full(math.prod(shape) - len(listed), listed[-1], listed.dtype)]).reshape(shape)
