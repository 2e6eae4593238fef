"""A TensorFlow model with some tensors made by new nodes, written anew: a SavedModel folder, or a graph file. What is
not touched stays as it was; variables are linked or copied, not read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats import write
from fusebert.formats.files import map_file
from fusebert.formats.protobuf.wire import Payload, fill
from fusebert.formats.tensorflow.messages import GRAMMAR, parse, set_attribute
from fusebert.formats.tensorflow.read import is_saved_model
from fusebert.formats.tensorflow.types import NUMBERS
from fusebert.ops.graph import Array

_WITHOUT_EFFECT = frozenset(("Shape", "StridedSlice", "Pack", "Prod", "GatherV2", "ConcatV2", "Cast", "Reshape"))


@dataclass(frozen=True)
class NewNode:
    """A node to add. Attributes are Type, str, bool, int, float, or a list of floats; an array is a tensor."""

    operation: str
    name: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Edit:
    """New nodes in one function ("" is the main graph), and which of their outputs takes the place of which tensor; all
    names as they are inside that function."""

    function: str
    nodes: tuple[NewNode, ...]
    instead: Mapping[str, str]


def rewrite(source: Path, out: Path, edits: Sequence[Edit]) -> None:
    """Writes `source` to `out`: a folder if the source is a SavedModel and `out` does not end in .pb, else a file."""
    editing = _Editing(source)
    for edit in edits:
        editing.apply(edit)
    if is_saved_model(source) and out.suffix != ".pb":
        with write.folder(out) as folder:
            copy_rest(source, folder)
            with (folder / "saved_model.pb").open("wb") as file:
                editing.write(file)
    else:
        with write.file(out) as file:
            editing.write(file)


def is_model(path: Path, folder: bool) -> bool:
    """Whether a path is a SavedModel's folder; or a file, binary or text, with a SavedModel's graphs or a GraphDef."""
    if folder or path.is_dir():
        return folder and is_saved_model(path)
    with suppress(FusebertError):
        if any(meta.graph_def.node for meta in parse(path, "SavedModel")[0].meta_graphs):
            return True
    with suppress(FusebertError):
        nodes = parse(path, "GraphDef")[0].node
        return len(nodes) > 0 and all(node.op for node in nodes)
    return False


def copy_rest(source: Path, folder: Path) -> None:
    """Everything but the graph itself, by links where the file system has them."""
    for path in sorted(source.rglob("*")):
        place = folder / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        elif path.name not in ("saved_model.pb", "saved_model.pbtxt", "fingerprint.pb") or path.parent != source:
            try:
                os.link(path.resolve(), place)
            except OSError:
                shutil.copyfile(path, place)


class _Editing:
    """The message without its weights, and the weights' bytes by number."""

    def __init__(self, source: Path) -> None:
        saved = is_saved_model(source)
        self._name = "SavedModel" if saved else "GraphDef"
        file = source
        if saved:
            file = source / "saved_model.pb" if (source / "saved_model.pb").is_file() else source / "saved_model.pbtxt"
        self._message, ranges = parse(file, self._name)
        data = map_file(file)
        self._payloads: list[Payload] = [data[at : at + length] for at, length in ranges]
        self._graphs = [meta.graph_def for meta in self._message.meta_graphs] if saved else [self._message]
        self._metas = list(self._message.meta_graphs) if saved else [None]

    def apply(self, edit: Edit) -> None:
        """Adds nodes, turns those that made the tensors into names for what is made instead, and drops what is dead."""
        done = False
        for graph, meta in zip(self._graphs, self._metas, strict=True):
            if edit.function:
                for function in graph.library.function:
                    if function.signature.name == edit.function:
                        _Scope(function.node_def, function, edit, self._payloads).apply(set())
                        done = True
            elif all(_node_of(tensor) in {node.name for node in graph.node} for tensor in edit.instead):
                _Scope(graph.node, None, edit, self._payloads).apply(_known(meta) if meta is not None else set())
                done = True
        if not done:
            raise FusebertError(f"no graph has function {edit.function or 'main'} with {', '.join(edit.instead)}")

    def write(self, file: BinaryIO) -> None:
        """Writes the message with its weights."""
        file.writelines(fill(self._message.SerializeToString(), GRAMMAR, self._name, self._payloads))


