"""TensorFlow SavedModel folder or frozen GraphDef -> Graph. Nothing is executed; variables stay in their files.

Tensors are named as TensorFlow names them: `node:0` in the main graph, `node:output:0` and arguments by name inside
functions. A variable's weight stands under the tensor of its handle. Control inputs are kept in `attributes` as `^`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.files import map_file
from fusebert.formats.tf_bundle import Bundle
from fusebert.formats.tf_types import DTYPES, declared_shape, dtype_name, shape_of
from fusebert.formats.wire import CUT, cut
from fusebert.graph import Array, Graph, Node, TensorType, Weight

_SCHEMA = """
SavedModel: 1 saved_model_schema_version int64, 2 meta_graphs MetaGraph*
MetaGraph: 1 meta_info_def MetaInfo, 2 graph_def GraphDef, 5 signature_def SignatureEntry*
MetaInfo: 4 tags string*, 5 tensorflow_version string
SignatureEntry: 1 key string, 2 value Signature
Signature: 1 inputs TensorInfoEntry*, 2 outputs TensorInfoEntry*, 3 method_name string
TensorInfoEntry: 1 key string, 2 value TensorInfo
TensorInfo: 1 name string, 2 dtype DataType, 3 tensor_shape Shape
GraphDef: 1 node NodeDef*, 2 library Library, 4 versions Versions
Versions: 1 producer int32
Library: 1 function Function*
Function: 1 signature OpDef, 3 node_def NodeDef*, 4 ret StringEntry*
OpDef: 1 name string, 2 input_arg Argument*, 3 output_arg Argument*
Argument: 1 name string, 3 type DataType
StringEntry: 1 key string, 2 value string
NodeDef: 1 name string, 2 op string, 3 input string*, 4 device string, 5 attr AttrEntry*
AttrEntry: 1 key string, 2 value AttrValue
AttrValue: 1 list AttrList, 2 s bytes, 3 i int64, 4 f float, 5 b bool, 6 type DataType, 7 shape Shape, 8 tensor Tensor, 9 placeholder string, 10 func NameAttr
AttrList: 2 s bytes*, 3 i int64+, 4 f float+, 5 b bool+, 6 type DataType+, 7 shape Shape*, 8 tensor Tensor*, 9 func NameAttr*
NameAttr: 1 name string, 2 attr AttrEntry*
Tensor: 1 dtype DataType, 2 tensor_shape Shape, 4 tensor_content bytes, 5 float_val float+, 6 double_val double+, 7 int_val int32+, 8 string_val bytes*, 10 int64_val int64+, 11 bool_val bool+, 13 half_val int32+, 16 uint32_val uint32+, 17 uint64_val uint64+, 536870911 mapped int64
Shape: 2 dim Dimension*, 3 unknown_rank bool
Dimension: 1 size int64, 2 name string
DataType = DT_INVALID:0 DT_FLOAT:1 DT_DOUBLE:2 DT_INT32:3 DT_UINT8:4 DT_INT16:5 DT_INT8:6 DT_STRING:7 DT_COMPLEX64:8 DT_INT64:9 DT_BOOL:10 DT_QINT8:11 DT_QUINT8:12 DT_QINT32:13 DT_BFLOAT16:14 DT_UINT16:17 DT_HALF:19 DT_RESOURCE:20 DT_VARIANT:21 DT_UINT32:22 DT_UINT64:23 DT_FLOAT_REF:101
"""  # noqa: E501
_GRAMMAR = {
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
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_LARGEST_TEXT = 512 << 20


@cache
def _messages() -> dict[str, Any]:
    from fusebert.formats.schema import messages

    return messages("fusebert.tensorflow", _SCHEMA)


def is_saved_model(path: Path) -> bool:
    """Whether a folder is a SavedModel."""
    return any((path / name).is_file() for name in ("saved_model.pb", "saved_model.pbtxt"))


def looks_like(data: memoryview) -> bool:
    """Whether bytes begin as a GraphDef does, with its first node; or as its text."""
    return len(data) > 4 and (data[0] == 0x0A or bytes(data[:64]).lstrip().startswith((b"node {", b"node{")))


def read_saved_model(folder: Path) -> Graph:
    """The Graph in a SavedModel folder: the meta graph for serving, or the first."""
    path = folder / "saved_model.pb"
    path = path if path.is_file() else folder / "saved_model.pbtxt"
    model, reader = _parse(path, "SavedModel")
    if not model.meta_graphs:
        raise FusebertError(f"{path}: there is no graph in it")
    meta = next((m for m in model.meta_graphs if "serve" in m.meta_info_def.tags), model.meta_graphs[0])
    prefix = folder / "variables" / "variables"
    variables = Bundle(prefix).by_variable() if prefix.with_name("variables.index").is_file() else {}
    facts = {
        "format": "tensorflow SavedModel",
        "producer": f"tensorflow {meta.meta_info_def.tensorflow_version}".strip(),
        "tags": [list(m.meta_info_def.tags) for m in model.meta_graphs],
        "signatures": [entry.key for entry in meta.signature_def],
    }
    signatures = [entry.value for entry in meta.signature_def if not entry.key.startswith("__")]
    return reader.graph(meta.graph_def, variables, signatures, facts)


def read_graph(path: Path) -> Graph:
    """The Graph in a frozen GraphDef, binary or text."""
    graph, reader = _parse(path, "GraphDef")
    if not graph.node:
        raise FusebertError(f"{path}: there is no node in it")
    return reader.graph(
        graph, {}, [], {"format": "tensorflow GraphDef", "producer": f"version {graph.versions.producer}"}
    )


def _parse(path: Path, name: str) -> tuple[Any, _Reader]:
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    data = map_file(path)
    try:
        if path.suffix == ".pbtxt" or (data[0] in b"nsm \n" and b"{" in bytes(data[:256])):
            if len(data) > _LARGEST_TEXT:
                raise FusebertError("text of this size is not read; save the graph in binary form")
            message = text_format.Parse(bytes(data), _messages()[name](), allow_unknown_field=True)
            return message, _Reader(path, data, ())
        skeleton = cut(data, _GRAMMAR, name)
        return _messages()[name].FromString(skeleton.message), _Reader(path, data, skeleton.ranges)
    except (FusebertError, DecodeError, text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise FusebertError(f"{path} is not a readable TensorFlow {name}: {error}") from None


class _Reader:
    """Turns messages into values; knows where the bytes that were cut out are."""

    def __init__(self, path: Path, data: memoryview, ranges: tuple[tuple[int, int], ...]) -> None:
        self._path, self._data, self._ranges = path, data, ranges

    def _wrong(self, what: str) -> FusebertError:
        return FusebertError(f"{self._path}: {what}")

    def graph(self, graph: Any, variables: Mapping[str, Weight], signatures: list[Any], facts: dict[str, Any]) -> Graph:
        """The main graph and its functions. Signatures say what goes in and out; else placeholders and dead ends do."""
        weights: dict[str, Weight] = {}
        types: dict[str, TensorType] = {}
        nodes = self._nodes(graph.node, weights, types, _main_tensor)
        for node in nodes:
            if node.word in _VARIABLES and (stored := _stored(node, variables)):
                weights[node.outputs[0]] = stored
        functions = {}
        for function in graph.library.function:
            if function.signature.name in functions:
                raise self._wrong(f"function {function.signature.name} stands there twice")
            functions[function.signature.name] = self._function(function)
        inputs = {_main_tensor(i.value.name) for s in signatures for i in s.inputs if i.value.name}
        outputs = {_main_tensor(o.value.name) for s in signatures for o in s.outputs if o.value.name}
        if not signatures:
            read = {name for node in nodes for name in node.inputs}
            inputs = {node.outputs[0] for node in nodes if node.word == "Placeholder"}
            outputs = {n.outputs[0] for n in nodes if not read & set(n.outputs)} - inputs
        for s in signatures:
            for entry in [*s.inputs, *s.outputs]:
                info = entry.value
                types[_main_tensor(info.name)] = TensorType(dtype_name(info.dtype), declared_shape(info.tensor_shape))
        return Graph(nodes, tuple(sorted(inputs)), tuple(sorted(outputs)), weights, types, functions, facts)

    def _function(self, function: Any) -> Graph:
        weights: dict[str, Weight] = {}
        types: dict[str, TensorType] = {}
        arguments = tuple(argument.name for argument in function.signature.input_arg)
        nodes = self._nodes(function.node_def, weights, types, lambda name: name, arguments)
        returned = {entry.key: entry.value for entry in function.ret}
        outputs = []
        for argument in function.signature.output_arg:
            if argument.name not in returned:
                raise self._wrong(f"function {function.signature.name} does not say what its output {argument.name} is")
            outputs.append(returned[argument.name])
        return Graph(nodes, arguments, tuple(outputs), weights, types)

    def _nodes(
        self,
        messages: Iterable[Any],
        weights: dict[str, Weight],
        types: dict[str, TensorType],
        tensor: Callable[[str], str],
        arguments: tuple[str, ...] = (),
    ) -> tuple[Node, ...]:
        """Nodes in the file's order. A Const becomes a weight; outputs are those that somebody reads."""
        messages = list(messages)
        names = {message.name for message in messages}
        if len(names) < len(messages):
            raise self._wrong("two nodes have the same name")
        used: dict[str, dict[str, None]] = {name: {} for name in names}
        for message in messages:
            for name in message.input:
                source = name.lstrip("^").split(":")[0]
                if source not in names and source not in arguments:
                    raise self._wrong(f"node {message.name} ({message.op}) reads {name!r}, which nothing makes")
                if not name.startswith("^") and source in names:
                    used[source][tensor(name)] = None
        nodes = []
        for message in messages:
            where = f"node {message.name} ({message.op})"
            attributes = {entry.key: self._attribute(entry.value, where) for entry in message.attr}
            outputs = tuple(used[message.name]) or (f"{message.name}:0",)
            if message.op == "Const":
                if not isinstance(attributes.get("value"), Weight):
                    raise self._wrong(f"{where} has no value")
                weights.update(dict.fromkeys(outputs, attributes["value"]))
                continue
            if message.op == "Placeholder":
                types[outputs[0]] = TensorType(str(attributes.get("dtype", "")), attributes.get("shape"))
            elif shapes := attributes.get("_output_shapes"):
                dtype = attributes.get("dtype") or attributes.get("T") or ""
                types[outputs[0]] = TensorType(str(dtype), shapes[0])
            inputs = tuple(tensor(name) for name in message.input if not name.startswith("^"))
            if controls := tuple(name[1:] for name in message.input if name.startswith("^")):
                attributes["^"] = controls
            nodes.append(Node(message.op, inputs, outputs, attributes, message.name))
        return tuple(nodes)

    def _attribute(self, value: Any, where: str) -> Any:
        if value.HasField("tensor"):
            return self._weight(value.tensor, where)
        if value.HasField("list"):
            items = value.list
            for name in ("i", "f", "b"):
                if len(found := getattr(items, name)):
                    return tuple(found)
            if len(items.shape):
                return tuple(declared_shape(shape) for shape in items.shape)
            if len(items.type):
                return tuple(dtype_name(kind) for kind in items.type)
            return tuple(s.decode("utf-8", "replace") for s in items.s) or tuple(f.name for f in items.func)
        kinds: dict[str, Callable[[Any], Any]] = {
            "s": lambda s: s.decode("utf-8", "replace"),
            "i": int,
            "f": float,
            "b": bool,
            "type": dtype_name,
            "shape": declared_shape,
            "func": lambda func: func.name,
            "placeholder": str,
        }
        for name, convert in kinds.items():
            if value.HasField(name):
                return convert(getattr(value, name))
        return None

    def _weight(self, tensor: Any, where: str) -> Weight:
        shape = shape_of(tensor.tensor_shape, where)
        dtype = DTYPES.get(tensor.dtype)
        if dtype is None:
            return Weight(shape, "string", lambda: np.array(list(tensor.string_val), object))
        count = math.prod(shape)
        size = count * np.dtype(dtype).itemsize
        content: Any = tensor.tensor_content
        if tensor.HasField("mapped"):
            offset, length = self._ranges[tensor.mapped]
            content = self._data[offset : offset + length]
        if len(content):
            if len(content) != size:
                raise self._wrong(f"{where} has {len(content)} bytes, but its shape needs {size}")
            return Weight(shape, np.dtype(dtype).name, lambda: _elements(content, dtype).reshape(shape))
        values = getattr(tensor, _VALUES[tensor.dtype])
        if len(values) > count:
            raise self._wrong(f"{where} has {len(values)} elements, but its shape needs {count}")
        return Weight(shape, np.dtype(dtype).name, lambda: _repeated(values, tensor.dtype, dtype, shape))


def _elements(content: Any, dtype: Any) -> Array:
    data = np.frombuffer(content, np.uint8)
    return (data if data.ctypes.data % np.dtype(dtype).itemsize == 0 else data.copy()).view(dtype)


def _repeated(values: Any, kind: int, dtype: Any, shape: tuple[int, ...]) -> Array:
    """A tensor's listed elements; the last one stands for all that are left out, none for zeros. A single element
    is not copied: the array is a view of it."""
    if kind in (14, 19):
        listed = np.array(values, np.int64).astype(np.uint16).view(dtype)
    else:
        listed = np.array(values).astype(dtype)
    if len(listed) <= 1:
        return np.broadcast_to(listed[0] if len(listed) else np.zeros((), dtype), shape)
    flat = np.concatenate([listed, np.full(math.prod(shape) - len(listed), listed[-1], dtype)])
    return flat.reshape(shape)


def _main_tensor(name: str) -> str:
    return name if ":" in name else f"{name}:0"


def _stored(node: Node, variables: Mapping[str, Weight]) -> Weight | None:
    for name in (node.attributes.get("shared_name"), node.name):
        if isinstance(name, str) and name in variables:
            return variables[name]
    return None
