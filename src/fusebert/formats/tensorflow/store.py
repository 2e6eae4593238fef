"""Store: weights by name -> a tensor bundle, the files in which TensorFlow keeps variables. bundle.py reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fusebert.formats.tensorflow.bundle import FOOTER, MAGIC, kinds
from fusebert.formats.tensorflow.crc import masked
from fusebert.formats.tensorflow.types import NUMBERS
from fusebert.ops.graph import Weight

_UNCOMPRESSED = b"\0"


def write_bundle(prefix: Path, weights: Mapping[str, Weight]) -> None:
    """Writes `PREFIX.index` and its only data file."""
    header = kinds()["Header"](num_shards=1)
    header.version.producer = 1
    entries = {b"": header.SerializeToString()}
    prefix.parent.mkdir(exist_ok=True)
    with prefix.with_name(f"{prefix.name}.data-00000-of-00001").open("wb") as file:
        for name in sorted(weights, key=str.encode):
            weight = weights[name]
            data = np.ascontiguousarray(weight.read()).reshape(-1).view(np.uint8).data
            entry = kinds()["Entry"](
                dtype=NUMBERS[weight.dtype], offset=file.tell(), size=len(data), crc32c=masked(data)
            )
            entry.shape.SetInParent()
            for size in weight.shape:
                entry.shape.dim.add(size=size)
            file.write(data)
            entries[name.encode()] = entry.SerializeToString()
    prefix.with_name(f"{prefix.name}.index").write_bytes(_table(entries))


def _table(entries: Mapping[bytes, bytes]) -> bytes:
    """A sorted string table of one block: the block, one of metadata, which is empty, their index, and the footer."""
    parts: list[bytes] = []
    handles: list[bytes] = []
    data = _block(entries)
    for block in (data, _block({}), b""):
        block = block or _block({max(entries): handles[0]})
        handles.append(_varint(sum(map(len, parts))) + _varint(len(block)))
        parts += [block, _UNCOMPRESSED, masked(memoryview(block + _UNCOMPRESSED)).to_bytes(4, "little")]
    footer = (handles[1] + handles[2]).ljust(FOOTER - 8, b"\0") + MAGIC.to_bytes(8, "little")
    return b"".join([*parts, footer])


def _block(entries: Mapping[bytes, bytes]) -> bytes:
    """Entries that share nothing with the one before, and the only place to begin."""
    written = b"".join(
        _varint(0) + _varint(len(key)) + _varint(len(value)) + key + value for key, value in entries.items()
    )
    return written + (0).to_bytes(4, "little") + (1).to_bytes(4, "little")


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])
