"""TensorFlow SavedModel folder or frozen GraphDef -> Graph. Nothing is executed; variables stay in their files.

Tensors are named as TensorFlow names them: `node:0` in the main graph, `node:output:0` and arguments by name inside
functions; a node's outputs are those that somebody reads or returns. A variable's weight stands under the tensor of its
handle, and under the argument of a function that it is bound to. Control inputs are kept in `attributes` as `^`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.files import map_file
from fusebert.formats.tf_bundle import Bundle
from fusebert.formats.tf_types import DTYPES, declared_shape, dtype_name, output_number, shape_of
from fusebert.formats.tf_variables import bind
from fusebert.formats.wire import CUT, cut
from fusebert.graph import Array, Graph, Node, TensorType, Weight

_SCHEMA = """
SavedModel: 1 saved_model_schema_version int64, 2 meta_graphs MetaGraph*
MetaGraph: 1 meta_info_def MetaInfo, 2 graph_def GraphDef, 3 saver_def Saver, 4 collection_def Collection*, 5 signature_def SignatureEntry*, 7 object_graph_def ObjectGraph
MetaInfo: 4 tags string*, 5 tensorflow_version string
Saver: 1 filename_tensor_name string, 2 save_tensor_name string, 3 restore_op_name string
Collection: 1 key string
ObjectGraph: 1 nodes Object*, 2 concrete_functions BindingEntry*
Object: 1 children Child*, 7 variable Variable, 9 constant Constant
Child: 1 node_id int32, 2 local_name string
Variable: 6 name string
Constant: 1 operation string
BindingEntry: 1 key string, 2 value Binding
Binding: 2 bound_inputs int32+
SignatureEntry: 1 key string, 2 value Signature
Signature: 1 inputs TensorInfoEntry*, 2 outputs TensorInfoEntry*, 3 method_name string
TensorInfoEntry: 1 key string, 2 value TensorInfo
TensorInfo: 1 name string, 2 dtype DataType, 3 tensor_shape Shape
GraphDef: 1 node NodeDef*, 2 library Library, 4 versions Versions
Versions: 1 producer int32
Library: 1 function Function*
Function: 1 signature OpDef, 3 node_def NodeDef*, 4 ret StringEntry*, 5 attr AttrEntry*, 6 control_ret StringEntry*
OpDef: 1 name string, 2 input_arg Argument*, 3 output_arg Argument*
Argument: 1 name string, 3 type DataType
StringEntry: 1 key string, 2 value string
NodeDef: 1 name string, 2 op string, 3 input string*, 4 device string, 5 attr AttrEntry*, 6 experimental_debug_info DebugInfo, 7 experimental_type FullType
DebugInfo: 1 original_node_names string*, 2 original_func_names string*
FullType: 1 type_id FullTypeId, 2 args FullType*, 3 s string, 4 i int64
Pattern: 1 seed_nodes NodeDef*, 2 internal_nodes NodeDef*, 3 inputs string*, 4 input_nodes NodeDef*
Recipe: 1 source_pattern Pattern, 2 target_node NodeDef, 3 outputs RecipeOutput*
RecipeOutput: 1 seed string, 2 name string, 3 index int32, 4 number int32
AttrEntry: 1 key string, 2 value AttrValue
AttrValue: 1 list AttrList, 2 s bytes, 3 i int64, 4 f float, 5 b bool, 6 type DataType, 7 shape Shape, 8 tensor Tensor, 9 placeholder string, 10 func NameAttr
AttrList: 2 s bytes*, 3 i int64+, 4 f float+, 5 b bool+, 6 type DataType+, 7 shape Shape*, 8 tensor Tensor*, 9 func NameAttr*
NameAttr: 1 name string, 2 attr AttrEntry*
Tensor: 1 dtype DataType, 2 tensor_shape Shape, 4 tensor_content bytes, 5 float_val float+, 6 double_val double+, 7 int_val int32+, 8 string_val bytes*, 10 int64_val int64+, 11 bool_val bool+, 13 half_val int32+, 16 uint32_val uint32+, 17 uint64_val uint64+, 536870911 mapped int64
Shape: 2 dim Dimension*, 3 unknown_rank bool
Dimension: 1 size int64, 2 name string
FullTypeId = TFT_UNSET:0 TFT_VAR:1 TFT_ANY:2 TFT_PRODUCT:3 TFT_NAMED:4 TFT_FOR_EACH:20 TFT_CALLABLE:100 TFT_BOOL:200 TFT_UINT8:201 TFT_UINT16:202 TFT_UINT32:203 TFT_UINT64:204 TFT_INT8:205 TFT_INT16:206 TFT_INT32:207 TFT_INT64:208 TFT_HALF:209 TFT_FLOAT:210 TFT_DOUBLE:211 TFT_COMPLEX64:212 TFT_COMPLEX128:213 TFT_STRING:214 TFT_BFLOAT16:215 TFT_TENSOR:1000 TFT_ARRAY:1001 TFT_OPTIONAL:1002 TFT_LITERAL:1003 TFT_ENCODED:1004 TFT_SHAPE_TENSOR:1005 TFT_DATASET:10102 TFT_RAGGED:10103 TFT_ITERATOR:10104 TFT_MUTEX_LOCK:10202
DataType = DT_INVALID:0 DT_FLOAT:1 DT_DOUBLE:2 DT_INT32:3 DT_UINT8:4 DT_INT16:5 DT_INT8:6 DT_STRING:7 DT_COMPLEX64:8 DT_INT64:9 DT_BOOL:10 DT_QINT8:11 DT_QUINT8:12 DT_QINT32:13 DT_BFLOAT16:14 DT_UINT16:17 DT_HALF:19 DT_RESOURCE:20 DT_VARIANT:21 DT_UINT32:22 DT_UINT64:23 DT_FLOAT_REF:101
"""  # noqa: E501
GRAMMAR = {
    "SavedModel": {2: "MetaGraph"},
    "MetaGraph": {2: "GraphDef"},
    "GraphDef": {1: "NodeDef", 2: "Library"},
    "Library": {1: "Function"},
    "Function": {3: "NodeDef"},
    "NodeDef": {5: "AttrEntry"},
    "AttrEntry": {2: "AttrValue"},
    "AttrValue": {1: "AttrList", 8: "Tensor"},
    "AttrList": {8: "Tensor"},
    "Tensor": {4: CUT},
}
_VALUES = {  # the list a tensor's elements stand in, where they are not packed as bytes
    1: "float_val", 2: "double_val", 3: "int_val", 4: "int_val", 5: "int_val", 6: "int_val", 9: "int64_val",
    10: "bool_val", 14: "half_val", 17: "int_val", 19: "half_val", 22: "uint32_val", 23: "uint64_val",
}  # fmt: skip
_RESULTS = {  # the type of what is not of the type that the attribute T names
    "Equal": "bool", "NotEqual": "bool", "Less": "bool", "LessEqual": "bool", "Greater": "bool", "GreaterEqual": "bool",
    "IsNan": "bool", "IsInf": "bool", "IsFinite": "bool", "Shape": "int32", "ShapeN": "int32", "Size": "int32",
    "Rank": "int32", "ArgMax": "int64", "ArgMin": "int64", "Where": "int64",
}  # fmt: skip
_TYPE_ATTRIBUTES = ("dtype", "DstT", "out_type", "output_type")
_RESOURCE = 20
_Named = dict[str, tuple[str, Any]]  # tensor -> its public name, and what a signature says of it
_LARGEST_TEXT = 512 << 20
_MOST_NODES = 1_000_000
_MOST_FILLED = 1 << 28  # elements that a constant leaves out, after several that it lists


@cache
def _messages() -> dict[str, Any]:
    from fusebert.formats.schema import messages

    return messages("fusebert.tensorflow", _SCHEMA)


def message(name: str) -> Any:
    """A new message of the schema: NodeDef, Pattern, Recipe, ..."""
    return _messages()[name]()


def tensor_value(tensor: Any, where: str) -> Array:
    """The numbers of a Tensor message that has them all in it."""
    return _Reader(Path(where), memoryview(b""), ())._weight(tensor, where).read()


def is_saved_model(path: Path) -> bool:
    """Whether a folder is a SavedModel."""
    return any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt"))


def looks_like(data: memoryview) -> bool:
    """Whether bytes begin as a GraphDef does, with its first node; or as its text."""
    return len(data) > 4 and (data[0] == 0x0A or bytes(data[:64]).lstrip().startswith((b"node {", b"node{")))


def read_saved_model(folder: Path, tags: Sequence[str] | None = None) -> Graph:
    """The Graph in a SavedModel folder: the meta graph with these tags; else the one for serving, or the first."""
    path = folder / "saved_model.pb"
    path = path if path.is_file() else folder / "saved_model.pbtxt"
    model, reader = _parse(path, "SavedModel")
    meta = _chosen(model.meta_graphs, tags, path)
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
    graph = reader.graph(meta.graph_def, named, facts)
    prefix = folder / "variables" / "variables"
    bundle = Bundle(prefix) if prefix.with_name("variables.index").is_file() else None
    return bind(graph, meta, bundle, path)


def _chosen(metas: Sequence[Any], tags: Sequence[str] | None, path: Path) -> Any:
    if not metas:
        raise FusebertError(f"{path}: there is no graph in it")
    if tags is None:
        return next((meta for meta in metas if "serve" in meta.meta_info_def.tags), metas[0])
    for meta in metas:
        if set(meta.meta_info_def.tags) == set(tags):
            return meta
    there = " or ".join("+".join(meta.meta_info_def.tags) or "none" for meta in metas[:8])
    raise FusebertError(f"{path}: no graph has the tags {'+'.join(tags) or 'none'}; use {there}")


def read_graph(path: Path) -> Graph:
    """The Graph in a frozen GraphDef, binary or text."""
    graph, reader = _parse(path, "GraphDef")
    if not graph.node:
        raise FusebertError(f"{path}: there is no node in it")
    facts = {"format": "tensorflow GraphDef", "producer": f"version {graph.versions.producer}"}
    return reader.graph(graph, ({}, {}), facts)


def _parse(path: Path, name: str) -> tuple[Any, _Reader]:
    message, ranges = parse(path, name)
    return message, _Reader(path, map_file(path), ranges)


def parse(path: Path, name: str) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """A message of a file, binary or text, without its weights; and where those are."""
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    data = map_file(path)
    try:
        if path.suffix == ".pbtxt" or (data[0] in b"nsm \n" and b"{" in bytes(data[:256])):
            if len(data) > _LARGEST_TEXT:
                raise FusebertError("text of this size is not read; save the graph in binary form")
            return text_format.Parse(bytes(data), _messages()[name](), allow_unknown_field=True), ()
        skeleton = cut(data, GRAMMAR, name)
        return _messages()[name].FromString(skeleton.message), skeleton.ranges
    except (FusebertError, DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise FusebertError(f"{path} is not a readable TensorFlow {name}: {error}") from None


class _Reader:
    """Turns messages into values; knows where the bytes that were cut out are."""

    def __init__(self, path: Path, data: memoryview, ranges: tuple[tuple[int, int], ...]) -> None:
        self._path, self._data, self._ranges = path, data, ranges

    def _wrong(self, what: str) -> FusebertError:
        return FusebertError(f"{self._path}: {what}")

    def graph(self, graph: Any, named: tuple[_Named, _Named], facts: dict[str, Any]) -> Graph:
        """The main graph and its functions. Signatures say what goes in and out; else placeholders and dead ends do."""
        if len(graph.node) + sum(len(f.node_def) for f in graph.library.function) > _MOST_NODES:
            raise self._wrong(f"it has more than {_MOST_NODES} nodes, which no model has")
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
            inputs = {node.outputs[0] for node in nodes if node.word == "Placeholder"}
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
            if argument.type != _RESOURCE
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
                types[outputs[0]] = TensorType(str(attributes.get("dtype", "")), attributes.get("shape"))
            elif shapes := attributes.get("_output_shapes"):
                for output in outputs:
                    if (number := output_number(output)) < len(shapes):
                        types[output] = TensorType(_result_type(word, attributes, number), shapes[number])
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
        for field, content in value.ListFields():
            kind = field.name
            if kind == "tensor":
                return self._weight(content, where)
            if kind == "list":
                return _listed(content)
            if kind in _CONVERTED:
                return _CONVERTED[kind](content)
        return None

    def _weight(self, tensor: Any, where: str) -> Weight:
        shape = shape_of(tensor.tensor_shape, where)
        dtype = DTYPES.get(tensor.dtype)
        count = math.prod(shape)
        if dtype is None:
            strings = tensor.string_val
            self._check_listed(len(strings), count, where)
            return Weight(shape, "string", lambda: _filled(np.array(list(strings) or [b""], object), shape))
        content: Any = tensor.tensor_content
        if tensor.HasField("mapped"):
            offset, length = self._ranges[tensor.mapped]
            content = self._data[offset : offset + length]
        if len(content):
            size = count * np.dtype(dtype).itemsize
            if len(content) != size:
                raise self._wrong(f"{where} has {len(content)} bytes, but its shape needs {size}")
            return Weight(shape, dtype_name(tensor.dtype), lambda: _elements(content, dtype).reshape(shape))
        values = getattr(tensor, _VALUES[tensor.dtype])
        self._check_listed(len(values), count, where)
        return Weight(shape, dtype_name(tensor.dtype), lambda: _filled(_numbers(values, tensor.dtype, dtype), shape))

    def _check_listed(self, listed: int, count: int, where: str) -> None:
        if listed > count or (listed > 1 and count - listed > _MOST_FILLED):
            raise self._wrong(f"{where} has {listed} elements, but its shape needs {count}")


_CONVERTED: dict[str, Callable[[Any], Any]] = {
    "s": lambda s: s.decode("utf-8", "replace"),
    "i": int,
    "f": float,
    "b": bool,
    "type": dtype_name,
    "shape": declared_shape,
    "func": lambda func: func.name,
    "placeholder": str,
}


def _listed(items: Any) -> tuple[Any, ...]:
    for field, found in items.ListFields():
        kind = field.name
        if kind in ("i", "f", "b"):
            return tuple(found)
        if kind in _CONVERTED:
            return tuple(map(_CONVERTED[kind], found))
    return ()


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


def _elements(content: Any, dtype: Any) -> Array:
    data = np.frombuffer(content, np.uint8)
    return (data if data.ctypes.data % np.dtype(dtype).itemsize == 0 else data.copy()).view(dtype)


def _numbers(values: Any, kind: int, dtype: Any) -> Array:
    """A tensor's listed elements; none stands for a zero."""
    if kind in (14, 19):
        return np.array(list(values) or [0], np.int64).astype(np.uint16).view(dtype)
    return np.array(list(values) or [0]).astype(dtype)


def _filled(listed: Array, shape: tuple[int, ...]) -> Array:
    """All elements: the last one that is listed stands for those that are left out. A single one is not copied: the
    array is a view of it."""
    if len(listed) == 1:
        return np.broadcast_to(listed[0], shape)
    return np.concatenate([listed, np.full(math.prod(shape) - len(listed), listed[-1], listed.dtype)]).reshape(shape)


def _main_tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"
