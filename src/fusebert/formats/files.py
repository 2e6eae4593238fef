"""Files from outside, read with suspicion: JSON of a bounded size, tensors mapped after every offset was checked."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from fusebert.errors import FusebertError, unreadable
from fusebert.ops.graph import Array
from fusebert.values import limits

_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I8": np.int8}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file that holds an object."""
    value: dict[str, Any] = _read_json(path, dict, "an object")
    return value


def read_json_list(path: Path) -> list[Any]:
    """A JSON file that holds a list."""
    value: list[Any] = _read_json(path, list, "a list")
    return value


def _read_json(path: Path, kind: type, expected: str) -> Any:
    try:
        if path.stat().st_size > limits.JSON_BYTES:
            raise FusebertError(f"{path} is larger than {limits.JSON_BYTES >> 20} MB, the limit for such a file")
        value = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise FusebertError(f"{path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise FusebertError(f"{path} is not readable JSON: {error}") from None
    if not isinstance(value, kind):
        raise FusebertError(f"{path}: {expected} is expected, not a {type(value).__name__}")
    return value


def map_file(path: Path) -> memoryview:
    """A file's bytes, read from disk as they are touched."""
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:
        raise FusebertError(f"{path} cannot be read: {error}") from None
    mapped.madvise(mmap.MADV_RANDOM)  # a reader skips the weights, and they should not be read ahead
    return memoryview(mapped)


def release(array: Array) -> None:
    """Gives back the memory that a mapped file took up while the array was read; it can be read again."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    if isinstance(owner, mmap.mmap) and memoryview(owner).readonly:
        with suppress(OSError):  # of memory that is locked
            owner.madvise(mmap.MADV_DONTNEED)


class Tensors(Mapping[str, Array]):
    """The tensors of a safetensors file by name, mapped: reading one costs no memory of its own."""

    def __init__(self, path: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self._path = path
        try:
            with path.open("rb") as file, safe_open(path, framework="np"):  # checks the header and every offset
                length = int.from_bytes(file.read(8), "little")
                self._entries = json.loads(file.read(length))
        except OSError as error:
            raise unreadable(path, error) from None
        except (SafetensorError, ValueError) as error:
            raise FusebertError(f"{path} is not a readable safetensors file: {error}") from None
        self._entries.pop("__metadata__", None)
        self._begin = 8 + length

    def __getitem__(self, name: str) -> Array:
        entry = self._entries[name]
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise FusebertError(f"{self._path}: tensor {name} has type {entry['dtype']}; use F32, F16 or BF16")
        shape = tuple(entry["shape"])
        try:
            if 0 in shape:
                return np.empty(shape, dtype)
            array = np.memmap(self._path, dtype, "r", self._begin + entry["data_offsets"][0], shape)
        except (OSError, ValueError) as error:  # absurd sizes beside a 0, or the file changed since it was opened
            raise FusebertError(f"{self._path}: tensor {name} cannot be mapped: {error}") from None
        return np.asarray(array, np.float32 if dtype == np.float64 else None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def check_shape(path: str | Path, name: str, array: Array, shape: tuple[int | None, ...]) -> None:
    """Refuses a tensor of another shape; None stands for any size."""
    if array.ndim == len(shape) and all(want in (None, have) for have, want in zip(array.shape, shape, strict=True)):
        return
    wanted = " x ".join("any" if size is None else str(size) for size in shape)
    raise FusebertError(
        f"{path}: tensor {name} is {' x '.join(map(str, array.shape)) or 'a scalar'}, expected {wanted}"
    )
