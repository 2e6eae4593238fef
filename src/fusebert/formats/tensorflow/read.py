"""TensorFlow SavedModel folder or frozen GraphDef -> Graph. Nothing is executed; variables stay in their files.

Tensors are named as TensorFlow names them: `node:0` in the main graph, `node:output:0` and arguments by name inside
functions; a node's outputs are those that somebody reads or returns. A variable's weight stands under the tensor of its
handle, and under the argument of a function that it is bound to. Control inputs are kept in `attributes` as `^`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.bundle import Bundle
from fusebert.formats.tensorflow.messages import attribute_value
from fusebert.formats.tensorflow.tensor import Tensors
from fusebert.formats.tensorflow.types import RESOURCE, declared_shape, dtype_name, output_number
from fusebert.formats.tensorflow.variables import bind
from fusebert.ops.graph import Graph, Node, TensorType, Weight
from fusebert.values import limits

_RESULTS = {  # the type of what is not of the type that the attribute T names
    "Equal": "bool", "NotEqual": "bool", "Less": "bool", "LessEqual": "bool", "Greater": "bool", "GreaterEqual": "bool",
    "IsNan": "bool", "IsInf": "bool", "IsFinite": "bool", "Shape": "int32", "ShapeN": "int32", "Size": "int32",
    "Rank": "int32", "ArgMax": "int64", "ArgMin": "int64", "Where": "int64",
}  # fmt: skip
_TYPE_ATTRIBUTES = ("dtype", "DstT", "out_type", "output_type")
_Named = dict[str, tuple[str, Any]]  # tensor -> its public name, and what a signature says of it


def is_saved_model(path: Path) -> bool:
    """Whether a folder is a SavedModel."""
    return any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt"))


def looks_like_saved_model(data: memoryview) -> bool:
    """Whether bytes begin as a SavedModel does, with its version; or as its text."""
    return bytes(data[:3]) == b"\x08\x01\x12" or bytes(data[:4096]).lstrip().startswith(
        (b"saved_model_schema_version", b"meta_graphs")
    )


def looks_like(data: memoryview) -> bool:
    """Whether bytes begin as a GraphDef does, with its first node; or as its text."""
    return len(data) > 4 and (data[0] == 0x0A or bytes(data[:64]).lstrip().startswith((b"node {", b"node{")))


def saved_model_file(folder: Path) -> Path:
    """The file with the graphs of a SavedModel folder."""
    binary = folder / "saved_model.pb"
    return binary if binary.is_file() else folder / "saved_model.pbtxt"


def saved_model_graph(model: Any, meta: Any, tensors: Tensors, folder: Path | None) -> Graph:
    """The Graph in a meta graph of a SavedModel message; its variables are in `folder`, if there is one."""
    signatures = {entry.key: entry.value for entry in meta.signature_def}
    called = {key: signature for key, signature in signatures.items() if not key.startswith("__")}
    named = _named(called)
    facts = {
        "format": "tensorflow SavedModel",
        "producer": f"tensorflow {meta.meta_info_def.tensorflow_version}".strip(),
        "tags": [list(m.meta_info_def.tags) for m in model.meta_graphs],
        "signatures": list(signatures),
        "names": {tensor: name for side in named for tensor, (name, _) in sorted(side.items())},
        "served": _served(called),
    }
    graph = _Reader(tensors).graph(meta.graph_def, named, facts)
    prefix = (folder or Path()) / "variables" / "variables"
    stored = folder is not None and prefix.with_name("variables.index").is_file()
    return bind(graph, meta, Bundle(prefix) if stored else None, Path(tensors.path))


def chosen_meta(metas: Sequence[Any], tags: Sequence[str] | None, path: Path) -> Any:
    """The meta graph with these tags; without tags the one for serving, or the first."""
    if not metas:
        raise FusebertError(f"{path}: there is no graph in it")
    if tags is None:
        return next((meta for meta in metas if "serve" in meta.meta_info_def.tags), metas[0])
    for meta in metas:
        if set(meta.meta_info_def.tags) == set(tags):
            return meta
    there = " or ".join("+".join(meta.meta_info_def.tags) or "none" for meta in metas[:8])
    raise FusebertError(f"{path}: no graph has the tags {'+'.join(tags) or 'none'}; use {there}")


def frozen_graph(graph: Any, tensors: Tensors) -> Graph:
    """The Graph in a GraphDef message."""
    if not graph.node:
        raise FusebertError(f"{tensors.path} has no nodes; give a model with a graph")
    facts = {"format": "tensorflow GraphDef", "producer": f"version {graph.versions.producer}"}
    return _Reader(tensors).graph(graph, ({}, {}), facts)


class _Reader:
    """Turns the messages of one file into values."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def _wrong(self, what: str) -> FusebertError:
        return FusebertError(f"{self._tensors.path}: {what}")

    def graph(self, graph: Any, named: tuple[_Named, _Named], facts: dict[str, Any]) -> Graph:
        """The main graph and its functions. Signatures say what goes in and out; else placeholders and dead ends do."""
        if len(graph.node) + sum(len(f.node_def) for f in graph.library.function) > limits.NODES:
            raise self._wrong(f"it has more than {limits.NODES} nodes, which no model has")
        weights: dict[str, Weight] = {}
        types: dict[str, TensorType] = {}
        nodes = self._nodes(graph.node, weights, types, _main_tensor, (), [*named[0], *named[1]])
        functions = {}
        for function in graph.library.function:
            if function.signature.name in functions:
                raise self._wrong(f"function {function.signature.name} stands there twice")
            functions[function.signature.name] = self._function(function)
        inputs, outputs = map(set, named)
        if not any(named):
            read = {name for node in nodes for name in node.inputs}
            inputs = {node.outputs[0] for node in nodes if node.op == "Placeholder"}
            outputs = {n.outputs[0] for n in nodes if not read & set(n.outputs)} - inputs
        for side in named:
            for tensor, (_, info) in side.items():
                types[tensor] = TensorType(dtype_name(info.dtype), declared_shape(info.tensor_shape))
        return Graph(nodes, tuple(sorted(inputs)), tuple(sorted(outputs)), weights, types, functions, facts)

    def _function(self, function: Any) -> Graph:
        weights: dict[str, Weight] = {}
        name = function.signature.name
        arguments = tuple(argument.name for argument in function.signature.input_arg)
        if len(set(arguments)) < len(arguments):
            raise self._wrong(f"function {name} has two arguments of the same name")
        types = self._argument_types(function)
        returned = {entry.key: entry.value for entry in function.ret}
        outputs = []
        for argument in function.signature.output_arg:
            if argument.name not in returned:
                raise self._wrong(f"function {name} does not say what its output {argument.name} is")
            outputs.append(returned[argument.name])
        nodes = self._nodes(function.node_def, weights, types, lambda tensor: tensor, arguments, outputs)
        return Graph(nodes, arguments, tuple(outputs), weights, types)

    def _argument_types(self, function: Any) -> dict[str, TensorType]:
        """What a function declares about its arguments, except for handles of variables."""
        arguments = function.signature.input_arg
        shapes: list[Any] = [None] * len(arguments)
        for entry in function.attr:
            if entry.key == "_input_shapes" and len(entry.value.list.shape) == len(arguments):
                shapes = [declared_shape(shape) for shape in entry.value.list.shape]
        return {
            argument.name: TensorType(dtype_name(argument.type), shape)
            for argument, shape in zip(arguments, shapes, strict=True)
            if argument.type != RESOURCE
        }

    def _nodes(
        self,
        messages: Sequence[Any],
        weights: dict[str, Weight],
        types: dict[str, TensorType],
        tensor: Callable[[str], str],
        arguments: Sequence[str],
        returned: Sequence[str],
    ) -> tuple[Node, ...]:
        """Nodes in the file's order. A Const becomes a weight; outputs are those that somebody reads or returns."""
        nodes = []
        used = self._used(messages, tensor, arguments, returned)
        for message in messages:
            name, word = message.name, message.op
            where = f"node {name} ({word})"
            attributes = {entry.key: self._attribute(entry.value, where) for entry in message.attr}
            outputs = tuple(used[name]) or (f"{name}:0",)
            if word == "Const":
                if not isinstance(attributes.get("value"), Weight):
                    raise self._wrong(f"{where} has no value")
                weights.update(dict.fromkeys(outputs, attributes["value"]))
                continue
            if word == "Placeholder":
                types[outputs[0]] = TensorType(str(attributes.get("dtype", "")), _shape(attributes.get("shape")))
            elif isinstance(shapes := attributes.get("_output_shapes"), tuple):
                for output in outputs:
                    if (number := output_number(output)) < len(shapes):
                        types[output] = TensorType(_result_type(word, attributes, number), _shape(shapes[number]))
            inputs = list(message.input)
            if any(name.startswith("^") for name in inputs):
                attributes["^"] = tuple(name[1:] for name in inputs if name.startswith("^"))
                inputs = [name for name in inputs if not name.startswith("^")]
            nodes.append(Node(word, tuple(map(tensor, inputs)), outputs, attributes, name))
        return tuple(nodes)

    def _used(
        self, messages: Sequence[Any], tensor: Callable[[str], str], arguments: Sequence[str], returned: Sequence[str]
    ) -> dict[str, dict[str, None]]:
        """For each node its tensors that are read or returned, in order; refuses what nothing makes."""
        used: dict[str, dict[str, None]] = {}
        for message in messages:
            if message.name in used:
                raise self._wrong(f"two nodes have the same name, {message.name!r}")
            used[message.name] = {}
        given = set(arguments)
        for name in given:
            if name in used:
                raise self._wrong(f"a node and an argument have the same name, {name!r}")
        for message in messages:
            for name in message.input:
                source = name.lstrip("^").partition(":")[0]
                if source in used:
                    if not name.startswith("^"):
                        used[source][tensor(name)] = None
                elif source not in given:
                    raise self._wrong(f"node {message.name} ({message.op}) reads {name!r}, which nothing makes")
        for name in returned:
            source = name.partition(":")[0]
            if source in used:
                used[source][name] = None
            elif source not in given:
                raise self._wrong(f"{name!r} goes in or comes out, but nothing makes it")
        return used

    def _attribute(self, value: Any, where: str) -> Any:
        return self._tensors.weight(value.tensor, where) if value.HasField("tensor") else attribute_value(value)


