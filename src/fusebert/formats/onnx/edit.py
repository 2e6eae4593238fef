"""An ONNX file with some of its nodes replaced, written as a new file. What is not touched stays as it was, byte for
byte; weights go from file to file without being read into memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats import write
from fusebert.formats.files import map_file
from fusebert.formats.onnx.float16 import halve
from fusebert.formats.onnx.order import inner_graphs, reads
from fusebert.formats.onnx.read import GRAMMAR, OnnxMessage, empty, external_file, looks_like, parse
from fusebert.formats.onnx.types import NUMBERS
from fusebert.formats.protobuf.wire import Payload, fill
from fusebert.ops.graph import Array

_LARGEST = (1 << 31) - (1 << 24)  # bytes of one file, which protobuf's readers take
_ALIGNMENT = 4096


@dataclass(frozen=True)
class NewNode:
    """A node to put in: strings, numbers and lists of them are its attributes."""

    operation: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""


Declared = tuple[str, tuple[int | str | None, ...]]  # the element type and the sizes of an input or output


def files(made: Path, out: Path) -> dict[Path, Path]:
    """Where the files of a model go that is to stand at `out`: its weights first, for a reader looks for the model."""
    data = made.with_name(f"{made.name}.data")
    return {**({data: out.with_name(f"{out.name}.data")} if data.exists() else {}), made: out}


def is_model(path: Path) -> bool:
    """Whether a path is an ONNX file, or the weights beside one."""
    if path.suffix == ".data":
        return is_model(path.with_suffix(""))
    with suppress(FusebertError):
        return path.is_file() and looks_like(map_file(path)) and len(parse(path).model.graph.node) > 0
    return False


def outline(source: OnnxMessage) -> bytes:
    """A model without the numbers of its weights, which are empty instead: small enough for any checker."""
    model = _copy(source.model)
    for tensor in _tensors(model.graph):
        if tensor.HasField("mapped") or tensor.data_location:
            for name in ("mapped", "data_location", "external_data"):
                tensor.ClearField(name)
            tensor.dims[:] = [0]
    return bytes(model.SerializeToString())


@dataclass(frozen=True)
class Changes:
    """What else becomes of a model. Of its `inputs` that are ids, types or masks `[batch, length]`: int32 instead of
    int64; a settled length. `float16`: weights and graph in halves. `declared`: shapes of float tensors, which tools
    cannot infer."""

    inputs: Sequence[str] = ()
    int32: bool = False
    length: int | None = None
    float16: bool = False
    declared: Mapping[str, tuple[int | str | None, ...]] = field(default_factory=dict)


def rewrite(
    source: OnnxMessage,
    out: Path,
    groups: Sequence[Sequence[NewNode]],
    weights: Mapping[str, Array],
    opsets: Mapping[str, int],
    changes: Changes | None = None,
) -> tuple[str, ...]:
    """Writes `source` to `out` with groups of nodes instead of those that made their outputs, and without what nothing
    needs any more; returns what there is to tell. Files over 2 GB get their weights in a second file beside."""
    changes = changes or Changes()
    editing = _Editing(source)
    for group in groups:
        editing.put(group)
    for name, array in weights.items():
        editing.add_weight(name, array)
    editing.prune()
    editing.declare(changes.declared)
    if changes.int32:
        editing.narrow(changes.inputs)
    if changes.length is not None:
        editing.settle(changes.inputs, changes.length)
    for domain, version in opsets.items():
        if all(entry.domain != domain for entry in editing.model.opset_import):
            editing.model.opset_import.add(domain=domain, version=version)
    editing.bring_in()
    told = editing.repairs + (editing.halve() if changes.float16 else ())
    editing.save(out)
    return told


def write_repaired(source: OnnxMessage, out: Path) -> None:
    """Writes `source` to `out` as it is read: with its repairs."""
    editing = _Editing(source)
    editing.bring_in()
    editing.save(out)


def create(
    out: Path,
    nodes: Sequence[NewNode],
    weights: Mapping[str, Array],
    inputs: Mapping[str, Declared],
    outputs: Mapping[str, Declared],
    opsets: Mapping[str, int],
    declared: Mapping[str, tuple[int | str | None, ...]] | None = None,
) -> None:
    """Writes a new model of nodes in the order in which they run; inputs and outputs have an element type and sizes.
    `declared` are the shapes of float tensors, which tools cannot infer."""
    editing = _Editing(empty(out))
    editing.append(nodes)
    for name, array in weights.items():
        editing.add_weight(name, array)
    editing.show(inputs, outputs)
    editing.declare(declared or {})
    for domain, version in opsets.items():
        editing.model.opset_import.add(domain=domain, version=version)
    editing.save(out)


class _Editing:
    """A copy of the message without its weights, and the weights' bytes by number."""

    def __init__(self, source: OnnxMessage) -> None:
        self._source = source.path
        self.model, self.repairs = _copy(source.model), source.repairs
        self._payloads: list[Payload] = []
        if source.skeleton.ranges:
            data = map_file(source.path)
            self._payloads += [data[at : at + length] for at, length in source.skeleton.ranges]
        self._graph = self.model.graph

    def put(self, group: Sequence[NewNode]) -> None:
        """Puts nodes where the last of those stands that made what they make, and takes that from it."""
        outputs = {name for new in group for name in new.outputs}
        places = [i for i, node in enumerate(self._graph.node) if outputs.intersection(node.output)]
        if not places:
            raise FusebertError(f"{self._source}: no node makes {sorted(outputs)[0]!r}")
        for i in places:
            node = self._graph.node[i]
            kept = [f"{name} replaced" if name in outputs else name for name in node.output]
            del node.output[:]
            node.output.extend(kept)
        for new in reversed(group):
            message = type(self._graph.node[0])()
            _describe(message, new)
            self._graph.node.insert(max(places), message)

    def append(self, nodes: Sequence[NewNode]) -> None:
        """Adds nodes behind those that are there."""
        for new in nodes:
            _describe(self._graph.node.add(), new)

    def show(self, inputs: Mapping[str, Declared], outputs: Mapping[str, Declared]) -> None:
        """Declares what goes in and comes out."""
        for values, declared in ((self._graph.input, inputs), (self._graph.output, outputs)):
            for name, (kind, shape) in declared.items():
                _declare(values.add(name=name), kind, shape)

    def add_weight(self, name: str, array: Array) -> None:
        """Adds an initializer."""
        self._put_numbers(self._graph.initializer.add(name=name, dims=array.shape), array)

    def prune(self) -> None:
        """Takes away nodes, initializers and declared types that the outputs do not need."""
        needed = {value.name for value in self._graph.output}
        kept = []
        for node in reversed(self._graph.node):
            if needed.intersection(node.output):
                kept.append(node)
                needed.update(reads(node))
        kept = [type(node).FromString(node.SerializeToString()) for node in reversed(kept)]
        del self._graph.node[:]
        self._graph.node.extend(kept)
        made = {name for node in kept for name in node.output} | {value.name for value in self._graph.input}
        for items, names in ((self._graph.initializer, needed), (self._graph.value_info, made)):
            for i in reversed(range(len(items))):
                if items[i].name not in names:
                    del items[i]

    def narrow(self, names: Sequence[str]) -> None:
        """Makes int64 inputs int32; whoever reads them gets a cast, so that nothing else changes."""
        for value in self._graph.input:
            kind = value.type.tensor_type
            if value.name not in names or kind.elem_type != NUMBERS["int64"]:
                continue
            kind.elem_type = NUMBERS["int32"]
            wide = f"{value.name}.int64"
            for node in self._graph.node:
                _replace_inputs(node, value.name, wide)
            cast = type(self._graph.node[0])(op_type="Cast", name=f"{wide}.Cast")
            cast.input.append(value.name)
            cast.output.append(wide)
            _set(cast.attribute.add(name="to"), NUMBERS["int64"])
            self._graph.node.insert(0, cast)

    def declare(self, shapes: Mapping[str, tuple[int | str | None, ...]]) -> None:
        """Declares float tensors that have no declared type yet."""
        known = {value.name for value in (*self._graph.value_info, *self._graph.output)}
        for name, shape in shapes.items():
            if name in known:
                continue
            _declare(self._graph.value_info.add(name=name), "float32", shape)

    def settle(self, names: Sequence[str], length: int) -> None:
        """Declares the length of inputs `[batch, length]`, and of whatever else is declared to have the same."""
        inputs = [value.type.tensor_type.shape.dim for value in self._graph.input if value.name in names]
        same = {dims[1].dim_param for dims in inputs} - {dims[0].dim_param for dims in inputs} - {""}
        values = (*self._graph.input, *self._graph.output, *self._graph.value_info)
        for dim in (dim for value in values for dim in value.type.tensor_type.shape.dim if dim.dim_param in same):
            dim.ClearField("dim_param")
            dim.dim_value = length
        for dims in inputs:
            dims[1].ClearField("dim_param")
            dims[1].dim_value = length

    def halve(self) -> tuple[str, ...]:
        """Makes the graph one of halves."""
        clamped = halve(self.model, self._numbers, self._put_numbers)
        return (f"{clamped} numbers were too large for 16 bits and became the largest that fits.",) if clamped else ()

    def _numbers(self, tensor: Any) -> Array:
        data = self._payloads[tensor.mapped] if tensor.HasField("mapped") else tensor.raw_data
        numbers = np.frombuffer(data, np.float32) if len(data) else np.array(tensor.float_data, np.float32)
        return numbers.reshape(tuple(tensor.dims))

    def _put_numbers(self, tensor: Any, array: Array) -> None:
        tensor.ClearField("float_data")
        tensor.ClearField("raw_data")
        tensor.data_type = NUMBERS[array.dtype.name]
        if array.nbytes:
            if not tensor.HasField("mapped"):
                tensor.mapped = len(self._payloads)
                self._payloads.append(b"")
            self._payloads[tensor.mapped] = memoryview(np.ascontiguousarray(array).view(np.uint8).reshape(-1))  # type: ignore[arg-type]
        else:
            tensor.raw_data = b""

    def bring_in(self) -> None:
        """Data beside the source becomes data of the new file, which may stand elsewhere."""
        for tensor in _tensors(self._graph):
            self._bring_in(tensor)

    def save(self, out: Path) -> None:
        """Writes a new file, and one with its weights beside it if there are too many: whole, or not at all."""
        tensors = list(_tensors(self._graph))
        total = sum(len(payload) for payload in self._payloads)
        with write.beside(out) as folder:
            if total > _LARGEST:
                self._put_outside(tensors, folder / f"{out.name}.data")
            pieces = fill(self.model.SerializeToString(), GRAMMAR, "Model", self._payloads)
            with (folder / out.name).open("wb") as file:
                file.writelines(pieces)
            write.put(files(folder / out.name, out))

    def _bring_in(self, tensor: Any) -> None:
        if tensor.data_location != 1:
            return
        file, offset, size = external_file(self._source, tensor)
        del tensor.external_data[:]
        tensor.ClearField("data_location")
        tensor.mapped = len(self._payloads)
        self._payloads.append(memoryview(np.memmap(file, np.uint8, "r", offset, (size,))) if size else b"")  # type: ignore[arg-type]

    def _put_outside(self, tensors: list[Any], data: Path) -> None:
        with data.open("wb") as file:
            for tensor in tensors:
                if not tensor.HasField("mapped"):
                    continue
                payload = self._payloads[tensor.mapped]
                file.seek(-file.tell() % _ALIGNMENT, os.SEEK_CUR)
                entries = {"location": data.name, "offset": str(file.tell()), "length": str(len(payload))}
                for key, value in entries.items():
                    tensor.external_data.add(key=key, value=value)
                tensor.data_location = 1
                tensor.ClearField("mapped")
                file.write(payload)


