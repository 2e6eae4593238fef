"""The operator `fusebert.Encoder` as data: an Encoder -> its inputs and attributes, and back. docs/onnxruntime-op.md
describes it, and native/hosts/ort_op.cc runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.layout import read_layout, write_layout
from fusebert.ops.graph import Array
from fusebert.values.blocks import Attention, Block, Encoder, FeedForward, Linear, Norm
from fusebert.values.operator import Operator
from fusebert.values.plan import make_plan
from fusebert.values.precision import PRECISIONS
from fusebert.values.traverse import (
    POST_NORM_PARTS,
    beyond_bert,
    is_norm,
    layer_encoder,
    layers,
    parts,
    post_norm_layer,
    weights,
)

DOMAIN, OPERATION, VERSION = "fusebert", "Encoder", 1
NAME = f"{DOMAIN}.{OPERATION}"  # as a node of a Graph has it
FIRST_WEIGHT = 2  # after rows and mask
_LINEARS = tuple(part for part in POST_NORM_PARTS if not is_norm(part))
_PLAIN = tuple(
    (part, field) for part in POST_NORM_PARTS for field in ("gain" if is_norm(part) else "weight", "bias")
)  # of a layer, in the order of the operator's inputs
_SCALES = tuple((part, field) for field in ("scales", "input_scales") for part in _LINEARS)


def weight_names(attributes: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The part and field of each weight of a layer."""
    count = attributes.get("weights_per_layer", len(_PLAIN))
    known = {len(names): names for names in (_PLAIN, (*_PLAIN, *_SCALES))}
    if count not in known:
        raise FusebertError(f"weights_per_layer is {count}; use {' or '.join(map(str, known))}")
    return known[count]


def layer_settings(attributes: Mapping[str, Any], layer: int, count: int) -> tuple[int, float, tuple[float, float]]:
    """The heads, the scale (0: by the size of a head) and the epsilons of both norms of one of `count` layers."""
    heads, scales = (_per_layer(attributes, name, count)[layer] for name in ("heads", "scale"))
    epsilons = _per_layer(attributes, "epsilon", 2 * count)[2 * layer : 2 * layer + 2]
    return int(heads), float(scales), (float(epsilons[0]), float(epsilons[1]))


def _per_layer(attributes: Mapping[str, Any], name: str, count: int) -> Sequence[float]:
    given = attributes.get(name, () if name != "scale" else (0.0,))
    numbers: Sequence[Any] = given if isinstance(given, tuple | list) else (given,)
    if len(numbers) not in (1, count) or not all(isinstance(number, int | float) for number in numbers):
        raise FusebertError(f"attribute {name} has {len(numbers)} numbers; give one, or {count}")
    return list(numbers) * (count if len(numbers) == 1 else 1)


def tensors(encoder: Encoder, scales: bool) -> Iterator[tuple[str, Array]]:
    """The operator's constant inputs: what a layout names; or of BERT's layers, layer by layer in its order, where a
    bias or scale that is missing has no elements."""
    if beyond_bert(encoder):
        yield from weights(encoder)
        return
    for places in layers(encoder):
        layer = list(parts(layer_encoder(encoder, places)))
        for path, part in layer:
            first = "gain" if isinstance(part, Norm) else "weight"
            yield f"{places[0]}.{path}.{first}", _given(getattr(part, first))
            yield f"{places[0]}.{path}.bias", _given(part.bias)
        if scales:
            for field in ("scales", "input_scales"):
                linears = ((path, part) for path, part in layer if isinstance(part, Linear))
                yield from ((f"{places[0]}.{path}.{field}", _given(getattr(part, field))) for path, part in linears)


def _given(array: Array | None) -> Array:
    return np.empty(0, np.float32) if array is None else array


def attributes_of(encoder: Encoder, precision: str, padding: str) -> dict[str, Any]:
    """The operator's attributes, but for taps and ranges: a layout, or of BERT's layers what they were before there
    were layouts."""
    if beyond_bert(encoder):
        return {"layout": write_layout(encoder), "precision": precision, "padding": padding}
    bodies = [block.body for block in encoder.blocks]
    attentions = [body for body in bodies if isinstance(body, Attention)]
    attributes: dict[str, Any] = {
        "heads": [body.heads for body in attentions],
        "activation": next(body.activation for body in bodies if isinstance(body, FeedForward)),
        "epsilon": [float(part.epsilon) for _, part in parts(encoder) if isinstance(part, Norm)],
        "scale": [float(body.scale) for body in attentions],
        "precision": precision,
        "padding": padding,
    }
    if PRECISIONS[precision].int8:
        attributes["weights_per_layer"] = len(_PLAIN) + len(_SCALES)
    return attributes


def read_operator(attributes: Mapping[str, Any], names: Sequence[str], array: Callable[[str], Array]) -> Operator:
    """What a node computes, by its attributes and the names of its weights, which `array` reads."""
    precision, padding = str(attributes.get("precision", "fp32")), str(attributes.get("padding", "skip"))
    if "layout" in attributes:
        encoder = read_layout(NAME, str(attributes["layout"]), names, array)
        plan = make_plan(precision, len(encoder.blocks), attributes.get("ranges") or None)
        return Operator(encoder, plan, padding)
    fields = weight_names(attributes)
    count = len(names) // len(fields)
    blocks: list[Block] = []
    for layer in range(count):
        own = dict(zip(fields, names[layer * len(fields) :], strict=False))
        heads, scale, epsilons = layer_settings(attributes, layer, count)

        def part(path: str, own: Any = own, epsilons: Any = epsilons) -> Linear | Norm:
            given: dict[str, Any] = {
                field: _numbers(array(name), field) for (place, field), name in own.items() if place == path
            }
            if is_norm(path):
                return Norm(given["gain"], given["bias"], epsilons[path.startswith("feed_forward")])
            return Linear(**given)

        activation = str(attributes.get("activation", "gelu_erf"))
        blocks += post_norm_layer(part, heads, activation, scale or None)
    plan = make_plan(precision, 2 * count, attributes.get("ranges") or None)
    hidden = next(array(name).shape[1] for (_, field), name in zip(fields, names, strict=False) if field == "weight")
    return Operator(Encoder.of(hidden, tuple(blocks)), plan, padding)


def _numbers(array: Array, field: str) -> Array | None:
    """A weight as the engine takes it; None where it has no elements."""
    if not array.size:
        return None
    return array if field == "weight" else np.asarray(array, np.float32).reshape(-1)
