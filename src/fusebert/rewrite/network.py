"""A Network -> a graph without a framework: embeddings, encoder and head as a checkpoint gives them, in ONNX's own
operators or in TensorFlow's, its encoder among them or as the fused operator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.onnx import encoder_op
from fusebert.formats.onnx.edit import Changes, rewrite
from fusebert.formats.onnx.edit import create as create_onnx
from fusebert.formats.onnx.read import parse
from fusebert.formats.tensorflow.create import create as create_saved_model
from fusebert.rewrite.packing import fuse_network
from fusebert.rewrite.tensorflow_words import TensorFlowWords
from fusebert.rewrite.words import ENCODED, OPSET, OnnxWords
from fusebert.values.forms import block, norm
from fusebert.values.network import Dense, Embeddings, Network
from fusebert.values.operator import Operator
from fusebert.values.target import FusedOnnx, FusedTensorFlow

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
_TOKENS = ("batch", "length")
_Words = OnnxWords | TensorFlowWords
_Shape = tuple[str | int, ...]


def write_onnx(network: Network, out: Path, target: FusedOnnx | None = None) -> None:
    """Writes a Network as an ONNX file: int64 ids, mask and, where there is more than one, token types go in. With a
    target the encoder is one fused operator."""
    longest, length = network.embeddings.longest, None if target is None else target.length
    if length is not None and not 1 <= length <= longest:
        raise FusebertError(f"a sequence has 1 to {longest} tokens, not {length}")
    words = OnnxWords(IDS, longest)
    outputs = _spell(words, network, None if target is None else fuse_network(network, target))
    inputs = dict.fromkeys(_inputs(network), ("int64", _TOKENS))
    opsets = {"": OPSET, **({} if target is None else {encoder_op.DOMAIN: encoder_op.VERSION})}
    declared = {ENCODED: (*_TOKENS, network.encoder.hidden_size)} if target else {}
    made = {name: ("float32", shape) for name, shape in outputs.items()}
    changed = target is not None and (target.int32 or target.float16 or length is not None)
    whole = out.with_name(f"whole {out.name}") if changed else out
    create_onnx(whole, words.nodes, words.weights, inputs, made, opsets, declared)
    if target is not None and changed:
        rewrite(parse(whole), out, (), {}, {}, Changes(tuple(inputs), target.int32, length, target.float16))


def write_saved_model(network: Network, out: Path, target: FusedTensorFlow | None = None) -> None:
    """Writes a Network as a SavedModel: the same inputs, as int32, to its one signature. With a target the encoder is
    one fused op, and only compact weights are stored as int8; without, it is layers of BERT."""
    words = TensorFlowWords(IDS, target)
    operator = None if target is None else fuse_network(network, target, floats=not target.compact)
    outputs = _spell(words, network, operator)
    inputs = dict.fromkeys(_inputs(network), ("int32", _TOKENS))
    create_saved_model(out, words.nodes, inputs, {name: ("float32", shape) for name, shape in outputs.items()})


def _inputs(network: Network) -> tuple[str, ...]:
    return (IDS, MASK, TYPES) if _typed(network.embeddings) else (IDS, MASK)


def _typed(e: Embeddings) -> bool:
    return e.kind is not None and len(e.kind) > 1


def _spell(words: _Words, network: Network, operator: Operator | None) -> dict[str, _Shape]:
    """Says a whole Network, its encoder block by block or as one operator; the outputs by name, with their shapes."""
    rows = _embed(words, network.embeddings)
    if operator is not None:
        return _head(words, network, words.encoder(rows, MASK, operator))
    mask = words.hiding(MASK)
    for number in network.encoder.order:
        rows = block(words, rows, mask, network.encoder.blocks[number])
    return _head(words, network, norm(words, rows, network.encoder.final))


def _embed(words: _Words, e: Embeddings) -> str:
    position, typed = e.position, _typed(e)
    if e.kind is not None and not typed:  # one type: it is part of every position, or of every word
        first = np.asarray(e.kind[0], np.float32)
        if position is None:
            e = replace(e, word=np.asarray(e.word, np.float32) + first)
        else:
            position = np.asarray(position, np.float32) + first
    rows = words.lookup(e.word, IDS)
    if typed and e.kind is not None:
        rows = words.add(rows, words.lookup(e.kind, TYPES))
    if position is not None:
        places = words.places() if e.padding_id is None else words.counted(IDS, e.padding_id)
        rows = words.add(rows, words.lookup(position, places))
    if e.scale != 1:
        rows = words.multiply(rows, words.constant(np.float32(e.scale)))
    rows = norm(words, rows, e.norm)
    if e.project is not None:
        rows = words.linear(rows, e.project.floats(), e.project.bias)
    return str(norm(words, rows, e.projected_norm))


def _head(words: _Words, network: Network, rows: str) -> dict[str, _Shape]:
    """Adds the head; the outputs by name, with their shapes."""
    head, hidden = network.head, network.encoder.hidden_size
    width = len(head.steps[-1].linear.weight) if head.steps else hidden
    if head.kind == "none":
        words.named(rows, "last_hidden_state")
        if not head.steps:
            return {"last_hidden_state": (*_TOKENS, hidden)}
        words.named(_steps(words, head.steps, words.pick(rows, 0, 1)), "pooler_output")
        return {"last_hidden_state": (*_TOKENS, hidden), "pooler_output": ("batch", width)}
    if head.kind == "sequence":
        if head.pooling == "each":
            logits = words.visible_mean(_steps(words, head.steps, rows), MASK)
        else:
            pooled = words.pick(rows, 0, 1) if head.pooling == "first" else words.visible_mean(rows, MASK)
            logits = _steps(words, head.steps, pooled)
        words.named(logits, "logits")
        return {"logits": ("batch", width)}
    logits = _steps(words, head.steps, rows)
    if head.kind == "question":
        for place, name in enumerate(("start_logits", "end_logits")):
            words.named(words.pick(logits, place, 2), name)
        return {"start_logits": _TOKENS, "end_logits": _TOKENS}
    words.named(logits, "logits")
    return {"logits": (*_TOKENS, width)}


def _steps(words: _Words, steps: tuple[Dense, ...], rows: str) -> str:
    for step in steps:
        rows = words.activation(words.linear(rows, step.linear.floats(), step.linear.bias), step.activation)
        rows = norm(words, rows, step.norm)
    return rows