def _copy(model: Any) -> Any:
    copy = type(model)()
    copy.CopyFrom(model)
    return copy


def _describe(message: Any, new: NewNode) -> None:
    message.op_type, message.domain, message.name = new.operation, new.domain, new.name
    message.input.extend(new.inputs)
    message.output.extend(new.outputs)
    for name, value in new.attributes.items():
        _set(message.attribute.add(name=name), value)


def _declare(value: Any, dtype: str, shape: Sequence[int | str | None]) -> None:
    kind = value.type.tensor_type
    kind.elem_type = NUMBERS[dtype]
    for size in shape:
        kind.shape.dim.add(**{"dim_value" if isinstance(size, int) else "dim_param": size} if size else {})


def _set(attribute: Any, value: Any) -> None:
    """An attribute's value, by its type."""
    if isinstance(value, str):
        attribute.type, attribute.s = 3, value.encode()
    elif isinstance(value, int):
        attribute.type, attribute.i = 2, value
    elif isinstance(value, float):
        attribute.type, attribute.f = 1, value
    elif all(isinstance(v, int) for v in value):
        attribute.type = 7
        attribute.ints.extend(value)
    else:
        attribute.type = 6
        attribute.floats.extend(value)


def _replace_inputs(node: Any, old: str, new: str) -> None:
    for i, name in enumerate(node.input):
        if name == old:
            node.input[i] = new
    for graph in inner_graphs(node):
        for inner in graph.node:
            _replace_inputs(inner, old, new)


def _tensors(graph: Any) -> Iterator[Any]:
    """Every tensor in a graph: initializers, and attributes of its nodes and inner graphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
        for inner in inner_graphs(node):
            yield from _tensors(inner)
