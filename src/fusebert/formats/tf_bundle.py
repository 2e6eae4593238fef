"""TensorFlow's tensor bundle (`variables.index` and its data files) -> weights by name, mapped rather than read.

The index is a sorted string table: a footer points to an index block, that to data blocks, those hold keys with shared
prefixes. Every offset is checked before it is followed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.files import map_file
from fusebert.formats.tf_types import DTYPES, shape_of
from fusebert.formats.wire import varint
from fusebert.graph import Array, Weight

_MAGIC = 0xDB4775248B80FB57
_FOOTER = 48
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SCHEMA = """
Header: 1 num_shards int32
Entry: 1 dtype int32, 2 shape Shape, 3 shard_id int32, 4 offset int64, 5 size int64, 7 slices Slice*
Shape: 2 dim Dimension*, 3 unknown_rank bool
Dimension: 1 size int64, 2 name string
Slice: 1 extent bytes*
ObjectGraph: 1 nodes Object*
Object: 2 attributes Attribute*
Attribute: 1 name string, 2 full_name string, 3 checkpoint_key string
"""


@cache
def _messages() -> dict[str, Any]:
    from fusebert.formats.schema import messages

    return messages("fusebert.tf_bundle", _SCHEMA)


class Bundle(Mapping[str, Weight]):
    """The tensors of a bundle by their checkpoint keys; `by_variable` by the names of the variables they belong to."""

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._index = prefix.with_name(prefix.name + ".index")
        entries = dict(_table(self._index))
        header = self._parse("Header", entries.pop(b"", b""))
        if not 1 <= header.num_shards <= 100_000:
            raise FusebertError(f"{self._index}: {header.num_shards} data files is not a number of files")
        self._shards = header.num_shards
        self._entries = {key.decode("utf-8", "replace"): value for key, value in entries.items()}
        self._mapped: dict[int, memoryview] = {}

    def _parse(self, name: str, data: bytes) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return _messages()[name].FromString(data)
        except DecodeError:
            raise FusebertError(f"{self._index}: an entry is not readable") from None

    def __getitem__(self, key: str) -> Weight:
        entry = self._parse("Entry", self._entries[key])
        where = f"{self._index}: tensor {key}"
        shape = shape_of(entry.shape, where)
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            return Weight(shape, f"type {entry.dtype}", lambda: self._refuse(where, entry.dtype))
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if entry.slices or entry.size != size:
            raise FusebertError(f"{where} has {entry.size} bytes, but its shape needs {size}")
        return Weight(shape, np.dtype(dtype).name, lambda: self._bytes(entry, where).view(dtype).reshape(shape))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def by_variable(self) -> dict[str, Weight]:
        """Variables by name: TensorFlow 1 names its tensors so, TensorFlow 2 keeps the names in its object graph."""
        names = {key: key for key in self if key != _OBJECT_GRAPH}
        if _OBJECT_GRAPH in self._entries:
            entry = self._parse("Entry", self._entries[_OBJECT_GRAPH])
            data = bytes(self._bytes(entry, f"{self._index}: tensor {_OBJECT_GRAPH}"))
            graph = self._parse("ObjectGraph", _string(data))
            for node in graph.nodes:
                for attribute in node.attributes:
                    if attribute.name == "VARIABLE_VALUE" and attribute.checkpoint_key in self._entries:
                        names[attribute.full_name] = attribute.checkpoint_key
        return {name: self[key] for name, key in names.items()}

    def _refuse(self, where: str, dtype: int) -> Array:
        raise FusebertError(f"{where} has element type {dtype}, which is not supported")

    def _bytes(self, entry: Any, where: str) -> Array:
        if not 0 <= entry.shard_id < self._shards:
            raise FusebertError(f"{where} is in data file {entry.shard_id} of {self._shards}")
        if entry.shard_id not in self._mapped:
            name = f"{self._prefix.name}.data-{entry.shard_id:05d}-of-{self._shards:05d}"
            self._mapped[entry.shard_id] = map_file(self._prefix.with_name(name))
        data = self._mapped[entry.shard_id]
        if entry.offset < 0 or entry.size < 0 or entry.offset + entry.size > len(data):
            raise FusebertError(f"{where} lies beyond the end of its data file")
        array = np.frombuffer(data, np.uint8, entry.size, entry.offset) if entry.size else np.empty(0, np.uint8)
        return array if array.ctypes.data % 8 == 0 else array.copy()


def _string(data: bytes) -> bytes:
    """The only element of a string tensor: its length, the length's checksum, then the bytes."""
    length, at = varint(memoryview(data), 0, len(data))
    if at + 4 + length != len(data):
        raise FusebertError("a string tensor of a bundle has another length than it says")
    return data[at + 4 :]


def _table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a sorted string table."""
    data = map_file(path)
    if len(data) < _FOOTER or int.from_bytes(data[-8:], "little") != _MAGIC:
        raise FusebertError(f"{path} is not the index of a tensor bundle")
    footer = len(data) - _FOOTER
    try:
        _, at = _handle(data, footer, len(data))
        (offset, size), _ = _handle(data, at, len(data))
        for _, value in _block(data, offset, size):
            (inner, length), _ = _handle(memoryview(value), 0, len(value))
            yield from _block(data, inner, length)
    except FusebertError as error:
        raise FusebertError(f"{path} is not a readable bundle index: {error}") from None


def _handle(data: memoryview, at: int, end: int) -> tuple[tuple[int, int], int]:
    offset, at = varint(data, at, end)
    size, at = varint(data, at, end)
    return (offset, size), at


def _block(data: memoryview, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Entries: shared key bytes, new key bytes, value bytes; then restart points, which a reader in order ignores."""
    if offset + size + 5 > len(data) or size < 4:
        raise FusebertError("a block lies beyond the end")
    if data[offset + size] != 0:
        raise FusebertError("a block is compressed, which TensorFlow does not do here")
    restarts = int.from_bytes(data[offset + size - 4 : offset + size], "little")
    at, end = offset, offset + size - 4 - 4 * restarts
    key = b""
    while at < end:
        shared, at = varint(data, at, end)
        fresh, at = varint(data, at, end)
        length, at = varint(data, at, end)
        if shared > len(key) or at + fresh + length > end:
            raise FusebertError("an entry lies beyond its block")
        key = key[:shared] + bytes(data[at : at + fresh])
        yield key, bytes(data[at + fresh : at + fresh + length])
        at += fresh + length
