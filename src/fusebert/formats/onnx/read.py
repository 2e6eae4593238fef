"""ONNX file -> Graph. Nothing is executed, weights stay in the file until they are read, and external data is taken
only from the model's own folder."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.files import map_file
from fusebert.formats.onnx.order import sort_nodes
from fusebert.formats.onnx.repair import repair
from fusebert.formats.onnx.types import DTYPES, LISTED, NAMES, STRING
from fusebert.formats.protobuf.wire import CUT, Skeleton, cut, placed
from fusebert.ops.graph import Array, AttributeOf, Graph, Node, TensorType, Weight
from fusebert.values import limits

_SCHEMA = """
Model: 1 ir_version int64, 2 producer_name string, 3 producer_version string, 7 graph Graph, 8 opset_import Opset*, 25 functions Function*
Opset: 1 domain string, 2 version int64
Graph: 1 node Node*, 2 name string, 5 initializer Tensor*, 11 input Value*, 12 output Value*, 13 value_info Value*, 15 sparse_initializer Sparse*
Sparse: 1 values Tensor
Node: 1 input string*, 2 output string*, 3 name string, 4 op_type string, 5 attribute Attribute*, 7 domain string
Attribute: 1 name string, 2 f float, 3 i int64, 4 s bytes, 5 t Tensor, 6 g Graph, 7 floats float*, 8 ints int64*, 9 strings bytes*, 10 tensors Tensor*, 11 graphs Graph*, 20 type int32, 21 ref_attr_name string
Tensor: 1 dims int64*, 2 data_type int32, 4 float_data float+, 5 int32_data int32+, 6 string_data bytes*, 7 int64_data int64+, 8 name string, 9 raw_data bytes, 10 double_data double+, 11 uint64_data uint64+, 13 external_data Entry*, 14 data_location int32, 536870911 mapped int64
Entry: 1 key string, 2 value string
Value: 1 name string, 2 type Type
Type: 1 tensor_type TensorType
TensorType: 1 elem_type int32, 2 shape Shape
Shape: 1 dim Dimension*
Dimension: 1 dim_value int64, 2 dim_param string
Function: 1 name string, 4 input string*, 5 output string*, 7 node Node*, 9 opset_import Opset*, 10 domain string, 11 attribute_proto Attribute*
"""  # noqa: E501
GRAMMAR = {
    "Model": {7: "Graph", 25: "Function"},
    "Graph": {1: "Node", 5: "Tensor"},
    "Function": {7: "Node", 11: "Attribute"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph"},
    "Tensor": {9: CUT},
}
_OLDEST_OPSET = 7
_IR_VERSION = 8  # of files that are written anew
_OWN_MAPPING = 1 << 20  # bytes of a weight that is mapped by itself, so that its memory is free once nobody needs it


@cache
def _messages() -> dict[str, Any]:
    from fusebert.formats.protobuf.schema import messages

    return messages("fusebert.onnx", _SCHEMA)


def looks_like(data: memoryview) -> bool:
    """Whether bytes begin as an ONNX model does: ir_version, a small number, is nearly always the first field."""
    return len(data) > 2 and data[0] == 0x08 and 1 <= data[1] < 64


@dataclass(frozen=True)
class OnnxMessage:
    """A model as a message without its weights, where those are in the file, and what had to be repaired in it."""

    path: Path
    model: Any
    skeleton: Skeleton
    repairs: tuple[str, ...]

    def graph(self) -> Graph:
        """The Graph that the message describes."""
        return _Reader(self.path, map_file(self.path), self.skeleton.ranges).model(self.model, self.repairs)


def parse(path: Path) -> OnnxMessage:
    """The message in an ONNX file."""
    from google.protobuf.message import DecodeError

    try:
        skeleton = cut(map_file(path), GRAMMAR, "Model")
        model = _messages()["Model"].FromString(skeleton.message)
        sort_nodes(model)
        return OnnxMessage(path, model, skeleton, repair(model))
    except (FusebertError, DecodeError) as error:
        raise FusebertError(f"{path} is not a readable ONNX model: {error}") from None


def empty(path: Path) -> OnnxMessage:
    """The message of a model that is yet to be written."""
    model = _messages()["Model"](ir_version=_IR_VERSION, producer_name="fusebert")
    model.graph.name = path.stem
    return OnnxMessage(path, model, Skeleton(b"", ()), ())


def external_file(path: Path, tensor: Any) -> tuple[Path, int, int | None]:
    """The file beside a model that has a tensor's data, where in it, and how many bytes, if that is said."""
    where = f"{path}: tensor {tensor.name}"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    file = path.parent / location
    named = location and "\0" not in location and not Path(location).is_absolute()
    if not named or file.resolve() != path.parent.resolve() / location:
        raise FusebertError(
            f"{where} has external data {location!r}; only files in the model's own folder are read, not links"
        )
    try:
        offset, length = int(entries.get("offset") or 0), entries.get("length")
        return file, offset, int(length) if length else None
    except ValueError as error:
        raise FusebertError(f"{where}: external data {location!r}: {error}") from None


