"""Scope: the nodes of one main graph, function or pattern, indexed by name: which node reads which output of which
other, and which nodes must stay because something outside names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusebert.errors import FusebertError, suggest
from fusebert.formats.tensorflow.bert_op import OUTPUTS

# Operations with several named outputs: where each begins. All others have one, which may be a list.
_OUTPUTS: dict[str, tuple[str, ...]] = {
    **OUTPUTS,
    "TopKV2": ("values", "indices"), "Unique": ("y", "idx"), "UniqueV2": ("y", "idx"),
    "UniqueWithCounts": ("y", "idx", "count"), "Switch": ("output_false", "output_true"),
    "Merge": ("output", "value_index"), "RefSwitch": ("output_false", "output_true"),
    "SparseReshape": ("output_indices", "output_shape"),
    "FusedBatchNormV3": ("y", "batch_mean", "batch_variance", "reserve_space_1", "reserve_space_2", "reserve_space_3"),
}  # fmt: skip
_SHAPES = frozenset((  # compute shapes, or lay out what is there: of no use where nobody reads them
    "Shape", "ShapeN", "Size", "Rank", "StridedSlice", "Slice", "Pack", "Unpack", "Prod", "GatherV2", "ConcatV2",
    "Cast", "Reshape", "Squeeze", "ExpandDims", "Const", "Mul", "Add", "AddV2", "Sub", "Range",
))  # fmt: skip
_LONGEST_CHAIN = 1000  # nodes of shape arithmetic that one tensor leads to


@dataclass(frozen=True)
class Edge:
    """A tensor as an input names it: the node or argument that makes it, and which of its outputs it is. `output` is
    the output's name, which only functions use."""

    node: str
    output: str = ""
    index: int = 0

    @staticmethod
    def of(text: str) -> Edge:
        """`x`, `x:1`, or `x:output:1` inside a function."""
        node, *port = text.split(":")
        try:
            return Edge(node, port[0] if len(port) > 1 else "", int(port[-1]) if port else 0)
        except ValueError:
            raise FusebertError(f"{text!r} is not the name of a tensor") from None

    @property
    def text(self) -> str:
        """As an input is written; output 0 of a main graph's node has no number."""
        if self.output:
            return f"{self.node}:{self.output}:{self.index}"
        return f"{self.node}:{self.index}" if self.index else self.node

    def number(self, op: str) -> int:
        """Which of all of a node's outputs it is."""
        names = _OUTPUTS.get(op, ())
        return self.index + (names.index(self.output) if self.output in names else 0)


def same_port(first: Edge, second: Edge, op: str) -> bool:
    """Whether two edges leave nodes of the same operation by the same output."""
    if first.output and second.output:
        return (first.output, first.index) == (second.output, second.index)
    return first.number(op) == second.number(op)


@dataclass(frozen=True)
class Node:
    """A node: its inputs, the nodes it only waits for, and its message."""

    name: str
    op: str
    inputs: tuple[Edge, ...]
    controls: tuple[str, ...]
    message: Any = field(compare=False, repr=False)

    def attribute(self, name: str) -> Any:
        """An attribute's message, or None."""
        return next((entry.value for entry in self.message.attr if entry.key == name), None)


