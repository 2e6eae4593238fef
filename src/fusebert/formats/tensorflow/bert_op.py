"""The op `Bert` and its kin, EncoderForm among them, as data: their attributes, the order and shapes of their weights,
their outputs and precisions; and the rules by which a node is checked without running it. docs/tensorflow-op.md
describes them, and native/hosts/tf_op.cc registers them: a test holds this file to what is registered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.messages import attribute_value
from fusebert.formats.tensorflow.types import Type
from fusebert.values.precision import PRECISIONS
from fusebert.values.traverse import POST_NORM_PARTS, is_norm

INPUTS = ("embedded", "input_mask", "weights")
OPS = ("Bert", "BertHiddenStates")
COMPACT = ("BertCompact", "BertCompactHiddenStates")  # whose weights are bytes: fusebert writes them, nobody by hand
FORM = "EncoderForm"  # any form of encoder, by a layout (formats/layout.py)
FUSED = *OPS, *COMPACT, FORM
OUTPUTS = {op: ("encoded", "hidden_states") if op.endswith("States") else ("encoded",) for op in FUSED}
OUTPUTS[FORM] = ("encoded", "hidden_states")
WEIGHTS = tuple(  # of a layer, in the order in which a node reads them
    (part, field) for part in POST_NORM_PARTS for field in ("gain" if is_norm(part) else "weight", "bias")
)
PER_LAYER = len(WEIGHTS)
_LINEARS = tuple(part for part in POST_NORM_PARTS if not is_norm(part))
COMPACT_WEIGHTS = *WEIGHTS, *((part, field) for field in ("scales", "input_scales") for part in _LINEARS)
_SCALED = ("attention.query", "feed_forward.up")  # the parts of a layer that input scales are given for
_RANGES = 8  # numbers for a layer: low and high of what goes into four products

Settings = dict[str, Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Attribute:
    """`kind` is the field of its message; without a default it must be given; `least` is for whole numbers."""

    kind: str
    default: Any = None
    allowed: tuple[str, ...] = ()
    least: int = 1


_ATTRIBUTES = {
    "MaskT": Attribute("type", allowed=("int32", "int64", "float32", "bool")),
    "QuantizableDataType": Attribute("type", "float32", ("float32", "qint8")),
    "NonQuantizableDataType": Attribute("type", "float32", ("float32", "bfloat16")),
    "NumWeights": Attribute("i", least=PER_LAYER),
    "HiddenSize": Attribute("i", 768),
    "NumAttentionHeads": Attribute("i", 12),
    "IntermediateSize": Attribute("i", 3072),
    "MaxSequenceLength": Attribute("i", 128),
    "HiddenAct": Attribute("s", "gelu_tanh", ("gelu_tanh", "gelu_erf", "gelu_quick", "relu")),
    "CalibrateQuantFactors": Attribute("b", False),
    "QuantizationFactorsPath": Attribute("s", ""),
    "QuantizationFactors": Attribute("list", ()),
    "InputScales": Attribute("list", ()),
    "LayerNormEpsilon": Attribute("f", 1e-12),
    "AttentionScale": Attribute("f", 0.0),
    "AdditiveMask": Attribute("b", False),
    "MaskValue": Attribute("f", -10000.0),
    "Padding": Attribute("s", "compute", ("compute", "first", "skip")),
    "NumThreads": Attribute("i", 0, least=0),
}
_NOT_COMPACT = (
    "QuantizableDataType", "NumWeights", "IntermediateSize", "CalibrateQuantFactors", "MaxSequenceLength",
    "QuantizationFactorsPath", "InputScales",
)  # fmt: skip
_COMPACT = {
    **{name: attribute for name, attribute in _ATTRIBUTES.items() if name not in _NOT_COMPACT},
    "WeightTypes": Attribute("list", allowed=("float32", "int8"), least=len(COMPACT_WEIGHTS)),
}
_STATES = {"NumHiddenStates": Attribute("i")}
_FORM = {
    **{name: _ATTRIBUTES[name] for name in ("MaskT", "AdditiveMask", "MaskValue", "Padding", "NumThreads")},
    "WeightTypes": Attribute("list", allowed=("float32", "int8"), least=1),
    "Layout": Attribute("s"),
    "Precision": Attribute("s", "fp32", tuple(PRECISIONS)),
    "Ranges": Attribute("list", ()),
    "NumHiddenStates": Attribute("i", 0, least=0),
}
ATTRIBUTES = {
    **{op: _ATTRIBUTES | (_STATES if "hidden_states" in OUTPUTS[op] else {}) for op in OPS},
    **{op: _COMPACT | (_STATES if "hidden_states" in OUTPUTS[op] else {}) for op in COMPACT},
    FORM: _FORM,
}


def with_defaults(op: str, given: Mapping[str, Any]) -> Settings:
    """The attributes of an op by name: those that are given, and the defaults of the others."""
    return {name: given.get(name, attribute.default) for name, attribute in ATTRIBUTES[op].items()}


def typed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as an editor takes them: names of element types as `Type`."""
    kinds = {**_ATTRIBUTES, **_COMPACT, **_STATES, **_FORM}
    return {name: Type(value) if kinds[name].kind == "type" else value for name, value in settings.items()}


def precision_of(settings: Mapping[str, Any]) -> str:
    """The precision that a node computes in."""
    if "Precision" in settings:
        return str(settings["Precision"])
    int8 = settings.get("QuantizableDataType", "qint8") == "qint8"  # a compact op has no other
    bf16 = settings.get("NonQuantizableDataType") == "bfloat16"
    return ("int8-bf16" if bf16 else "int8") if int8 else ("bf16" if bf16 else "fp32")