class _Reader:
    """Turns messages into values; knows where the bytes that were cut out are."""

    def __init__(self, path: Path, data: memoryview, ranges: tuple[tuple[int, int], ...]) -> None:
        self._path, self._data, self._ranges = path, data, ranges
        self._inode = path.stat().st_ino

    def _wrong(self, what: str) -> FusebertError:
        return FusebertError(f"{self._path}: {what}")

    def model(self, model: Any, repairs: tuple[str, ...]) -> Graph:
        opsets = _opsets(model)
        if not model.HasField("graph"):
            raise self._wrong("there is no graph in it")
        if opsets.get("ai.onnx", _OLDEST_OPSET) < _OLDEST_OPSET:
            raise UnsupportedError(
                f"{self._path}: opset {opsets['ai.onnx']} is too old; {_OLDEST_OPSET} and later are supported"
            )
        functions = {f"{f.domain}.{f.name}" if f.domain else f.name: self._function(f) for f in model.functions}
        facts = {
            "format": "onnx",
            "producer": f"{model.producer_name} {model.producer_version}".strip(),
            "opsets": opsets,
        }
        if repairs:
            facts["repairs"] = repairs
        return self._graph(model.graph, frozenset(), functions, facts)

    def _graph(
        self,
        graph: Any,
        outer: frozenset[str],
        functions: dict[str, Graph] | None = None,
        facts: dict[str, Any] | None = None,
    ) -> Graph:
        if graph.sparse_initializer:
            raise UnsupportedError(f"{self._path}: sparse initializers are not supported; save the model without them")
        weights = {}
        for tensor in graph.initializer:
            if not tensor.name or tensor.name in weights:
                raise self._wrong(f"initializer {tensor.name!r} has no name or stands there twice")
            weights[tensor.name] = self._weight(tensor, f"initializer {tensor.name}")
        values = [*graph.input, *graph.output, *graph.value_info]
        inputs = tuple(value.name for value in graph.input if value.name not in weights)
        nodes = self._nodes(graph.node, weights, frozenset({*outer, *inputs}))
        outputs = tuple(value.name for value in graph.output)
        return Graph(nodes, inputs, outputs, weights, {v.name: _type(v) for v in values}, functions or {}, facts or {})

    def _function(self, function: Any) -> Graph:
        weights: dict[str, Weight] = {}
        nodes = self._nodes(function.node, weights, frozenset(function.input))
        defaults = {a.name: self._attribute(a, f"function {function.name}", set()) for a in function.attribute_proto}
        facts = {"opsets": _opsets(function), "defaults": defaults}
        return Graph(nodes, tuple(function.input), tuple(function.output), weights, facts=facts)

    def _nodes(self, messages: Iterable[Any], weights: dict[str, Weight], known: frozenset[str]) -> tuple[Node, ...]:
        """Nodes with their attributes; a Constant becomes a weight. Checks that every tensor that is read is made, and
        once."""
        made = {*known, *weights}
        nodes = []
        for i, message in enumerate(messages):
            where = f"node {message.name or i} ({message.op_type})"
            for name in message.input:
                if name and name not in made:
                    raise self._wrong(f"{where} reads {name!r}, which nothing makes")
            for name in filter(None, message.output):
                if name in made:
                    raise self._wrong(f"{where} makes {name!r}, which is there already")
                made.add(name)
            attributes = {a.name: self._attribute(a, where, made) for a in message.attribute}
            given = any(isinstance(value, AttributeOf) for value in attributes.values())
            if message.op_type == "Constant" and not message.domain and len(message.output) == 1 and not given:
                weights[message.output[0]] = self._constant(attributes, where)
                continue
            word = f"{message.domain}.{message.op_type}" if message.domain not in ("", "ai.onnx") else message.op_type
            nodes.append(Node(word, tuple(message.input), tuple(message.output), attributes, message.name))
        return tuple(nodes)

    def _attribute(self, a: Any, where: str, known: set[str]) -> Any:
        kinds: dict[int, Callable[[], Any]] = {
            1: lambda: float(a.f),
            2: lambda: int(a.i),
            3: lambda: a.s.decode("utf-8", "replace"),
            4: lambda: self._weight(a.t, f"{where} attribute {a.name}"),
            5: lambda: self._graph(a.g, frozenset(known)),
            6: lambda: tuple(a.floats),
            7: lambda: tuple(a.ints),
            8: lambda: tuple(s.decode("utf-8", "replace") for s in a.strings),
            9: lambda: tuple(self._weight(t, f"{where} attribute {a.name}") for t in a.tensors),
            10: lambda: tuple(self._graph(g, frozenset(known)) for g in a.graphs),
        }
        if a.ref_attr_name:
            return AttributeOf(a.ref_attr_name)
        if a.type not in kinds:
            raise self._wrong(f"{where} has attribute {a.name} of unknown type {a.type}")
        return kinds[a.type]()

    def _constant(self, attributes: dict[str, Any], where: str) -> Weight:
        value = next(iter(attributes.values()), None)
        if isinstance(value, Weight):
            return value
        kinds = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
        name = next(iter(attributes), "")
        if name not in kinds:
            raise self._wrong(f"{where}: a Constant with {name or 'no value'} is not supported")
        return Weight.of(np.asarray(value, kinds[name]))

    def _weight(self, tensor: Any, where: str) -> Weight:
        shape = tuple(tensor.dims)
        count = math.prod(shape)
        if (
            len(shape) > 32
            or min(shape, default=0) < 0
            or max(shape, default=0) > limits.ELEMENTS
            or count > limits.ELEMENTS
        ):
            raise self._wrong(f"{where} has an impossible shape {shape[:8]}")
        if tensor.data_type == STRING:
            if len(tensor.string_data) != count:
                raise self._wrong(f"{where} has {len(tensor.string_data)} strings, but its shape needs {count}")
            return Weight(shape, "string", lambda: np.array(list(tensor.string_data), object).reshape(shape))
        dtype = DTYPES.get(tensor.data_type)
        if dtype is None:
            raise self._wrong(f"{where} has element type {tensor.data_type}, which is not supported")
        size = count * np.dtype(dtype).itemsize
        read = self._bytes_of(tensor, where, dtype, size) or self._listed(tensor, where, dtype, count)
        return Weight(shape, NAMES[tensor.data_type], lambda: read().reshape(shape))

    def _bytes_of(self, tensor: Any, where: str, dtype: Any, size: int) -> Callable[[], Array] | None:
        """The raw bytes of a tensor: cut out of the file, inside the message, or in a file beside the model."""
        if tensor.data_location == 1:
            return self._external(tensor, where, dtype, size)
        if tensor.HasField("mapped"):
            offset, length = placed(self._ranges, tensor.mapped)
            data = np.frombuffer(self._data, np.uint8, length, offset)
            if length == size and length > _OWN_MAPPING:
                return lambda: self._mapped_alone(offset, length).view(dtype)
        elif tensor.HasField("raw_data"):
            data = np.frombuffer(tensor.raw_data, np.uint8)
        else:
            return None
        if len(data) != size:
            raise self._wrong(f"{where} has {len(data)} bytes, but its shape needs {size}")
        return lambda: data.view(dtype)

    def _mapped_alone(self, offset: int, length: int) -> Array:
        """Bytes of the file in a mapping of their own, unless the path has another file by now."""
        with suppress(OSError):
            if self._path.stat().st_ino == self._inode:
                return _mapped(self._path, offset, length)
        return np.frombuffer(self._data, np.uint8, length, offset)

    def _external(self, tensor: Any, where: str, dtype: Any, size: int) -> Callable[[], Array]:
        file, offset, length = external_file(self._path, tensor)
        try:
            available = file.stat().st_size
        except OSError as error:
            raise self._wrong(f"{where}: external data {file.name!r}: {error}") from None
        if offset < 0 or length not in (None, size) or offset + size > available:
            raise self._wrong(f"{where} needs {size} bytes at {offset} of {file.name!r}, which has {available}")
        if size == 0:
            return lambda: np.empty(0, dtype)
        return lambda: _mapped(file, offset, size).view(dtype)

    def _listed(self, tensor: Any, where: str, dtype: Any, count: int) -> Callable[[], Array]:
        """Elements in one of the typed lists; 16-bit floats are kept as whole numbers there."""
        values = getattr(tensor, LISTED[tensor.data_type])
        if len(values) != count:
            raise self._wrong(f"{where} has {len(values)} elements, but its shape needs {count}")
        if NAMES[tensor.data_type] in ("float16", "bfloat16"):
            return lambda: np.array(values, np.int64).astype(np.uint16).view(dtype)
        return lambda: np.array(values).astype(dtype)


def _mapped(file: Path, offset: int, length: int) -> Array:
    return np.asarray(np.memmap(file, np.uint8, "r", offset, (length,)))


def _opsets(message: Any) -> dict[str, int]:
    """The version of each domain that a model or function is written in."""
    return {entry.domain or "ai.onnx": entry.version for entry in message.opset_import}


def _type(value: Any) -> TensorType:
    tensor = value.type.tensor_type
    shape = tuple(
        (int(d.dim_value) if d.HasField("dim_value") else d.dim_param or None) for d in tensor.shape.dim
    ) if tensor.HasField("shape") else None  # fmt: skip
    return TensorType(NAMES.get(tensor.elem_type, ""), shape)
