"""Pattern: a Pattern message indexed by name; the results of a search for it (occurrences and refused candidates); and
the files of Patterns, Recipes and NodeDefs, text or binary, recognised by content. The messages are those of the
earlier tools (proto3, package model_modifier) with additional fields: the nodes at a pattern's inputs, and the output
that replaces each seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, unreadable
from fusebert.formats import write
from fusebert.formats.tensorflow.messages import message
from fusebert.formats.tensorflow.scope import Edge, Node, Scope, read_nodes
from fusebert.recipes.equivalence import PASSTHROUGH
from fusebert.values import limits

DIGEST = "_sha256"  # the attribute with the digest of a large constant


@dataclass(frozen=True)
class Occurrence:
    """An occurrence of a pattern: pattern node -> node, pattern tensor -> tensor, the passthrough nodes between them,
    and nodes outside the pattern, such as shape arithmetic, whose results nothing reads."""

    scope: Scope = field(repr=False)
    nodes: Mapping[str, str]
    inputs: Mapping[Edge, Edge]
    passed: frozenset[str]
    unread: frozenset[str]

    @property
    def inside(self) -> set[str]:
        """Every node that the replacement removes."""
        return {*self.nodes.values(), *self.passed}


@dataclass(frozen=True)
class Refusal:
    """A candidate that is not an occurrence: how many nodes matched, the node where matching stopped, and the
    reason."""

    where: str
    seed: str
    matched: int
    of: int
    pattern_node: str
    node: str
    reason: str

    def __str__(self) -> str:
        at = f"{self.node} (in the pattern {self.pattern_node})" if self.pattern_node else self.node
        matched = f"{self.matched} of {self.of} nodes match"
        return f"{self.where}: backwards from {self.seed} {matched}, up to {at}: {self.reason}"


@dataclass(frozen=True)
class Output:
    """The output of the new node that replaces a seed: its name, its index under that name, its number among all."""

    name: str
    index: int
    number: int


class Pattern:
    """A Pattern message, indexed. `free` inputs may be any constant, because the recipe's node reads them."""

    def __init__(self, made: Any, free: Iterable[str] = ()) -> None:
        self.nodes = read_nodes((*made.seed_nodes, *made.internal_nodes), "the pattern")
        self.seeds = [node.name for node in made.seed_nodes]
        if not self.seeds:
            raise FusebertError("the pattern has no seed node; extract it again with -s")
        self.sources = {one.name: one for one in made.input_nodes}
        self.free = set(free)
        self.inputs = list(
            dict.fromkeys(e for node in self.nodes.values() for e in node.inputs if e.node not in self.nodes)
        )
        read = {edge.node for node in self.nodes.values() for edge in node.inputs}
        self.heights = heights(self.nodes)
        self.roots = [name for name in self.seeds if name not in read] or self.seeds[-1:]

    @cached_property
    def constants(self) -> dict[str, Any]:
        """The inputs that must equal a given constant."""
        return {name: one for name, one in self.sources.items() if one.op == "Const" and name not in self.free}


def heights(nodes: Mapping[str, Node]) -> dict[str, int]:
    """The longest path of nodes below each node, passthrough nodes not counted; inside a loop it is a lower bound."""
    found: dict[str, int] = {}
    for first in nodes:
        path = [first]
        while path:
            name = path[-1]
            below = [edge.node for edge in nodes[name].inputs if edge.node in nodes]
            if name not in found:
                found[name] = 0  # on the way
                path += [other for other in below if other not in found]
            else:
                path.pop()
                own = nodes[name].op not in PASSTHROUGH
                found[name] = max(found[name], own + max((found[other] for other in below), default=0))
    return found


def load(path: str | Path, name: str) -> Any:
    """The message in a file; raises if the file is empty or holds another message."""
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    path = Path(path)
    try:
        if path.stat().st_size > limits.MESSAGE_BYTES:
            raise FusebertError(f"{path} is larger than {limits.MESSAGE_BYTES >> 20} MB, too large for a {name}")
        data = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    made = message(name)
    try:
        if is_text(data):
            text_format.Parse(data, made)
        else:
            made.ParseFromString(data)
    except (DecodeError, text_format.ParseError, ValueError, RecursionError) as error:
        raise FusebertError(f"{path} is not a readable {name}: {error}") from None
    _check(path, name, made)
    return made


def is_text(data: bytes) -> bool:
    """Whether bytes are a message in text form: the field numbers of the binary form are control characters."""
    begin = data[:4096]
    return not any(byte < 32 and byte not in b"\t\n\r" for byte in begin) and b":" in begin


def _check(path: Path, name: str, made: Any) -> None:
    wanted = {"Pattern": ("seed_nodes",), "Recipe": ("source_pattern", "target_node"), "NodeDef": ("name", "op")}[name]
    for key in wanted:
        if not (len(made.seed_nodes) if key == "seed_nodes" else made.HasField(key)):
            raise FusebertError(f"{path} is not a {name}: it has no {key}")
    for node in _nodes(name, made):
        for entry in node.attr:
            tensors = [*entry.value.list.tensor, *([entry.value.tensor] if entry.value.HasField("tensor") else [])]
            if any(tensor.HasField("mapped") for tensor in tensors):
                raise FusebertError(f"{path}: unknown field in attribute {entry.key} of {node.name}")


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
    """Writes a message, as text if the name ends in .pbtxt, else in binary. Only a file of the same kind is
    replaced."""

    def same_kind(there: Path) -> bool:
        with suppress(FusebertError):
            return load(there, made.DESCRIPTOR.name) is not None
        return False

    with write.file(path, same_kind if overwrite else None) as file:
        file.write(to_text(made).encode() if path.suffix == ".pbtxt" else made.SerializeToString())
