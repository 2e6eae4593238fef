"""Order: the nodes of an ONNX message, each after those whose results it reads, which ONNX asks for and ONNX Runtime
does not. A message in, sorted in place; what is in order stays as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fusebert.ops.graph import in_order


def sort_nodes(model: Any) -> None:
    """Sorts the main graph, its inner graphs and the functions of a model."""
    for holder in (model.graph, *model.functions):
        _sort(holder)


def reads(node: Any) -> Iterator[str]:
    """A node's inputs, and what its inner graphs read from outside."""
    yield from node.input
    for graph in inner_graphs(node):
        own = {one.name for one in (*graph.initializer, *graph.input)}
        own.update(name for inner in graph.node for name in inner.output)
        names = [name for inner in graph.node for name in reads(inner)]
        yield from (name for name in (*names, *(value.name for value in graph.output)) if name not in own)


def inner_graphs(node: Any) -> Iterator[Any]:
    """The graphs among a node's attributes, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _sort(holder: Any) -> None:
    """Sorts the nodes of a graph or function, and those of the graphs in them."""
    maker: dict[str, int] = {}
    for i, node in enumerate(holder.node):
        for graph in inner_graphs(node):
            _sort(graph)
        maker |= {name: i for name in node.output if name and name not in maker}
    before = {i: [maker[name] for name in reads(node) if name in maker] for i, node in enumerate(holder.node)}
    if all(j < i for i, places in before.items() for j in places):
        return
    places = in_order(before, lambda i: f"{holder.node[i].name or i} ({holder.node[i].op_type})")
    nodes = [type(holder.node[i]).FromString(holder.node[i].SerializeToString()) for i in places]
    del holder.node[:]
    holder.node.extend(nodes)
