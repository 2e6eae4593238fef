"""What a node `Bert` or `BertHiddenStates` computes, as values: its settings and weights -> an Operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusebert.formats.ranges import read_ranges
from fusebert.formats.tensorflow.bert_op import PER_LAYER, WEIGHTS, precision_of, shapes_of
from fusebert.ops.graph import Array
from fusebert.values.blocks import Block, Encoder, Linear, Norm
from fusebert.values.operator import Operator
from fusebert.values.plan import make_plan
from fusebert.values.precision import PRECISIONS
from fusebert.values.traverse import is_norm, post_norm_layer


def read_operator(settings: Mapping[str, Any], weights: Sequence[Array]) -> Operator:
    """What a node with these attributes, the defaults among them, does with these weights. Raises ValueError where they
    do not fit."""
    count, rest = divmod(len(weights), PER_LAYER)
    if rest:
        raise ValueError(f"it has {len(weights)} weights, but a layer has {PER_LAYER}")
    int8 = PRECISIONS[precision := precision_of(settings)].int8
    ranges = settings["QuantizationFactors"] or settings["QuantizationFactorsPath"] or None
    plan = make_plan(precision, 2 * count, read_ranges(ranges, count) if int8 else None)
    scales = np.asarray(settings["InputScales"] if int8 else (), np.float32)
    columns = scales.reshape(count, 2, settings["HiddenSize"]) if scales.size else [(None, None)] * count
    blocks: list[Block] = []
    for i in range(count):
        blocks += _layer(weights[i * PER_LAYER : (i + 1) * PER_LAYER], columns[i], settings)
    return Operator(Encoder.of(settings["HiddenSize"], tuple(blocks)), plan, settings["Padding"])


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
