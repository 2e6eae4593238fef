"""Meaning: which attributes and operations change what a graph computes, so that a pattern is only found where it is
the same computation; and the rules of the op `Bert`, by which node definitions are checked without running anything."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.tensor import tensor_value
from fusebert.formats.tensorflow.types import dtype_name
from fusebert.recipes.scope import Node, read_nodes

COMMUTATIVE = frozenset((
    "Add", "AddV2", "Mul", "Maximum", "Minimum", "LogicalAnd", "LogicalOr", "Equal", "NotEqual", "SquaredDifference",
    "BitwiseAnd", "BitwiseOr",
))  # fmt: skip
QUIET = frozenset(("Identity", "StopGradient", "Snapshot", "PreventGradient"))  # give what they are given
SHAPES = frozenset((  # compute shapes, or lay out what is there: of no use where nobody reads them
    "Shape", "ShapeN", "Size", "Rank", "StridedSlice", "Slice", "Pack", "Unpack", "Prod", "GatherV2", "ConcatV2",
    "Cast", "Reshape", "Squeeze", "ExpandDims", "Const", "Mul", "Add", "AddV2", "Sub", "Range",
))  # fmt: skip
WEIGHTS = frozenset(["Const", "ReadVariableOp", "VariableV2", "Variable", "VarHandleOp"])
_INT32, _FLOAT = 3, 1
_DEFAULTS: dict[str, Any] = {  # what attributes are where they are left out
    **dict.fromkeys(("transpose_a", "transpose_b", "adj_x", "adj_y", "grad_a", "grad_b", "grad_x", "grad_y"), False),
    **dict.fromkeys(("a_is_sparse", "b_is_sparse", "keep_dims", "Truncate", "exclusive", "reverse"), False),
    **dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0),
    **dict.fromkeys(("batch_dims", "axis"), 0),
    **dict.fromkeys(("Tidx", "Tperm", "Tshape", "Tdim", "Tpaxis", "index_type", "out_type", "Tmultiples"), _INT32),
    "data_format": b"NHWC", "squeeze_dims": (), "validate_indices": True, "approximate": False,
    "incompatible_shape_error": True,
}  # fmt: skip


def compared(key: str, ignored: frozenset[str], asked: frozenset[str]) -> bool:
    """Whether an attribute counts: those with a leading underscore are remarks, unless asked for."""
    return key not in ignored and (not key.startswith("_") or key in asked)


def difference(first: Node, second: Node, ignored: frozenset[str], asked: frozenset[str]) -> str | None:
    """The first attribute in which two nodes differ, as a sentence's end; None if they compute the same."""
    ours, theirs = (
        {entry.key: entry.value for entry in node.message.attr if compared(entry.key, ignored, asked)}
        for node in (first, second)
    )
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if a is not None and b is not None:
            if a.SerializeToString(deterministic=True) != b.SerializeToString(deterministic=True) and plain(a) != plain(
                b
            ):
                return f"attribute {key} is {_shown(b)}, not {_shown(a)}"
        else:
            given = a if a is not None else b
            if key not in _DEFAULTS or plain(given) != _DEFAULTS[key]:
                return f"attribute {key} is {_shown(b)}, not {_shown(a)}"
    if "device" in asked and first.message.device != second.message.device:
        return f"its device is {second.message.device!r}, not {first.message.device!r}"
    return None


def plain(value: Any) -> Any:
    """An attribute as a value that can be compared."""
    fields = value.ListFields()
    if not fields:
        return None
    field, content = fields[0]
    if field.name == "list":
        lists = content.ListFields()
        return tuple(one if isinstance(one, (int, float, bytes)) else str(one) for one in lists[0][1]) if lists else ()
    if field.name in ("s", "i", "f", "b", "type", "placeholder"):
        return content
    return str(content)


def _shown(value: Any) -> str:
    if value is None:
        return "left out"
    if value.HasField("type"):
        return dtype_name(value.type)
    shown = plain(value)
    return shown.decode("utf-8", "replace") if isinstance(shown, bytes) else " ".join(str(shown).split())[:80]


