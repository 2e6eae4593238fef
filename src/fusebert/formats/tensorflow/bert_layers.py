"""What a node `Bert`, or one of its kin, computes, as values: its settings and weights -> an Operator, and back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fusebert.formats.layout import read_layout, write_layout
from fusebert.formats.ranges import read_ranges
from fusebert.formats.tensorflow.bert_op import (
    ATTRIBUTES,
    COMPACT,
    COMPACT_WEIGHTS,
    FORM,
    OPS,
    PER_LAYER,
    WEIGHTS,
    precision_of,
    precision_types,
    shapes_of,
    typed,
)
from fusebert.formats.tensorflow.types import Type
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


def read_operator(settings: Mapping[str, Any], weights: Sequence[Array]) -> Operator:
    """What a node with these attributes, the defaults among them, does with these weights. Raises ValueError where they
    do not fit."""
    if "Layout" in settings:
        names = list(map(str, range(len(weights))))
        encoder = read_layout(FORM, settings["Layout"], names, lambda name: weights[int(name)])
        plan = make_plan(settings["Precision"], len(encoder.blocks), settings["Ranges"] or None)
        return Operator(encoder, plan, settings["Padding"])
    compact = "WeightTypes" in settings
    each = len(COMPACT_WEIGHTS) if compact else PER_LAYER
    count, rest = divmod(len(weights), each)
    if rest:
        raise ValueError(f"it has {len(weights)} weights, but a layer has {each}")
    int8 = PRECISIONS[precision := precision_of(settings)].int8
    ranges = settings["QuantizationFactors"] or settings.get("QuantizationFactorsPath") or None
    plan = make_plan(precision, 2 * count, read_ranges(ranges, count) if int8 else None)
    scales = np.asarray(settings.get("InputScales", ()) if int8 else (), np.float32)
    columns = scales.reshape(count, 2, settings["HiddenSize"]) if scales.size else [(None, None)] * count
    blocks: list[Block] = []
    for i in range(count):
        own = weights[i * each : (i + 1) * each]
        blocks += _compact_layer(own, settings) if compact else _layer(own, columns[i], settings)
    return Operator(Encoder.of(settings["HiddenSize"], tuple(blocks)), plan, settings["Padding"])


def node_of(operator: Operator, compact: bool) -> tuple[str, list[Array], dict[str, Any]]:
    """The op that computes an operator, with its weights and the attributes that depend on these: `Bert`, or where the
    weights are int8 `BertCompact`, for the layers that these can carry; EncoderForm for all others."""
    encoder, plan = operator.encoder, operator.plan
    ranges = plan.ranges if plan.static else []
    common = _common(encoder, compact)
    if common is None or (not compact and _input_scales(encoder) is None):
        arrays = [array for _, array in weights(encoder)]
        types = [Type("int8" if array.dtype == np.int8 else "float32") for array in arrays]
        own = {"Layout": write_layout(encoder), "WeightTypes": types, "Precision": plan.precision, "Ranges": ranges}
        return FORM, arrays, own
    attributes = {**common, **precision_types(plan.precision), "QuantizationFactors": ranges}
    if compact:
        arrays = [array for _, array in compact_weights(encoder)]
        attributes |= {"WeightTypes": [Type(array.dtype.name) for array in arrays]}
    else:
        arrays = list(_plain_weights(encoder))
        attributes |= {"NumWeights": len(arrays), "InputScales": _input_scales(encoder)}
    op = COMPACT[0] if compact else OPS[0]
    return op, arrays, typed({name: value for name, value in attributes.items() if name in ATTRIBUTES[op]})


def _common(encoder: Encoder, compact: bool) -> dict[str, Any] | None:
    """The attributes that all layers of an encoder have in common; None if they differ, or are not BERT's."""
    bodies = [block.body for block in encoder.blocks]
    attentions = [body for body in bodies if isinstance(body, Attention)]
    feed_forwards = [body for body in bodies if isinstance(body, FeedForward)]
    norms = [part for _, part in parts(encoder) if isinstance(part, Norm)]
    same: dict[str, set[Any]] = {
        "NumAttentionHeads": {body.heads for body in attentions}, "AttentionScale": {body.scale for body in attentions},
        "HiddenAct": {body.activation for body in feed_forwards}, "LayerNormEpsilon": {norm.epsilon for norm in norms},
        "IntermediateSize": {len(body.up.weight) for body in feed_forwards},
    }  # fmt: skip
    sizes = {len(body.query.weight) for body in attentions} | {body.out.weight.shape[1] for body in attentions}
    if compact:
        same["IntermediateSize"] = {0}
    fits = not beyond_bert(encoder) and sizes == {encoder.hidden_size} and all(len(some) == 1 for some in same.values())
    made = {name: next(iter(some)) for name, some in same.items()} if fits else {}
    if made.get("HiddenAct") not in ATTRIBUTES[OPS[0]]["HiddenAct"].allowed:
        return None
    return {"HiddenSize": encoder.hidden_size, **made}


