"""TensorFlow's tensor bundle (`variables.index` and its data files) -> weights by name, mapped rather than read.

The index is a sorted string table: a footer points to an index block, that to data blocks, those hold keys with shared
prefixes. Every offset is checked before it is followed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.files import map_file
from fusebert.formats.protobuf.wire import varint
from fusebert.formats.tensorflow.types import DTYPES, dtype_name, shape_of
from fusebert.ops.graph import Array, Weight

MAGIC = 0xDB4775248B80FB57
FOOTER = 48
_LONGEST_KEY = 4096
_SHARED = 64  # bytes of keys for each byte of the index, at most: keys share what they begin with
_FULL = -1  # the length of a slice that takes a whole axis
_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_SCHEMA = """
Header: 1 num_shards int32, 3 version Version
Version: 1 producer int32
Entry: 1 dtype int32, 2 shape Shape, 3 shard_id int32, 4 offset int64, 5 size int64, 6 crc32c fixed32, 7 slices Slice*
Shape: 2 dim Dimension*, 3 unknown_rank bool
Dimension: 1 size int64, 2 name string
Slice: 1 extent Extent*
Extent: 1 start int64, 2 length int64
ObjectGraph: 1 nodes Object*
Object: 1 children Child*, 2 attributes Attribute*
Child: 1 node_id int32, 2 local_name string
Attribute: 1 name string, 2 full_name string, 3 checkpoint_key string
"""
Cut = tuple[tuple[int, int], ...]  # a slice: where it begins and how long it is, for each axis


@cache
def kinds() -> dict[str, Any]:
    """The messages of a bundle's index."""
    from fusebert.formats.protobuf.schema import messages

    return messages("fusebert.tf_bundle", _SCHEMA)


class Bundle(Mapping[str, Weight]):
    """The tensors of a bundle by their checkpoint keys. One saved in slices is put together when it is read."""

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix
        self._index = prefix.with_name(prefix.name + ".index")
        self._entries = dict(_table(self._index))
        header = self._parse("Header", self._entries.pop(b"", b""))
        if not 1 <= header.num_shards <= 100_000:
            raise FusebertError(f"{self._index}: {header.num_shards} data files is not a number of files")
        self._shards = header.num_shards
        self._mapped: dict[int, memoryview] = {}

    def _parse(self, name: str, data: bytes) -> Any:
        from google.protobuf.message import DecodeError

        try:
            return kinds()[name].FromString(data)
        except DecodeError:
            raise FusebertError(f"{self._index}: an entry is not readable") from None

    def _where(self, key: str) -> str:
        return f"{self._index}: tensor {key}"

    def __getitem__(self, key: str) -> Weight:
        name = key.encode("utf-8", "surrogateescape")
        entry, where = self._parse("Entry", self._entries[name]), self._where(key)
        return self._joined(name, entry, where) if entry.slices else self._weight(entry, where)

    def __iter__(self) -> Iterator[str]:
        return (key.decode("utf-8", "surrogateescape") for key in self._entries if not key.startswith(b"\0"))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def part(self, key: str, spec: str) -> Weight:
        """What RestoreV2 reads: the tensor, or the slice of it that `spec` says, such as `40 30 0,20:-`."""
        if not spec:
            return self[key]
        where = f"{self._where(key)}, slice {spec!r},"
        cut = _parsed(spec, where)
        stored = self._entries.get(_slice_key(key.encode("utf-8", "surrogateescape"), cut))
        if stored is not None:
            return self._weight(self._parse("Entry", stored), where)
        whole = self[key]
        lengths = _lengths(cut, whole.shape, where)
        index = tuple(slice(start, start + size) for (start, _), size in zip(cut, lengths, strict=True))
        return Weight(lengths, whole.dtype, lambda: whole.read()[index])

    @cached_property
    def objects(self) -> Any:
        """The object graph that TensorFlow 2 saves beside the tensors; empty if there is none."""
        if _OBJECT_GRAPH not in self:
            return kinds()["ObjectGraph"]()
        entry = self._parse("Entry", self._entries[_OBJECT_GRAPH.encode()])
        return self._parse("ObjectGraph", _string(self._bytes(entry, self._where(_OBJECT_GRAPH)).tobytes()))

    def names(self) -> dict[str, str]:
        """Variable name -> checkpoint key, where that is certain: TensorFlow 1 uses names as keys, TensorFlow 2 keeps
        them in its object graph, where several objects may have the same."""
        found: dict[str, set[str]] = {key: {key} for key in self if key != _OBJECT_GRAPH}
        for node in self.objects.nodes:
            for attribute in node.attributes:
                if attribute.name == "VARIABLE_VALUE" and attribute.checkpoint_key in self:
                    found.setdefault(attribute.full_name, set()).add(attribute.checkpoint_key)
        return {name: min(keys) for name, keys in found.items() if len(keys) == 1}

    def _weight(self, entry: Any, where: str) -> Weight:
        shape = shape_of(entry.shape, where)
        dtype = DTYPES.get(entry.dtype)
        if dtype is None:
            return Weight(shape, f"type {entry.dtype}", lambda: self._refuse(where, entry.dtype))
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if entry.slices or entry.size != size:
            raise FusebertError(f"{where} has {entry.size} bytes, but its shape needs {size}")
        return Weight(shape, dtype_name(entry.dtype), lambda: self._bytes(entry, where).view(dtype).reshape(shape))

    def _joined(self, name: bytes, entry: Any, where: str) -> Weight:
        """A tensor saved in slices along one axis, as partitioned variables are."""
        shape = shape_of(entry.shape, where)
        cuts = [tuple((e.start, e.length if e.HasField("length") else _FULL) for e in s.extent) for s in entry.slices]
        placed = sorted((tuple(start for start, _ in cut), _lengths(cut, shape, where), cut) for cut in cuts)
        axis = next((i for i, size in enumerate(shape) if any(lengths[i] != size for _, lengths, _ in placed)), 0)
        parts, end = [], 0
        for starts, lengths, cut in placed:
            others = [*lengths[:axis], *lengths[axis + 1 :]]
            if not shape or starts[axis] != end or others != [*shape[:axis], *shape[axis + 1 :]]:
                raise FusebertError(f"{where} is saved in slices that do not cover it one after the other")
            stored = self._entries.get(_slice_key(name, cut))
            if stored is None:
                raise FusebertError(f"{where} has a slice at {starts[axis]} that is not in the index")
            part = self._weight(self._parse("Entry", stored), where)
            if part.shape != lengths or part.dtype != dtype_name(entry.dtype):
                raise FusebertError(f"{where} has a slice of another shape or type than the index says")
            parts.append(part)
            end += lengths[axis]
        if end != shape[axis]:
            raise FusebertError(f"{where} is saved in slices that end at {end} of {shape[axis]}")
        return Weight(shape, dtype_name(entry.dtype), lambda: self._join(parts, axis, where))

    def _join(self, parts: list[Weight], axis: int, where: str) -> Array:
        arrays = [part.read() for part in parts]
        if sum(array.nbytes for array in arrays) > sum(map(len, self._mapped.values())):
            raise FusebertError(f"{where} has slices that lie on top of each other")
        return np.concatenate(arrays, axis)

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
        return np.frombuffer(data, np.uint8, entry.size, entry.offset) if entry.size else np.empty(0, np.uint8)


