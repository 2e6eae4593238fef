"""Pattern, Recipe and NodeDef files: text or binary, told by content. The messages are those of the earlier tools
(proto3, package model_modifier) with more fields: what stands at a pattern's inputs, and which output takes which
seed's place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats import write
from fusebert.formats.tensorflow.messages import message

DIGEST = "_sha256"  # the attribute that stands for a large constant's bytes
_LARGEST = 512 << 20


def load(path: str | Path, name: str) -> Any:
    """A message of a file; an empty one is refused."""
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    path = Path(path)
    try:
        if path.stat().st_size > _LARGEST:
            raise FusebertError(f"{path} is larger than {_LARGEST >> 20} MB, which no {name} is")
        data = path.read_bytes()
    except OSError as error:
        raise FusebertError(f"{path} cannot be read: {error}") from None
    made = message(name)
    try:
        if is_text(data):
            text_format.Parse(data, made)
        else:
            made.ParseFromString(data)
    except (DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise FusebertError(f"{path} is not a readable {name}: {error}") from None
    _check(path, name, made)
    return made


def is_text(data: bytes) -> bool:
    """Whether bytes are a message's text: binary ones have control characters, if only for the number of a field."""
    begin = data[:4096]
    return not any(byte < 32 and byte not in b"\t\n\r" for byte in begin) and b":" in begin


def _check(path: Path, name: str, made: Any) -> None:
    wanted = {"Pattern": ("seed_nodes",), "Recipe": ("source_pattern", "target_node"), "NodeDef": ("name", "op")}[name]
    for field in wanted:
        if not (len(made.seed_nodes) if field == "seed_nodes" else made.HasField(field)):
            raise FusebertError(f"{path} is not a {name}: it has no {field}")
    for node in _nodes(name, made):
        for entry in node.attr:
            tensors = [*entry.value.list.tensor, *([entry.value.tensor] if entry.value.HasField("tensor") else [])]
            if any(tensor.HasField("mapped") for tensor in tensors):
                raise FusebertError(f"{path}: attribute {entry.key} of {node.name} has a field that no tensor has")


def _nodes(name: str, made: Any) -> Iterator[Any]:
    if name == "NodeDef":
        yield made
    elif name == "Recipe":
        yield made.target_node
        yield from _nodes("Pattern", made.source_pattern)
    else:
        yield from (*made.seed_nodes, *made.internal_nodes, *made.input_nodes)


def to_text(made: Any) -> str:
    """A message as text."""
    from google.protobuf import text_format

    return text_format.MessageToString(made)


def save(path: Path, made: Any, overwrite: bool = False) -> None:
    """Writes a message: as text where the name ends in .pbtxt, else in binary. Only one of its kind is replaced."""

    def same_kind(there: Path) -> bool:
        with suppress(FusebertError):
            return load(there, made.DESCRIPTOR.name) is not None
        return False

    with write.file(path, same_kind if overwrite else None) as file:
        file.write(to_text(made).encode() if path.suffix == ".pbtxt" else made.SerializeToString())