def precision_types(precision: str) -> Settings:
    """The attributes that make a node compute in a precision."""
    return {
        "QuantizableDataType": "qint8" if precision.startswith("int8") else "float32",
        "NonQuantizableDataType": "bfloat16" if precision.endswith("bf16") else "float32",
    }


def weight_shapes(hidden: int, heads: int, inner: int) -> dict[tuple[str, str], tuple[Shape, ...]]:
    """The shapes that each weight of a layer may have; the first is the plain one, without a dimension for heads."""
    size = hidden // heads
    shapes: dict[tuple[str, str], tuple[Shape, ...]] = dict.fromkeys(WEIGHTS, ((hidden,),))
    for part in ("attention.query", "attention.key", "attention.value"):
        shapes[part, "weight"] = (hidden, hidden), (hidden, heads, size)
        shapes[part, "bias"] = (hidden,), (heads, size)
    shapes["attention.out", "weight"] = (hidden, hidden), (heads, size, hidden)
    shapes["feed_forward.up", "weight"], shapes["feed_forward.up", "bias"] = ((hidden, inner),), ((inner,),)
    shapes["feed_forward.down", "weight"] = ((inner, hidden),)
    return shapes


def shapes_of(settings: Mapping[str, Any]) -> dict[tuple[str, str], tuple[Shape, ...]]:
    """The shapes that the weights of a node's layers may have, by its attributes."""
    return weight_shapes(settings["HiddenSize"], settings["NumAttentionHeads"], settings["IntermediateSize"])


def settings_of(node: Any) -> Settings:
    """The attributes of a NodeDef with their defaults. Raises where one is unknown, missing or not allowed."""
    attributes = ATTRIBUTES[node.op]
    given: Settings = {}
    for entry in node.attr:
        if entry.key.startswith("_"):
            continue
        if entry.key not in attributes:
            raise FusebertError(f"{node.name}: the op {node.op} has no attribute {entry.key}; remove it")
        given[entry.key] = _checked(node, entry.key, attributes[entry.key], entry.value)
    for name, attribute in attributes.items():
        if name not in given and attribute.default is None:
            raise FusebertError(f"{node.name} has no attribute {name}, which the op {node.op} needs")
    return with_defaults(node.op, given)


def _checked(node: Any, name: str, attribute: Attribute, message: Any) -> Any:
    if not message.HasField(attribute.kind):
        raise FusebertError(f"{node.name}: attribute {name} must be given as {attribute.kind!r}")
    value = attribute_value(message)
    if attribute.allowed and value not in attribute.allowed:
        raise FusebertError(f"{node.name}: {name} is {value}; use one of {', '.join(attribute.allowed)}")
    if attribute.kind == "i" and value < attribute.least:
        raise FusebertError(f"{node.name}: {name} is {value}; it must be at least {attribute.least}")
    return value


def check_node(node: Any) -> Settings:
    """Checks a NodeDef by the rules of its op, without running anything; gives its attributes."""
    weights = sum(not name.startswith("^") for name in node.input) - 2
    layers, rest = divmod(weights, PER_LAYER)
    if layers < 1 or rest:
        raise FusebertError(f"{node.name} has {weights} weights; a layer has {PER_LAYER}")
    settings = settings_of(node)
    if settings["NumWeights"] != weights:
        raise FusebertError(
            f"{node.name}: NumWeights is {settings['NumWeights']}, but the node has {weights} weights, {layers} layers"
        )
    if settings.get("NumHiddenStates", layers) != layers:
        raise FusebertError(f"{node.name}: NumHiddenStates must be the number of layers, {layers}")
    if settings["HiddenSize"] % settings["NumAttentionHeads"]:
        raise FusebertError(
            f"{node.name}: HiddenSize {settings['HiddenSize']} cannot be shared by "
            f"{settings['NumAttentionHeads']} heads"
        )
    for name in ("LayerNormEpsilon", "AttentionScale", "MaskValue"):
        if not math.isfinite(settings[name]) or (name == "LayerNormEpsilon" and settings[name] < 0):
            allowed = "finite and not negative" if name == "LayerNormEpsilon" else "finite"
            raise FusebertError(f"{node.name}: {name} is {settings[name]:g}; it must be {allowed}")
    _check_precision(node, settings, layers)
    return settings


def _check_precision(node: Any, settings: Mapping[str, Any], layers: int) -> None:
    path, factors, scales = (settings[k] for k in ("QuantizationFactorsPath", "QuantizationFactors", "InputScales"))
    precision = precision_of(settings)
    if settings["CalibrateQuantFactors"]:
        if precision != "fp32":
            raise FusebertError(f"{node.name}: calibration runs in floats: turn quantisation and bfloat16 off (-Q -B)")
        if not path:
            raise FusebertError(f"{node.name}: calibration needs a file to write to (-p FILE)")
    if not precision.startswith("int8"):
        return
    if factors and path:
        raise FusebertError(f"{node.name}: give QuantizationFactors or QuantizationFactorsPath, not both")
    if scales and (factors or path):
        raise FusebertError(
            f"{node.name}: it has InputScales, which need no quantisation factors; give none, or begin with --reset"
        )
    scaled = len(_SCALED) * settings["HiddenSize"]
    for name, numbers, each in (("QuantizationFactors", factors, _RANGES), ("InputScales", scales, scaled)):
        if numbers and len(numbers) != each * layers:
            raise FusebertError(
                f"{node.name}: {name} holds {len(numbers)} numbers; {layers} layers need {each * layers}"
            )