# ---- the op Bert: docs/tensorflow-op.md, native/hosts/tf_op.cc ----

PER_LAYER = 16
OPS = ("Bert", "BertHiddenStates")
TYPES = {"float32": 1, "float": 1, "int32": 3, "int64": 9, "bool": 10, "qint8": 11, "bfloat16": 14}
ATTRIBUTES: dict[str, tuple[str, Any, tuple[Any, ...]]] = {  # kind, default (None: there must be one), what is allowed
    "MaskT": ("type", None, (1, 3, 9, 10)),
    "QuantizableDataType": ("type", 1, (1, 11)),
    "NonQuantizableDataType": ("type", 1, (1, 14)),
    "NumWeights": ("i", None, ()),
    "HiddenSize": ("i", 768, ()),
    "NumAttentionHeads": ("i", 12, ()),
    "IntermediateSize": ("i", 3072, ()),
    "MaxSequenceLength": ("i", 128, ()),
    "HiddenAct": ("s", b"gelu_tanh", (b"gelu_tanh", b"gelu_erf", b"gelu_quick", b"relu")),
    "CalibrateQuantFactors": ("b", False, ()),
    "QuantizationFactorsPath": ("s", b"", ()),
    "QuantizationFactors": ("list", (), ()),
    "InputScales": ("list", (), ()),
    "LayerNormEpsilon": ("f", 1e-12, ()),
    "AttentionScale": ("f", 0.0, ()),
    "AdditiveMask": ("b", False, ()),
    "MaskValue": ("f", -10000.0, ()),
    "Padding": ("s", b"compute", (b"compute", b"first", b"skip")),
    "NumThreads": ("i", 0, ()),
    "NumHiddenStates": ("i", 0, ()),
}
_ACTIVATIONS = {
    "Erf": "gelu_erf", "Erfc": "gelu_erf", "Tanh": "gelu_tanh", "Sigmoid": "gelu_quick", "Relu": "relu",
}  # fmt: skip
_AT_LEAST = {"NumThreads": 0, "NumHiddenStates": 0, "NumWeights": PER_LAYER}


def settings_of(node: Any) -> dict[str, Any]:
    """The attributes of a Bert node with their defaults. Raises where one is unknown or not allowed."""
    found: dict[str, Any] = {}
    for entry in node.attr:
        if entry.key.startswith("_"):
            continue
        if entry.key not in ATTRIBUTES:
            raise FusebertError(f"{node.name}: the op {node.op} has no attribute {entry.key}")
        kind, _, allowed = ATTRIBUTES[entry.key]
        if not entry.value.HasField(kind):
            raise FusebertError(f"{node.name}: attribute {entry.key} must be given as {kind!r}")
        value = plain(entry.value)
        if allowed and value not in allowed:
            names = ", ".join(_allowed(kind, one) for one in allowed)
            raise FusebertError(f"{node.name}: {entry.key} is {_shown(entry.value)}; use one of {names}")
        if kind == "i" and value < _AT_LEAST.get(entry.key, 1):
            raise FusebertError(f"{node.name}: {entry.key} is {value}")
        found[entry.key] = value
    return {key: found.get(key, default) for key, (_, default, _) in ATTRIBUTES.items()}


def _allowed(kind: str, value: Any) -> str:
    return (
        dtype_name(value)
        if kind == "type" and value != TYPES["qint8"]
        else "qint8"
        if kind == "type"
        else value.decode()
    )