def _shape(declared: Any) -> tuple[int | None, ...] | None:
    """An attribute that says a shape; None where it holds something else."""
    fits = isinstance(declared, tuple) and all(size is None or isinstance(size, int) for size in declared)
    return declared if fits else None


def _result_type(word: str, attributes: Mapping[str, Any], number: int) -> str:
    """The type of one of a node's outputs, as far as its attributes tell."""
    several = attributes.get("Tout")
    if isinstance(several, tuple):
        return str(several[number]) if number < len(several) else ""
    named = next((kind for name in _TYPE_ATTRIBUTES if (kind := attributes.get(name))), None)
    return str(named or _RESULTS.get(word) or attributes.get("T") or "")


def _named(signatures: Mapping[str, Any]) -> tuple[_Named, _Named]:
    """The tensors that go in, and those that come out. Where several signatures name the same one, the default one
    counts, then the first by name."""
    named: tuple[_Named, _Named] = ({}, {})
    for _, signature in sorted(signatures.items(), key=lambda item: (item[0] != "serving_default", item[0])):
        for tensors, entries in zip(named, (signature.inputs, signature.outputs), strict=True):
            for key, info in sorted(((e.key, e.value) for e in entries if e.value.name), key=itemgetter(0)):
                tensors.setdefault(_main_tensor(info.name), (key, info))
    return named


def _served(signatures: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """What goes in and comes out of the signature that is called where none is named: tensors by public name."""
    chosen = min(signatures, key=lambda key: (key != "serving_default", key), default=None)
    if chosen is None:
        return {}, {}
    sides = (sorted(side, key=attrgetter("key")) for side in (signatures[chosen].inputs, signatures[chosen].outputs))
    inputs, outputs = ({e.key: _main_tensor(e.value.name) for e in side if e.value.name} for side in sides)
    return inputs, outputs


def _main_tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"
