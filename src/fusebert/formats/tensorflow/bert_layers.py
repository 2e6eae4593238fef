"""What a node `Bert`, or one of its kin, computes, as values: its settings and weights -> an Operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fusebert.formats.ranges import read_ranges
from fusebert.formats.tensorflow.bert_op import COMPACT_WEIGHTS, PER_LAYER, WEIGHTS, precision_of, shapes_of
from fusebert.ops.graph import Array
from fusebert.values.blocks import Block, Encoder, Linear, Norm
from fusebert.values.operator import Operator
from fusebert.values.plan import make_plan
from fusebert.values.precision import PRECISIONS
from fusebert.values.traverse import POST_NORM_PARTS, is_norm, layer_encoder, layers, parts, post_norm_layer


def read_operator(settings: Mapping[str, Any], weights: Sequence[Array]) -> Operator:
    """What a node with these attributes, the defaults among them, does with these weights. Raises ValueError where they
    do not fit."""
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
