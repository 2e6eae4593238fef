"""A Graph in an exporter's dialect -> one flat Graph of primitive words (`primitives.MEANING`), sorted, only what the
outputs need. A node that no rule knows keeps its own word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusebert.match.dialects import onnx as words_onnx
from fusebert.match.dialects import ort as words_ort
from fusebert.match.dialects import tensorflow as words_tensorflow
from fusebert.match.emitter import Emitter, Rule
from fusebert.match.inline import inline, ordered
from fusebert.ops.graph import Graph
from fusebert.ops.primitives import MEANING
from fusebert.ops.vocabulary import VOCABULARY

_OURS = frozenset((*MEANING, *VOCABULARY))
_ONNX: Mapping[str, Rule] = {**words_onnx.RULES, **words_ort.RULES}


def translate(graph: Graph) -> Graph:
    """The same model in primitive words, with its calls inlined."""
    source = str(graph.facts.get("format", ""))
    tensorflow = source.startswith("tensorflow")
    rules = words_tensorflow.RULES if tensorflow else _ONNX if source == "onnx" else {}
    graph = _own_words(graph) if rules else graph
    flat = inline(_without_effects(graph) if tensorflow else graph)
    opsets = {name: body.facts.get("opsets", {}).get("ai.onnx", 0) for name, body in graph.functions.items()}
    opsets[""] = graph.facts.get("opsets", {}).get("ai.onnx", 0)
    emitter = Emitter(flat, opsets, numbered_outputs=tensorflow)
    for node in flat.nodes:
        emitter.translate(node, rules.get(node.op))
    translated = ordered(replace(flat, nodes=tuple(emitter.nodes), weights=emitter.weights))
    used = {*translated.outputs, *(tensor for node in translated.nodes for tensor in node.inputs)}
    return replace(translated, weights={name: weight for name, weight in emitter.weights.items() if name in used})


def _own_words(graph: Graph) -> Graph:
    """A model may have operations that are called like words of ours; they mean something else."""
    if any(node.op in _OURS for node in graph.nodes):
        nodes = (replace(n, op=f"model's {n.op}") if n.op in _OURS else n for n in graph.nodes)
        graph = replace(graph, nodes=tuple(nodes))
    functions = {name: _own_words(body) for name, body in graph.functions.items()}
    return replace(graph, functions=functions) if functions else graph


def _without_effects(graph: Graph) -> Graph:
    """A frozen graph's dead ends count as outputs; those that only assert, save or assign are none."""
    effects = {t for node in graph.nodes if node.op in words_tensorflow.EFFECTS for t in node.outputs}
    return replace(graph, outputs=tuple(tensor for tensor in graph.outputs if tensor not in effects))
