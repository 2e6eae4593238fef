"""Misses: what came nearest to an encoder where none was found, or to a further layer where one was, and what stopped
it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from fusebert.match.chains import is_attention
from fusebert.match.findings import FoundEncoder, Layer, Lifted, Match, Miss, described, label
from fusebert.match.patterns import FORMS
from fusebert.ops.graph import Graph, Node
from fusebert.ops.primitives import MEANING
from fusebert.ops.vocabulary import VOCABULARY


def nearest(raised: Lifted, misses: list[Miss]) -> list[Miss]:
    """Where a graph contradicts itself or is random, or what it has in place of attention; else the searches for a
    block that came furthest."""
    attends = any(node.op == "context" for node in raised.graph.nodes)
    known = [] if attends else _no_attention(raised.graph)
    return contradictions(raised) or _random(raised.graph) or known or furthest(misses)


def _random(graph: Graph) -> list[Miss]:
    """The first dropout that is on."""
    on = (node for node in graph.nodes if node.op == "Dropout")
    return [Miss(0, "what always gives the same", described(n.op), label(n), n.function) for n in islice(on, 1)]


def contradictions(raised: Lifted) -> list[Miss]:
    """The nodes that fit no inputs, the first few."""
    told = list(raised.contradictions.items())[:3]
    return [Miss(0, "what can be computed", f"{what}: the graph contradicts itself", node) for node, what in told]


def left_over(
    raised: Lifted, encoders: Sequence[FoundEncoder], unmatched: Mapping[str, Miss], lone: Collection[str]
) -> list[Miss]:
    """What kept attention and `lone` blocks, beside the encoders that were found, from being part of one."""
    inside = {id(node) for found in encoders for layer in found.layers for node in layer.nodes}
    contexts = [node for node in raised.graph.nodes if node.op == "context" and id(node) not in inside]
    reached = {*lone, *(name for node in contexts for name in node.outputs)}
    for node in raised.graph.nodes:
        if reached.intersection(node.inputs):
            reached.update(node.outputs)
    misses = [miss for tensor, miss in unmatched.items() if tensor in reached]
    return contradictions(raised) or furthest(misses)


def furthest(misses: Sequence[Miss]) -> list[Miss]:
    """The searches that came furthest, and of these the ones for the form that comes first in the list."""
    most = max((miss.matched for miss in misses), default=0)
    near = [miss for miss in misses if miss.matched == most]
    rank = {form: place for place, form in enumerate(FORMS)}
    first = min((rank.get(miss.form, 0) for miss in near), default=0)
    nearest = dict.fromkeys(miss for miss in near if rank.get(miss.form, 0) == first)
    return sorted(nearest, key=lambda miss: miss.found == "embed")[:3]  # the embeddings' LayerNorm ends no block


_END = 3  # the norm, the sum and the linear map that every block ends with


def unpaired(
    graph: Graph, blocks: Mapping[str, Match], layers: Mapping[str, Layer], misses: Mapping[str, Miss]
) -> dict[str, Miss]:
    """What keeps blocks from being half of a layer, by what they make. A sum without norms may be anything, such as an
    adapter between layers."""
    paired = {block.output for layer in layers.values() for block in layer.blocks}
    return {
        block.output: _lone_attention(graph, block) if is_attention(block) else _lone_feed_forward(graph, block, misses)
        for block in blocks.values()
        if block.output not in paired and (is_attention(block) or not _is_bare(block))
    }


def _is_bare(block: Match) -> bool:
    form = FORMS[block.form]
    return form.before is None and form.branch is None and form.after is None


def _lone_attention(graph: Graph, block: Match) -> Miss:
    node = next((node for node in graph.nodes if block.output in node.inputs), None)
    found = node.op if node else "no node that reads it"
    where = label(node or block.nodes[0])
    return Miss(_END, "a feed-forward block that reads this attention", found, where, block.nodes[0].function)


def _lone_feed_forward(graph: Graph, block: Match, misses: Mapping[str, Miss]) -> Miss:
    x = block.bindings["x"]
    if x in misses:  # the search goes on there
        return replace(misses[x], matched=misses[x].matched + len(block.nodes))
    node = next((node for node in graph.nodes if x in node.outputs), None)
    found = node.op if node else f"the input {x}"
    where, wanted = label(node) if node else x, "an attention block before this feed-forward"
    return Miss(len(block.nodes), wanted, found, where, block.nodes[0].function)


def _no_attention(graph: Graph) -> list[Miss]:
    """What a graph without attention has in its place."""
    strange = next((node for node in graph.nodes if node.op not in VOCABULARY and node.op not in MEANING), None)
    if strange is not None:
        what = f"the unsupported operator {described(strange.op)}"
        return [Miss(0, "attention", what, strange.name, strange.function)]
    if _takes_one_token(graph):
        what = (
            "inputs of a fixed length of 1, where a softmax is always 1 and shows nothing; export it with more tokens"
        )
        return [Miss(0, "attention between tokens", what, "")]
    maker = {name: node for node in graph.nodes for name in node.outputs}
    weighted = next((n for n in graph.nodes if n.op == "softmax" and _is_masked(n, maker)), None)
    if weighted is not None:
        after = next((node for node in graph.nodes if weighted.outputs[0] in node.inputs), weighted)
        wanted = "an average of values weighted by the softmax of scores"
        return [Miss(1, wanted, after.op, after.name, after.function)]
    return [Miss(0, "attention: a softmax of products of two activations", "none in this graph", "")]


def _takes_one_token(graph: Graph) -> bool:
    """Whether every input that can be ids, a mask or types is declared for one token."""
    shapes = [declared.shape for name in graph.inputs if (declared := graph.types.get(name)) is not None]
    lengths = [shape[1] for shape in shapes if shape is not None and len(shape) == 2]
    return bool(lengths) and set(lengths) == {1}


def _is_masked(softmax: Node, maker: Mapping[str, Node]) -> bool:
    made = maker.get(softmax.inputs[0])
    return made is not None and made.op in ("scores", "mask")
