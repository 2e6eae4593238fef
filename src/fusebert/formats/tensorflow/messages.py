"""The messages of TensorFlow's files: SavedModel, GraphDef and what is in them, and the files of patterns and recipes.
A file is parsed without its weights, which stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.files import map_file
from fusebert.formats.protobuf.wire import CUT, cut
from fusebert.formats.tensorflow.types import NUMBERS, Type, declared_shape, dtype_name
from fusebert.values import limits

_SCHEMA = """
SavedModel: 1 saved_model_schema_version int64, 2 meta_graphs MetaGraph*
MetaGraph: 1 meta_info_def MetaInfo, 2 graph_def GraphDef, 3 saver_def Saver, 4 collection_def Collection*, 5 signature_def SignatureEntry*, 7 object_graph_def ObjectGraph
MetaInfo: 4 tags string*, 5 tensorflow_version string
Saver: 1 filename_tensor_name string, 2 save_tensor_name string, 3 restore_op_name string, 4 max_to_keep int32, 7 version SaverVersion
Collection: 1 key string, 2 value CollectionItems
CollectionItems: 1 node_list NodeList, 2 bytes_list BytesList
NodeList: 1 value string*
BytesList: 1 value bytes*
VariableDef: 1 variable_name string, 2 initializer_name string, 3 snapshot_name string, 5 is_resource bool
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
Function: 1 signature OpDef, 3 node_def NodeDef*, 4 ret StringEntry*, 5 attr AttrEntry*, 6 control_ret StringEntry*, 7 arg_attr Numbered*, 8 resource_arg_unique_id Numbered*
Numbered: 1 key uint32
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
SaverVersion = LEGACY:0 V1:1 V2:2
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


@cache
def _messages() -> dict[str, Any]:
    from fusebert.formats.protobuf.schema import messages

    return messages("fusebert.tensorflow", _SCHEMA)


def message(name: str) -> Any:
    """A new message of the schema: NodeDef, Pattern, Recipe, ..."""
    return _messages()[name]()


def set_attribute(attribute: Any, value: Any) -> None:
    """Fills an AttrValue with a Type, bool, int, float or str, or a sequence of floats or of Types."""
    if isinstance(value, Type):
        attribute.type = NUMBERS[value.name]
    elif isinstance(value, bool):
        attribute.b = value
    elif isinstance(value, int):
        attribute.i = value
    elif isinstance(value, float):
        attribute.f = value
    elif isinstance(value, str):
        attribute.s = value.encode()
    elif value and isinstance(value[0], Type):
        attribute.list.type.extend(NUMBERS[kind.name] for kind in value)
    else:
        attribute.list.f.extend(value)


def attribute_value(attribute: Any) -> Any:
    """What an AttrValue holds, unless it is a tensor: types and functions by name, lists as tuples; None if empty."""
    for field, content in attribute.ListFields():
        if field.name == "list":
            return _listed(content)
        if field.name in _CONVERTED:
            return _CONVERTED[field.name](content)
    return None


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


def parse(path: Path, name: str) -> tuple[Any, tuple[tuple[int, int], ...]]:
    """A message of a file, binary or text, without its weights; and where those are."""
    from google.protobuf import text_format
    from google.protobuf.message import DecodeError

    data = map_file(path)
    try:
        if path.suffix == ".pbtxt" or (data[0] in b"nsm \n" and b"{" in bytes(data[:256])):
            if len(data) > limits.MESSAGE_BYTES:
                raise FusebertError("text of this size is not read; save the graph in binary form")
            return text_format.Parse(bytes(data), message(name), allow_unknown_field=True), ()
        skeleton = cut(data, GRAMMAR, name)
        return _messages()[name].FromString(skeleton.message), skeleton.ranges
    except (FusebertError, DecodeError, text_format.ParseError, ValueError, RecursionError) as error:
        raise FusebertError(f"{path} is not a readable TensorFlow {name}: {error}") from None