@dataclass(frozen=True)
class Scope:
    """`function` is "" for a main graph; `arguments` are a function's, with their types. `kept` tells why a node may
    not go away; `messages` and `definition` are what is edited."""

    function: str
    nodes: Mapping[str, Node]
    arguments: Mapping[str, int]
    kept: Mapping[str, str]
    consumers: Mapping[str, Sequence[tuple[Node, Edge]]]
    waiting: Mapping[str, Sequence[Node]]
    messages: Any = field(repr=False)
    definition: Any = field(repr=False)

    @property
    def returns(self) -> bool:
        """Whether it says what comes out of it; a main graph without signatures does not."""
        return bool(self.function) or any("signature" in why for why in self.kept.values())

    @property
    def where(self) -> str:
        """For people."""
        return self.function or "main graph"

    def unread_from(self, node: Node) -> set[str] | None:
        """The shape arithmetic that begins with a node and that nobody reads; None if it is read or has an effect. In a
        main graph without signatures anybody may ask for a result by its name, but hardly for a shape."""
        if not self.returns and node.op not in ("Shape", "ShapeN", "Size", "Rank"):
            return None
        found: set[str] = set()
        waiting = [node]
        while waiting:
            one = waiting.pop()
            known = one.name in self.kept or self.waiting.get(one.name)
            if one.op not in _SHAPES or known or len(found) > _LONGEST_CHAIN:
                return None
            found.add(one.name)
            waiting += [reader for reader, _ in self.consumers.get(one.name, ()) if reader.name not in found]
        return found

    def node_of(self, name: str) -> str:
        """The node that a name means: a node's own, or that of a tensor, with the calls that lead to it, as inspect
        shows it."""
        if ":" not in name:
            return name
        parts = name.partition(":")[0].split("/")
        ends = ("/".join(parts[start:]) for start in range(len(parts)))
        return next((end for end in ends if end in self.nodes or end in self.arguments), name)

    def check_name(self, name: str, what: str) -> None:
        """Raises for a name that no node has, and suggests similar ones."""
        if name not in self.nodes and name not in self.arguments:
            similar = suggest(name, [*self.nodes, *self.arguments])
            raise FusebertError(f"{what} {name!r} is not in {self.where}{similar}")


def read_nodes(messages: Iterable[Any], where: str) -> dict[str, Node]:
    """Nodes by name, in the order of the file."""
    nodes: dict[str, Node] = {}
    for one in messages:
        if one.name in nodes:
            raise FusebertError(f"two nodes in {where} have the same name, {one.name!r}")
        inputs = tuple(Edge.of(name) for name in one.input if not name.startswith("^"))
        controls = tuple(name[1:] for name in one.input if name.startswith("^"))
        nodes[one.name] = Node(one.name, one.op, inputs, controls, one)
    return nodes


def main_scope(meta: Any) -> Scope:
    """The main graph of a meta graph. What signatures, the saver and collections name is kept."""
    kept: dict[str, str] = {}
    for entry in meta.signature_def:
        for side, infos in (("input", entry.value.inputs), ("output", entry.value.outputs)):
            for info in infos:
                kept[Edge.of(info.value.name).node] = f"{side} {info.key!r} of signature {entry.key!r}"
    if meta.saver_def is not None:
        saver = meta.saver_def
        for tensor in (saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name):
            kept.setdefault(Edge.of(tensor).node, "part of saving and restoring")
    kept.pop("", None)
    nodes = read_nodes(meta.graph_def.node, "the main graph")
    collections = b"".join(collection.SerializeToString() for collection in meta.collection_def)
    if collections:
        for name in nodes:
            if name.encode() in collections:
                kept.setdefault(name, "named in a collection")
    return _scope("", nodes, {}, kept, meta.graph_def.node, None)


def function_scope(function: Any) -> Scope:
    """A function's body. What it returns is kept."""
    name = function.signature.name
    kept = {Edge.of(entry.value).node: f"returned as {entry.key!r}" for entry in function.ret}
    kept |= {entry.value: f"control output {entry.key!r}" for entry in function.control_ret}
    arguments = {argument.name: argument.type for argument in function.signature.input_arg}
    nodes = read_nodes(function.node_def, f"function {name}")
    return _scope(name, nodes, arguments, kept, function.node_def, function)


def _scope(
    function: str, nodes: dict[str, Node], arguments: dict[str, int], kept: dict[str, str], messages: Any,
    definition: Any,
) -> Scope:  # fmt: skip
    consumers: dict[str, list[tuple[Node, Edge]]] = {}
    waiting: dict[str, list[Node]] = {}
    for node in nodes.values():
        for edge in node.inputs:
            consumers.setdefault(edge.node, []).append((node, edge))
        for name in node.controls:
            waiting.setdefault(name, []).append(node)
    return Scope(function, nodes, arguments, kept, consumers, waiting, messages, definition)
