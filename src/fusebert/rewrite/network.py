"""A Network -> an ONNX file of ONNX's own operators: embeddings, encoder and head as a checkpoint gives them. No
framework is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from fusebert.formats.onnx.edit import create
from fusebert.formats.onnx.types import NUMBERS
from fusebert.rewrite.words import OPSET, OnnxWords
from fusebert.values.forms import block, norm
from fusebert.values.network import Dense, Embeddings, Network

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
_TOKENS = ("batch", "length")


def write_network(network: Network, out: Path) -> None:
    """Writes a Network as an ONNX file: int64 ids, mask and, where there is more than one, token types go in."""
    typed = network.embeddings.kind is not None and len(network.embeddings.kind) > 1
    words = OnnxWords(IDS, network.embeddings.longest)
    rows = _embed(words, network.embeddings, typed)
    mask = words.hiding(MASK)
    for number in network.encoder.order:
        rows = block(words, rows, mask, network.encoder.blocks[number])
    outputs = _head(words, network, norm(words, rows, network.encoder.final))
    inputs = dict.fromkeys((IDS, MASK, *((TYPES,) if typed else ())), ("int64", _TOKENS))
    create(out, words.nodes, words.weights, inputs, {n: ("float32", s) for n, s in outputs.items()}, {"": OPSET})


def _embed(words: OnnxWords, e: Embeddings, typed: bool) -> str:
    position = e.position
    if e.kind is not None and not typed:  # one type: it is part of every position, or of every word
        first = np.asarray(e.kind[0], np.float32)
        if position is None:
            e = replace(e, word=np.asarray(e.word, np.float32) + first)
        else:
            position = np.asarray(position, np.float32) + first
    rows = words.say("Gather", words.weight(e.word), IDS)
    if typed and e.kind is not None:
        rows = words.add(rows, words.say("Gather", words.weight(e.kind), TYPES))
    if position is not None:
        rows = words.add(rows, words.say("Gather", words.weight(position), _positions(words, e)))
    if e.scale != 1:
        rows = words.multiply(rows, words.constant(np.float32(e.scale)))
    rows = norm(words, rows, e.norm)
    if e.project is not None:
        rows = words.linear(rows, e.project.floats(), e.project.bias)
    return str(norm(words, rows, e.projected_norm))


def _positions(words: OnnxWords, e: Embeddings) -> str:
    """The position of every token: 0, 1, 2, or counted over all but padding."""
    if e.padding_id is None:
        return words.places()
    padding = words.constant(e.padding_id)
    real = words.say("Cast", words.say("Not", words.say("Equal", IDS, padding)), to=NUMBERS["int64"])
    counted = words.multiply(words.say("CumSum", real, words.constant(1)), real)
    return words.add(counted, padding)


def _head(words: OnnxWords, network: Network, rows: str) -> dict[str, tuple[str | int, ...]]:
    """Adds the head; the outputs by name, with their shapes."""
    head, hidden = network.head, network.encoder.hidden_size
    width = len(head.steps[-1].linear.weight) if head.steps else hidden
    if head.kind == "none":
        words.say("Identity", rows, output="last_hidden_state")
        if not head.steps:
            return {"last_hidden_state": (*_TOKENS, hidden)}
        words.say("Identity", _steps(words, head.steps, _first(words, rows)), output="pooler_output")
        return {"last_hidden_state": (*_TOKENS, hidden), "pooler_output": ("batch", width)}
    if head.kind == "sequence":
        if head.pooling == "each":
            logits = _mean(words, _steps(words, head.steps, rows))
        else:
            pooled = _first(words, rows) if head.pooling == "first" else _mean(words, rows)
            logits = _steps(words, head.steps, pooled)
        words.say("Identity", logits, output="logits")
        return {"logits": ("batch", width)}
    logits = _steps(words, head.steps, rows)
    if head.kind == "question":
        for place, name in enumerate(("start_logits", "end_logits")):
            words.say("Gather", logits, words.constant(place), axis=2, output=name)
        return {"start_logits": _TOKENS, "end_logits": _TOKENS}
    words.say("Identity", logits, output="logits")
    return {"logits": (*_TOKENS, width)}


def _first(words: OnnxWords, rows: str) -> str:
    return words.say("Gather", rows, words.constant(0), axis=1)


def _mean(words: OnnxWords, rows: str) -> str:
    """The mean of visible rows."""
    seen = words.say("Cast", words.say("Unsqueeze", MASK, words.constant([2])), to=NUMBERS["float32"])
    axes = words.constant([1])
    total = words.say("ReduceSum", words.multiply(rows, seen), axes, keepdims=0)
    return words.say("Div", total, words.say("ReduceSum", seen, axes, keepdims=0))


def _steps(words: OnnxWords, steps: tuple[Dense, ...], rows: str) -> str:
    for step in steps:
        rows = words.activation(words.linear(rows, step.linear.floats(), step.linear.bias), step.activation)
        rows = norm(words, rows, step.norm)
    return rows
