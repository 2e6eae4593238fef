"""Lift: primitive words -> the vocabulary of `ops`. Layout disappears: reshapes, transposes, casts and scalar factors
become views of values, and every product is seen as what it is: a linear map, scores, or a context.

The result is a Graph that still computes the same (`ops.evaluate`), with fewer and larger words."""

from __future__ import annotations

from fusebert.match.lift import elementwise, layout, products, quantized
from fusebert.match.lift import reductions as rows
from fusebert.match.lift import slicing as choose
from fusebert.match.lift.state import Lifted, Lifting
from fusebert.match.probe import Probe
from fusebert.ops.graph import Graph, Node

_RULES = {**elementwise.RULES, **layout.RULES, **choose.RULES, **products.RULES, **rows.RULES, **quantized.RULES}


def lift(graph: Graph, probes: tuple[Probe, Probe]) -> Lifted:
    """Lifts a translated graph: what is constant is folded, what a rule knows is said in larger words, and the rest
    stays as it is."""
    lifting = Lifting(graph, probes)
    for node in graph.nodes:
        lifting.compute(node)
        if not lifting.fold(node) and not _lifted(lifting, node):
            lifting.keep(node)
    return lifting.result()


def _lifted(lifting: Lifting, node: Node) -> bool:
    """Whether a rule knows a node; what makes no sense to it stays as it is."""
    try:
        return node.op in _RULES and _RULES[node.op](lifting, node)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        return False