def check_node(node: Any) -> dict[str, Any]:
    """Checks a Bert node by the rules of its op, which run nothing and write nothing; gives its settings."""
    settings = settings_of(node)
    weights = sum(not name.startswith("^") for name in node.input) - 2
    layers, rest = divmod(weights, PER_LAYER)
    if layers < 1 or rest:
        raise FusebertError(f"{node.name} has {weights} weights; a layer has {PER_LAYER}")
    for key in ("MaskT", "NumWeights"):
        if settings[key] is None:
            raise FusebertError(f"{node.name} has no attribute {key}")
    if settings["NumWeights"] != weights:
        raise FusebertError(
            f"{node.name}: NumWeights is {settings['NumWeights']}, but the node has {weights} weights, {layers} layers"
        )
    if node.op == "BertHiddenStates" and settings["NumHiddenStates"] != layers:
        raise FusebertError(f"{node.name}: NumHiddenStates must be the number of layers, {layers}")
    if settings["HiddenSize"] % settings["NumAttentionHeads"]:
        raise FusebertError(
            f"{node.name}: HiddenSize {settings['HiddenSize']} cannot be shared by "
            f"{settings['NumAttentionHeads']} heads"
        )
    for key in ("LayerNormEpsilon", "AttentionScale", "MaskValue"):
        if not math.isfinite(settings[key]) or (key == "LayerNormEpsilon" and settings[key] < 0):
            raise FusebertError(f"{node.name}: {key} is {settings[key]}")
    _check_precision(node, settings, layers)
    return settings


def _check_precision(node: Any, settings: Mapping[str, Any], layers: int) -> None:
    int8, bf16 = (
        settings["QuantizableDataType"] == TYPES["qint8"],
        settings["NonQuantizableDataType"] == TYPES["bfloat16"],
    )
    path, factors, scales = (settings[k] for k in ("QuantizationFactorsPath", "QuantizationFactors", "InputScales"))
    if settings["CalibrateQuantFactors"]:
        if int8 or bf16:
            raise FusebertError(f"{node.name}: calibration runs in floats: turn quantisation and bfloat16 off (-Q -B)")
        if not path:
            raise FusebertError(f"{node.name}: calibration needs a file to write to (-p FILE)")
    if not int8:
        return
    if factors and path:
        raise FusebertError(f"{node.name}: give QuantizationFactors or QuantizationFactorsPath, not both")
    if factors and len(factors) != 8 * layers:
        raise FusebertError(
            f"{node.name}: QuantizationFactors hold {len(factors)} numbers; {layers} layers need {8 * layers}"
        )
    if not scales:
        return
    if factors or path:
        raise FusebertError(
            f"{node.name}: it has InputScales, which need no quantisation factors; give none, or begin with --reset"
        )
    wanted = 2 * layers * settings["HiddenSize"]
    if len(scales) != wanted:
        raise FusebertError(f"{node.name}: InputScales hold {len(scales)} numbers; {layers} layers need {wanted}")


def contradictions(pattern: Any, node: Any) -> Iterator[str]:
    """Where a Bert node does not compute what a pattern does: activation and epsilon, as far as they can be seen."""
    if node.op not in OPS:
        return
    settings = settings_of(node)
    nodes = read_nodes((*pattern.seed_nodes, *pattern.internal_nodes), "the pattern")
    seen = {one.op: _ACTIVATIONS[one.op] for one in nodes.values() if one.op in _ACTIVATIONS}
    activation = settings["HiddenAct"].decode()
    if seen and activation not in seen.values():
        op, wanted = next(iter(seen.items()))
        name = "GELU" if wanted.startswith("gelu") else "its activation"
        yield f"the pattern computes {name} by {op}, but {node.name} has HiddenAct {activation}; it should be {wanted}"
    constants = {one.name: one for one in pattern.input_nodes if one.op == "Const"}
    for one in nodes.values():
        if one.op != "Rsqrt" or not one.inputs:
            continue
        added = nodes.get(one.inputs[0].node)
        for edge in added.inputs if added is not None and added.op in ("Add", "AddV2") else ():
            epsilon = scalar(constants.get(edge.node))
            if epsilon is not None and abs(epsilon - settings["LayerNormEpsilon"]) > 1e-9 + 1e-3 * abs(epsilon):
                yield (
                    f"the pattern's LayerNorm adds {epsilon:.3g} ({edge.node}), but {node.name} has LayerNormEpsilon "
                    f"{settings['LayerNormEpsilon']:.3g}"
                )
                return


def scalar(constant: Any) -> float | None:
    """The number that a Const of a pattern is."""
    tensor = next((e.value.tensor for e in constant.attr if e.key == "value"), None) if constant is not None else None
    if tensor is None or tensor.tensor_shape.dim or tensor.dtype == 7:
        return None
    return float(tensor_value(tensor, constant.name))
