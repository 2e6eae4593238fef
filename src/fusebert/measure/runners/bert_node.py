"""A `Bert` node of a TensorFlow graph, or one of its kin, run by the engine as TensorFlow's op would run it
(docs/tensorflow-op.md), with the weights and the attributes that the node has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fusebert.engine.native import EncoderEngine, pool
from fusebert.engine.quantize import convert_encoder
from fusebert.formats.tensorflow.bert_layers import read_operator
from fusebert.formats.tensorflow.bert_op import FUSED, with_defaults
from fusebert.ops.graph import Array, Node
from fusebert.values.batch import Batch
from fusebert.values.blocks import Attention

_HIDDEN = -1000  # exp() leaves nothing of a score that is this much below another


def bert_node(node: Node) -> BertNode | None:
    """What runs a node, if it is one of ours."""
    return BertNode(node) if node.op in FUSED else None


class BertNode:
    """One node. Its weights are packed on the first call, and stay the same."""

    def __init__(self, node: Node) -> None:
        self._op = node.op
        self._places = [_place(tensor) for tensor in node.outputs]
        self._engine: EncoderEngine | None = None
        self._heads = 1

    def __call__(self, embedded: Array, mask: Array, *weights: Array, **attributes: Any) -> tuple[Array, ...]:
        """The node's outputs that somebody reads, in its order."""
        settings = with_defaults(self._op, attributes)
        if self._engine is None:
            self._engine, self._heads = _packed(weights, settings)
        added = _added(mask, settings)
        rows = np.ascontiguousarray(embedded.reshape(-1, embedded.shape[-1]), np.float32)
        shape = len(rows) // max(added.shape[-1], 1), added.shape[-1]
        if embedded.ndim == 3 and embedded.shape[:2] != shape:
            raise ValueError(f"rows of shape {embedded.shape} do not fit a mask of shape {mask.shape}")
        encoded, states = self._engine.run(rows, Batch.masked(added, shape, heads=self._heads), hidden_states=True)
        dropped = _dropped(added, shape, settings["Padding"])
        for array in (encoded, *states):
            array[dropped] = 0
        return tuple((encoded, *states)[place].reshape(embedded.shape) for place in self._places)


def _place(tensor: str) -> int:
    """0 for the encoded rows, 1 and up for hidden states: `node:2`, or in a function `node:hidden_states:1`."""
    _, *output, number = tensor.split(":")
    return int(number) + (output == ["hidden_states"])


def _packed(weights: Sequence[Array], settings: Mapping[str, Any]) -> tuple[EncoderEngine, int]:
    """The engine, and how many heads a mask may tell apart: those that all attentions have."""
    operator = read_operator(settings, weights)
    encoder = convert_encoder(operator.encoder, operator.plan)
    heads = {block.body.heads for block in encoder.blocks if isinstance(block.body, Attention)}
    engine = EncoderEngine(encoder, operator.plan, pool(settings["NumThreads"] or None))
    return engine, heads.pop() if len(heads) == 1 else 1


def _added(mask: Array, settings: Mapping[str, Any]) -> Array:
    """What a mask adds to scores, with four dimensions."""
    added = mask.astype(np.float32)
    if not settings["AdditiveMask"]:
        added = np.float32(settings["MaskValue"]) * (1 - added)
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
