"""Edit: the nodes of one Scope, the main graph or a function, are added, turned into aliases, rewired and dropped. The
messages are changed in place, and what no edit touches stays as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.protobuf.wire import Payload
from fusebert.formats.tensorflow.messages import message, set_attribute
from fusebert.formats.tensorflow.scope import Edge, Scope
from fusebert.formats.tensorflow.types import NUMBERS, STRING
from fusebert.ops.graph import Array

_STAYS = frozenset(  # may be asked for by name
    ["Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2", "Variable"]
)


@dataclass(frozen=True)
class NewNode:
    """A node to add. Attributes are Type, str, bool, int, float, or a sequence of floats; an array is a tensor."""

    operation: str
    name: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Editor:
    """Edits of one scope, which keeps describing the graph as it was. Tensors of new nodes go to `payloads`."""

    def __init__(self, scope: Scope, payloads: list[Payload]) -> None:
        self.scope, self._payloads = scope, payloads
        self._aliases: set[str] = set()

    def replace(self, nodes: Sequence[NewNode], instead: Mapping[str, str]) -> None:
        """Adds nodes whose outputs take the place of tensors, and drops what is dead then."""
        made = {Edge.of(tensor).node: output for tensor, output in instead.items()}
        unread = set(self._unread_above(made))
        for new in nodes:
            self.add(new)
        for name, output in made.items():
            self.alias(name, output)
        if self.scope.function:
            self.rewire({name: f"{name}:output:0" for name in made}, {})
        self.drop(unread)

    def add(self, new: NewNode) -> None:
        """Adds a node."""
        if any(node.name == new.name for node in self.scope.messages):
            raise FusebertError(f"{self.scope.where} already has a node named {new.name}; rename that node")
        add_node(self.scope.messages, new, self._payloads)

    def alias(self, name: str, tensor: str) -> None:
        """Turns a node into another name for a tensor, so that whoever asks for the node by name gets that."""
        node = self.scope.nodes[name]
        kind, shapes = node.attribute("T"), node.attribute("_output_shapes")
        number = NUMBERS["float32"] if kind is None else kind.type
        known = None if shapes is None else shapes.SerializeToString()
        one = node.message
        del one.attr[:], one.input[:]
        one.op = "Identity"
        one.input.extend([tensor, *(f"^{control}" for control in node.controls)])
        one.attr.add(key="T").value.type = number
        if known is not None:
            one.attr.add(key="_output_shapes").value.ParseFromString(known)
        self._aliases.add(name)

    def rewire(self, outputs: Mapping[str, str], nodes: Mapping[str, str]) -> None:
        """Lets all that read the first output of a node, or wait for a node, read a tensor, or wait for another."""
        for node in self.scope.messages:
            new = [self._rewired(text, outputs, nodes) for text in node.input]
            controls = dict.fromkeys(text for text in new if text.startswith("^") and text != f"^{node.name}")
            new = [*(text for text in new if not text.startswith("^")), *controls]
            if new != list(node.input):
                del node.input[:]
                node.input.extend(new)
        if self.scope.definition is not None:
            for entry in self.scope.definition.ret:
                entry.value = self._rewired(entry.value, outputs, nodes)
            for entry in self.scope.definition.control_ret:
                entry.value = nodes.get(entry.value, entry.value)

    def _rewired(self, text: str, outputs: Mapping[str, str], nodes: Mapping[str, str]) -> str:
        if text.startswith("^"):
            return f"^{nodes.get(text[1:], text[1:])}"
        edge = Edge.of(text)
        first = edge.node in outputs and edge.number(self.scope.nodes[edge.node].op) == 0
        return outputs[edge.node] if first else text

    def drop(self, gone: Collection[str]) -> set[str]:
        """Removes nodes, and those that served only them or what is an alias now; gives the latter."""
        dead = self._dead(set(gone))
        removed = dead.union(gone)
        messages = self.scope.messages
        for i in reversed(range(len(messages))):
            if messages[i].name in removed:
                del messages[i]
        self._forget(removed)
        return dead

    def _dead(self, gone: set[str]) -> set[str]:
        reads = {node.name: [_node_of(text) for text in node.input] for node in self.scope.messages}
        uses = Counter(name for reader, names in reads.items() if reader not in gone for name in names)
        old = [self.scope.nodes[name] for name in gone | self._aliases]
        waiting = [name for node in old for name in (*(edge.node for edge in node.inputs), *node.controls)]
        dead: set[str] = set()
        while waiting:
            name = waiting.pop()
            node = self.scope.nodes.get(name)
            if node is None or name in gone or name in dead or name in self._aliases or uses[name] > 0:
                continue
            if name in self.scope.kept or node.op in _STAYS:
                continue
            dead.add(name)
            uses.subtract(reads[name])
            waiting += reads[name]
        return dead

    def _forget(self, removed: set[str]) -> None:
        """Removes requests to be placed beside a node that was removed."""
        places = {b"loc:@" + name.encode() for name in removed}
        for node in self.scope.messages:
            for i, entry in enumerate(node.attr):
                if entry.key == "_class" and not places.isdisjoint(entry.value.list.s):
                    kept = [one for one in entry.value.list.s if one not in places]
                    del entry.value.list.s[:]
                    entry.value.list.s.extend(kept)
                    if not kept:
                        del node.attr[i]
                    break

    def _unread_above(self, names: Iterable[str]) -> Iterator[str]:
        """Shape arithmetic that nobody reads, on what these nodes are computed from."""
        above: set[str] = set()
        waiting = list(names)
        while waiting:
            node = self.scope.nodes.get(waiting.pop())
            if node is not None and node.name not in above:
                above.add(node.name)
                waiting += [*(edge.node for edge in node.inputs), *node.controls]
        for name in above.difference(names):
            for reader, _ in self.scope.consumers.get(name, ()):
                if reader.name not in above:
                    yield from self.scope.unread_from(reader) or ()


def add_node(messages: Any, new: NewNode, payloads: list[Payload]) -> None:
    """Adds a node to the messages of a graph; the bytes of its tensors go to `payloads`."""
    node = messages.add(name=new.name, op=new.operation)
    node.input.extend(new.inputs)
    for key, value in sorted(new.attributes.items()):
        attribute = node.attr.add(key=key).value
        if isinstance(value, np.ndarray):
            set_tensor(attribute.tensor, value, payloads)
        else:
            set_attribute(attribute, value)


def set_tensor(tensor: Any, array: Array, payloads: list[Payload]) -> None:
    """Fills a Tensor message with an array, whose bytes go to `payloads`; strings stay in the message."""
    tensor.dtype = STRING if array.dtype == object else NUMBERS[array.dtype.name]
    for size in array.shape:
        tensor.tensor_shape.dim.add(size=size)
    tensor.tensor_shape.SetInParent()
    if array.dtype == object:
        tensor.string_val.extend(array.ravel())
        return
    tensor.mapped = len(payloads)
    payloads.append(np.ascontiguousarray(array).tobytes())


def prune_functions(meta: Any) -> int:
    """Removes the functions of a meta graph whose names appear nowhere else; gives their number."""
    library = meta.graph_def.library
    around = [node.SerializeToString() for node in meta.graph_def.node]
    if meta.object_graph_def is not None:
        around.append(meta.object_graph_def.SerializeToString())
    around += [collection.SerializeToString() for collection in meta.collection_def]
    bodies = {one.signature.name: b"\0".join(n.SerializeToString() for n in one.node_def) for one in library.function}
    rest = message("Library")
    rest.CopyFrom(library)
    del rest.function[:]
    around.append(rest.SerializeToString())  # gradients
    live: set[str] = set()
    waiting = [b"\0".join(around)]
    while waiting:
        blob = waiting.pop()
        for name in bodies.keys() - live:
            if name.encode() in blob:
                live.add(name)
                waiting.append(bodies[name])
    dead = [i for i, one in enumerate(library.function) if one.signature.name not in live]
    for i in reversed(dead):
        del library.function[i]
    return len(dead)


def _node_of(text: str) -> str:
    return Edge.of(text.removeprefix("^")).node
