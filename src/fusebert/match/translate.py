"""A Graph in an exporter's dialect -> one flat Graph of primitive operations (`primitives.MEANING`), sorted, only what
the outputs need. A node that no rule knows stays as it is. The fact `emitted` has the tensors that the file does not
have: those between the operations that one node became."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fusebert.match.dialects import fused, onnx, ort, quantized, tensorflow
from fusebert.match.emitter import Emitter, Rule
from fusebert.match.findings import RuleRow
from fusebert.match.inline import inline, ordered
from fusebert.ops.graph import Graph, Node
from fusebert.ops.primitives import MEANING
from fusebert.ops.vocabulary import VOCABULARY
from fusebert.values import limits

_OURS = frozenset((*MEANING, *VOCABULARY))
_ONNX: Mapping[str, Rule] = {**onnx.RULES, **ort.RULES, **quantized.RULES}


def translate(graph: Graph) -> Graph:
    """The same model in primitive operations, with its calls inlined; our own fused operators stay as they are."""
    return translate_with_rows(graph, {})[0]


def translate_with_rows(graph: Graph, ours: Mapping[str, Rule] = fused.RULES) -> tuple[Graph, list[RuleRow]]:
    """The same model in primitive operations, and a row for every rule that applied or refused. The fact `operators`
    has, for every tensor that a fused operator of ours became, that operator."""
    source = str(graph.facts.get("format", ""))
    saved = source.startswith("tensorflow")
    rules = {**ours, **tensorflow.RULES} if saved else {**ours, **_ONNX} if source == "onnx" else {}
    graph = _own_names(graph) if rules else graph
    flat = inline(_without_effects(graph) if saved else graph)
    opsets = {name: body.facts.get("opsets", {}).get("ai.onnx", 0) for name, body in graph.functions.items()}
    opsets[""] = graph.facts.get("opsets", {}).get("ai.onnx", 0)
    emitter = Emitter(flat, opsets, numbered_outputs=saved)
    operators: dict[str, Node] = {}
    for node in flat.nodes:
        limits.spend()
        before = len(emitter.nodes)
        emitter.translate(node, rules.get(node.op))
        if node.op in ours:
            operators |= {tensor: node for made in emitter.nodes[before:] for tensor in made.outputs}
    translated = ordered(replace(flat, nodes=tuple(emitter.nodes), weights=emitter.weights))
    needed = (*translated.nodes, *operators.values())
    used = {*translated.outputs, *(tensor for node in needed for tensor in node.inputs)}
    weights = {name: weight for name, weight in emitter.weights.items() if name in used}
    facts = {**translated.facts, "emitted": frozenset(_made(translated) - _made(flat)), "operators": operators}
    return replace(translated, weights=weights, facts=facts), emitter.rows


def _made(graph: Graph) -> set[str]:
    return {tensor for node in graph.nodes for tensor in node.outputs}


def _own_names(graph: Graph) -> Graph:
    """A model may have operations that are named like ours but mean something else; they get another name."""
    if any(node.op in _OURS for node in graph.nodes):
        nodes = (replace(n, op=f"model's {n.op}") if n.op in _OURS else n for n in graph.nodes)
        graph = replace(graph, nodes=tuple(nodes))
    functions = {name: _own_names(body) for name, body in graph.functions.items()}
    return replace(graph, functions=functions) if functions else graph


def _without_effects(graph: Graph) -> Graph:
    """A frozen graph's dead ends count as outputs; those that only assert, save or assign do not."""
    effects = {t for node in graph.nodes if node.op in tensorflow.EFFECTS for t in node.outputs}
    return replace(graph, outputs=tuple(tensor for tensor in graph.outputs if tensor not in effects))