def _lengths(cut: Cut, shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    """How much of each axis a slice takes; refuses one that is not inside the tensor."""
    if len(cut) != len(shape):
        raise FusebertError(f"{where} has {len(shape)} axes and a slice of {len(cut)}")
    lengths = tuple(size if length == _FULL else length for (_, length), size in zip(cut, shape, strict=True))
    for (start, _), length, size in zip(cut, lengths, shape, strict=True):
        if start < 0 or length < 1 or start + length > size:
            raise FusebertError(f"{where} has a slice from {start} to {start + length} of an axis of {size}")
    return lengths


def _parsed(spec: str, where: str) -> Cut:
    """A slice as RestoreV2 writes it: the sizes of the whole tensor, then `start,length` or `-` for each axis."""
    try:
        axes = [axis.split(",") for axis in spec.split(" ")[-1].split(":")]
        cut = tuple((0, _FULL) if axis == ["-"] else (int(axis[0]), int(axis[1])) for axis in axes)
        if len(cut) > 32 or any(abs(number) >> 63 for pair in cut for number in pair):
            raise ValueError
        return cut
    except (ValueError, IndexError):
        raise FusebertError(f"{where} is not a slice") from None


def _slice_key(name: bytes, cut: Cut) -> bytes:
    """The key of a slice: its numbers and name so that their bytes sort as they do (TensorFlow's ordered_code.cc)."""
    escaped = b"".join({0: b"\0\xff", 255: b"\xff\0"}.get(byte, bytes([byte])) for byte in name)
    rank = bytes([1, len(cut)]) if cut else b"\0"
    return b"\0" + escaped + b"\0\1" + rank + b"".join(_ordered(n) for pair in cut for n in pair)


def _ordered(number: int) -> bytes:
    """A signed number: as many leading ones as it has bytes, a zero, and the number in what is left of them."""
    count = (~number if number < 0 else number).bit_length() // 7 + 1
    ones = ((1 << count) - 1) << 7 * count
    return (number & ((1 << 8 * count) - 1) ^ ones).to_bytes(count, "big")


def _string(data: bytes) -> bytes:
    """The only element of a string tensor: its length, the length's checksum, then the bytes."""
    length, at = varint(memoryview(data), 0, len(data))
    if at + 4 + length != len(data):
        raise FusebertError("a string tensor of a bundle has another length than it says")
    return data[at + 4 :]


def _table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of a sorted string table. Blocks follow each other and keys grow: no byte counts twice."""
    data = map_file(path)
    if len(data) < FOOTER or int.from_bytes(data[-8:], "little") != MAGIC:
        raise FusebertError(f"{path} is not the index of a tensor bundle")
    footer = len(data) - FOOTER
    try:
        _, at = _handle(data, footer, len(data))
        (offset, size), _ = _handle(data, at, len(data))
        end, last, room = 0, None, _SHARED * len(data)
        for _, value in _block(data, offset, size):
            (inner, length), _ = _handle(memoryview(value), 0, len(value))
            if inner < end:
                raise FusebertError("two blocks lie on top of each other")
            end = inner + length
            for key, entry in _block(data, inner, length):
                room -= len(key)
                if (last is not None and key <= last) or room < 0:
                    raise FusebertError("keys are not in order" if room >= 0 else "keys are longer than any are")
                last = key
                yield key, entry
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
    if end < at:
        raise FusebertError("a block has more restart points than bytes")
    key = b""
    while at < end:
        shared, at = varint(data, at, end)
        fresh, at = varint(data, at, end)
        length, at = varint(data, at, end)
        if shared > len(key) or at + fresh + length > end or shared + fresh > _LONGEST_KEY:
            raise FusebertError("an entry lies beyond its block")
        key = key[:shared] + bytes(data[at : at + fresh])
        yield key, bytes(data[at + fresh : at + fresh + length])
        at += fresh + length