def _plain_weights(encoder: Encoder) -> Iterator[Array]:
    """The weights as `Bert` reads them: matrices [inputs, outputs], and nothing missing."""
    for _, part in parts(encoder):
        if isinstance(part, Norm):
            yield np.ones(encoder.hidden_size, np.float32) if part.gain is None else np.asarray(part.gain, np.float32)
            width = encoder.hidden_size
        else:
            yield part.floats().T
            width = len(part.weight)
        yield np.zeros(width, np.float32) if part.bias is None else np.asarray(part.bias, np.float32)


def _input_scales(encoder: Encoder) -> list[float] | None:
    """What the inputs of the first product of every block are divided by; None if only some are."""
    scales = [getattr(block.body, block.body.products()[0][0]).input_scales for block in encoder.blocks]
    known = [array for array in scales if array is not None]
    return [float(n) for array in known for n in array] if len(known) in (0, len(scales)) else None


def compact_weights(encoder: Encoder) -> Iterator[tuple[str, Array]]:
    """The weights of an int8 encoder by name, in the order in which `BertCompact` reads them; what is missing has no
    elements."""
    for number, places in enumerate(layers(encoder)):
        own = dict(zip(POST_NORM_PARTS, (part for _, part in parts(layer_encoder(encoder, places))), strict=True))
        for path, field in COMPACT_WEIGHTS:
            array = getattr(own[path], field)
            yield f"layer_{number}/{path}/{field}", np.empty(0, np.float32) if array is None else array


def _compact_layer(weights: Sequence[Array], settings: Mapping[str, Any]) -> tuple[Block, Block]:
    given = {name: array if array.size else None for name, array in zip(COMPACT_WEIGHTS, weights, strict=True)}

    def part(path: str) -> Linear | Norm:
        fields: dict[str, Any] = {field: array for (owner, field), array in given.items() if owner == path}
        return Norm(**fields, epsilon=settings["LayerNormEpsilon"]) if is_norm(path) else Linear(**fields)

    scale = settings["AttentionScale"] or None
    return post_norm_layer(part, settings["NumAttentionHeads"], settings["HiddenAct"], scale)


def _layer(
    weights: Sequence[Array], scales: Sequence[Array | None], settings: Mapping[str, Any]
) -> tuple[Block, Block]:
    """A layer of the op's tensors; one that does not have its size raises ValueError."""
    shapes = shapes_of(settings)
    plain = {name: weight.reshape(shapes[name][0]) for name, weight in zip(WEIGHTS, weights, strict=True)}
    scaled = {**dict.fromkeys(("attention.query", "attention.key", "attention.value"), scales[0]),
              "feed_forward.up": scales[1]}  # fmt: skip

    def part(path: str) -> Linear | Norm:
        if is_norm(path):
            return Norm(plain[path, "gain"], plain[path, "bias"], settings["LayerNormEpsilon"])
        return Linear(plain[path, "weight"].T, plain[path, "bias"], input_scales=scaled.get(path))

    scale = settings["AttentionScale"] or None
    return post_norm_layer(part, settings["NumAttentionHeads"], settings["HiddenAct"], scale)
