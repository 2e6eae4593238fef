"""A `Bert` or `BertHiddenStates` node of a TensorFlow graph, run by the engine as TensorFlow's op would run it
(docs/tensorflow-op.md), with the weights and the attributes that the node has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusebert.engine.native import EncoderEngine, pool
from fusebert.engine.quantize import convert_encoder
from fusebert.formats.ranges import read_ranges
from fusebert.measure.inputs import FUSED_OPS, bert_precision
from fusebert.ops.graph import Array, Node
from fusebert.values.batch import Batch
from fusebert.values.blocks import Block, Encoder, Linear, Norm
from fusebert.values.plan import make_plan
from fusebert.values.traverse import POST_NORM_PARTS, is_norm, post_norm_layer

_PER_LAYER = 2 * len(POST_NORM_PARTS)
_HIDDEN = -1000  # exp() leaves nothing of a score that is this much below another


def bert_node(node: Node) -> BertNode | None:
    """What runs a node, if it is one of ours."""
    return BertNode(node) if node.word in FUSED_OPS else None


class BertNode:
    """One node. Its weights are packed on the first call, and are the same ever after."""

    def __init__(self, node: Node) -> None:
        self._places = [_place(tensor) for tensor in node.outputs]
        self._engine: EncoderEngine | None = None

    def __call__(self, embedded: Array, mask: Array, *weights: Array, **attributes: Any) -> tuple[Array, ...]:
        """The node's outputs that somebody reads, in its order."""
        hidden, heads = attributes.get("HiddenSize", 768), attributes.get("NumAttentionHeads", 12)
        if self._engine is None:
            self._engine = _packed(weights, hidden, heads, attributes)
        added = _added(mask, attributes)
        rows = np.ascontiguousarray(embedded.reshape(-1, hidden), np.float32)
        shape = len(rows) // max(added.shape[-1], 1), added.shape[-1]
        if embedded.ndim == 3 and embedded.shape[:2] != shape:
            raise ValueError(f"rows of shape {embedded.shape} do not fit a mask of shape {mask.shape}")
        encoded, states = self._engine.run(rows, Batch.masked(added, shape, heads=heads), hidden_states=True)
        dropped = _dropped(added, shape, attributes.get("Padding", "compute"))
        for array in (encoded, *states):
            array[dropped] = 0
        return tuple((encoded, *states)[place].reshape(embedded.shape) for place in self._places)


def _place(tensor: str) -> int:
    """0 for the encoded rows, 1 and up for hidden states: `node:2`, or in a function `node:hidden_states:1`."""
    _, *output, number = tensor.split(":")
    return int(number) + (output == ["hidden_states"])


def _packed(weights: Sequence[Array], hidden: int, heads: int, attributes: Mapping[str, Any]) -> EncoderEngine:
    count, rest = divmod(len(weights), _PER_LAYER)
    if rest:
        raise ValueError(f"it has {len(weights)} weights, but a layer has {_PER_LAYER}")
    int8 = (precision := bert_precision(attributes)).startswith("int8")
    ranges = attributes.get("QuantizationFactors") or attributes.get("QuantizationFactorsPath") or None
    plan = make_plan(precision, 2 * count, read_ranges(ranges, count) if int8 else None)
    scales = np.asarray(attributes.get("InputScales", ()) if int8 else (), np.float32)
    columns = scales.reshape(count, 2, hidden) if scales.size else [(None, None)] * count
    blocks = tuple(
        block
        for i in range(count)
        for block in _layer(weights[i * _PER_LAYER : (i + 1) * _PER_LAYER], columns[i], hidden, heads, attributes)
    )
    encoder = convert_encoder(Encoder.of(hidden, blocks), plan)
    return EncoderEngine(encoder, plan, pool(attributes.get("NumThreads") or None))


def _layer(
    weights: Sequence[Array], scales: Sequence[Array | None], hidden: int, heads: int, attributes: Mapping[str, Any]
) -> tuple[Block, Block]:
    """A layer of the op's sixteen tensors; what does not have its size raises ValueError."""
    inner, epsilon = attributes.get("IntermediateSize", 3072), attributes.get("LayerNormEpsilon", 1e-12)
    pairs = dict(zip(POST_NORM_PARTS, zip(weights[::2], weights[1::2], strict=True), strict=True))
    sizes = {"feed_forward.up": (hidden, inner), "feed_forward.down": (inner, hidden)}
    smoothed = {"feed_forward.up": scales[1], "feed_forward.down": None, "attention.out": None}

    def part(path: str) -> Linear | Norm:
        first, bias = pairs[path]
        if is_norm(path):
            return Norm(first.reshape(hidden), bias.reshape(hidden), epsilon)
        inputs, outputs = sizes.get(path, (hidden, hidden))
        weight = first.reshape(inputs, outputs).T
        return Linear(weight, bias.reshape(outputs), input_scales=smoothed.get(path, scales[0]))

    activation, scale = attributes.get("HiddenAct", "gelu_tanh"), attributes.get("AttentionScale") or None
    return post_norm_layer(part, heads, activation, scale)


def _added(mask: Array, attributes: Mapping[str, Any]) -> Array:
    """What a mask adds to scores, with four dimensions."""
    added = mask.astype(np.float32)
    if not attributes.get("AdditiveMask", False):
        added = np.float32(attributes.get("MaskValue", -10000)) * (1 - added)
    return added[:, None, None] if added.ndim == 2 else added[:, None] if added.ndim == 3 else added


def _dropped(added: Array, shape: tuple[int, int], padding: str) -> Array:
    """The rows that become zeros: those that a mask hides from all, where hidden positions are skipped."""
    first = added[:, :1, :1]
    lowest = first.min(initial=0)
    hides = np.array_equal(added, np.broadcast_to(first, added.shape)) and np.isin(first, (0, lowest)).all()
    if padding == "compute" or added.shape[1] != 1 or not hides or lowest > _HIDDEN:
        return np.zeros(shape[0] * shape[1], bool)
    hidden = np.array(np.broadcast_to(first[:, 0, 0] != 0, shape))
    if padding == "first":
        hidden[:, 0] = False
    return hidden.ravel()
