"""Misses: what came nearest to an encoder where none was found, and what stopped it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fusebert.match.findings import Miss
from fusebert.match.search import pattern
from fusebert.ops.graph import Graph, Node
from fusebert.ops.primitives import MEANING
from fusebert.ops.vocabulary import VOCABULARY


def nearest(graph: Graph, misses: list[Miss]) -> list[Miss]:
    """What is known to be wrong with a graph's attention; else the searches for a layer that came furthest."""
    return _other_attention(graph) or furthest(misses)


def furthest(misses: Sequence[Miss]) -> list[Miss]:
    """The searches that came furthest."""
    most = max((miss.matched for miss in misses), default=0)
    nearest = [miss for miss in misses if miss.matched == most]
    usual = ("merge_heads", "embed")  # at the LayerNorms after attention and after embeddings, which end no layer
    return sorted(nearest, key=lambda miss: miss.found in usual)[:3]


def _other_attention(graph: Graph) -> list[Miss]:
    """What is known to be wrong with the attention that no layer was matched around."""
    maker = {name: node for node in graph.nodes for name in node.outputs}
    consumers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            consumers.setdefault(name, []).append(node)
    contexts = [node for node in graph.nodes if node.op == "context"]
    strange = next((node for node in graph.nodes if node.op not in VOCABULARY and node.op not in MEANING), None)
    if not contexts and strange is not None:
        what = f"the unsupported operator {strange.op}"
        return [Miss(0, "attention", what, strange.name, strange.function)]
    weighted = [n for n in graph.nodes if n.op == "softmax" and _is_masked(n, maker)]
    if not contexts and weighted:
        after = (*consumers.get(weighted[0].outputs[0], ()), weighted[0])[0]
        wanted = "an average of values, weighted by the softmax of scores"
        return [Miss(1, wanted, after.op, after.name, after.function)]
    if not contexts:
        return [Miss(0, "attention: a softmax of products of two activations", "none in this graph", "")]
    if not any(node.op == "layer_norm" for node in graph.nodes):
        return [Miss(1, "a LayerNorm after attention", "none in this graph", contexts[0].name, contexts[0].function)]
    for node in contexts:
        if _pre_norm(node, maker, consumers):
            what = "a pre-LayerNorm layer, which normalises what goes into attention and not the sum after it"
            return [Miss(len(pattern().nodes), "a post-LayerNorm layer", what, node.name, node.function)]
    return []


def _is_masked(softmax: Node, maker: Mapping[str, Node]) -> bool:
    made = maker.get(softmax.inputs[0])
    return made is not None and made.op in ("scores", "mask")


_AFTER = frozenset(("merge_heads", "arrange", "linear", "identity", "add"))


def _pre_norm(context: Node, maker: Mapping[str, Node], consumers: Mapping[str, list[Node]]) -> bool:
    tensor = context.inputs[1]
    while (made := maker.get(tensor)) is not None and made.op in ("split_heads", "linear", "arrange", "identity"):
        tensor = made.inputs[0]
    if made is None or made.op != "layer_norm":
        return False
    following = [context]
    for _ in range(4):  # heads are merged, projected and added
        following = [n for node in following for n in consumers.get(node.outputs[0], []) if n.op in _AFTER]
        if any(n.op == "add" and made.inputs[0] in n.inputs for n in following):
            return True
    return False