class _Scope:
    """The nodes of one function or of a main graph."""

    def __init__(self, nodes: Any, function: Any, edit: Edit, payloads: list[Payload]) -> None:
        self._nodes, self._function, self._edit, self._payloads = nodes, function, edit, payloads

    def apply(self, named: set[str]) -> None:
        by_name = {node.name: node for node in self._nodes}
        outputs = {entry.value.split(":")[0] for entry in self._function.ret} if self._function else named
        sinks = {node.name for node in self._nodes} - {_node_of(i) for node in self._nodes for i in node.input}
        if self._function or outputs:  # others were dead before; where none is named, somebody may ask for any
            sinks = {name for name in sinks if by_name[name].op not in _WITHOUT_EFFECT}
        before = set(self._ancestors(by_name, [_node_of(tensor) for tensor in self._edit.instead]))
        inner = before - {_node_of(tensor) for tensor in self._edit.instead}
        unread = {
            node.name
            for node in self._nodes
            if node.op in _WITHOUT_EFFECT
            and (self._function or (outputs and inner.intersection(map(_node_of, node.input))))
        }
        for tensor, made in self._edit.instead.items():
            self._rename(by_name[_node_of(tensor)], tensor, made)
        for new in self._edit.nodes:
            self._add(new)
        self._drop((before | unread) - outputs - sinks)

    def _ancestors(self, by_name: dict[str, Any], start: list[str]) -> Iterator[str]:
        waiting, seen = list(start), set()
        while waiting:
            name = waiting.pop()
            if name in seen or name not in by_name:
                continue
            seen.add(name)
            yield name
            waiting += [_node_of(i) for i in by_name[name].input]

    def _rename(self, node: Any, tensor: str, made: str) -> None:
        """The node that made a tensor becomes a name for what is made instead, so that whoever knows it finds it."""
        shapes = [entry for entry in node.attr if entry.key == "_output_shapes"]
        kept = [type(entry).FromString(entry.SerializeToString()) for entry in shapes]
        controls = [name for name in node.input if name.startswith("^")]
        del node.attr[:], node.input[:]
        node.op = "Identity"
        node.input.extend([made, *controls])
        node.attr.extend(kept)
        node.attr.add(key="T").value.type = NUMBERS["float32"]
        if self._function is None:
            return
        seen = f"{node.name}:output:0"
        for other in self._nodes:
            for i, name in enumerate(other.input):
                if name == tensor and other is not node:
                    other.input[i] = seen
        for entry in self._function.ret:
            if entry.value == tensor:
                entry.value = seen

    def _add(self, new: NewNode) -> None:
        if any(node.name == new.name for node in self._nodes):
            raise FusebertError(f"a node is called {new.name} already")
        node = self._nodes.add(name=new.name, op=new.operation)
        node.input.extend(new.inputs)
        for key, value in sorted(new.attributes.items()):
            self._set(node.attr.add(key=key).value, value)

    def _set(self, attribute: Any, value: Any) -> None:
        if isinstance(value, np.ndarray):
            self._set_tensor(attribute.tensor, value)
        else:
            set_attribute(attribute, value)

    def _set_tensor(self, tensor: Any, array: Array) -> None:
        tensor.dtype = NUMBERS[array.dtype.name]
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        tensor.tensor_shape.SetInParent()
        tensor.mapped = len(self._payloads)
        self._payloads.append(np.ascontiguousarray(array).tobytes())

    def _drop(self, candidates: set[str]) -> None:
        """Takes away those of the candidates that nothing reads any more, not even for the order of things."""
        uses: dict[str, int] = {}
        inputs = {node.name: [_node_of(name) for name in node.input] for node in self._nodes}
        for names in inputs.values():
            for name in names:
                uses[name] = uses.get(name, 0) + 1
        waiting = [name for name in candidates if not uses.get(name)]
        dead = set()
        while waiting:
            name = waiting.pop()
            dead.add(name)
            for read in inputs[name]:
                uses[read] -= 1
                if not uses[read] and read in candidates and read not in dead:
                    waiting.append(read)
        for i in reversed(range(len(self._nodes))):
            if self._nodes[i].name in dead:
                del self._nodes[i]


def _known(meta: Any) -> set[str]:
    """The nodes of a main graph that signatures and collections name."""
    infos = [info for s in meta.signature_def for info in (*s.value.inputs, *s.value.outputs)]
    collections = b"".join(collection.SerializeToString() for collection in meta.collection_def)
    named = {node.name for node in meta.graph_def.node if collections and node.name.encode() in collections}
    return named | {_node_of(info.value.name) for info in infos}


def _node_of(tensor: str) -> str:
    return tensor.removeprefix("^").split(":")[0]
