"""Lift: primitive operations -> the vocabulary of `ops`. Layout disappears: reshapes, transposes, casts and scalar
factors become views of values, and every product is seen as what it is: a linear map, scores, or a context.

The result is a Graph that still computes the same (`ops.evaluate`), with fewer and larger operations. A rule changes
the lifting, or raises `Refused` before it has changed anything; what it supposed of axes until then is taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fusebert.match import axes as ax
from fusebert.match.findings import Lifted, Refused, RuleRow, label
from fusebert.match.lift import elementwise, layout, products, reductions, slicing
from fusebert.match.lift.limits import note_longest, note_misfit
from fusebert.match.lift.state import Lifting
from fusebert.match.probe import Probe
from fusebert.ops.graph import Graph, Node
from fusebert.values.limits import spend

_RULES: Mapping[str, Callable[[Lifting, Node], None]] = {
    **elementwise.RULES,
    **layout.RULES,
    **slicing.RULES,
    **products.RULES,
    **reductions.RULES,
}
_INPUTS = {"reshape": 2, "unsqueeze": 2, "gather": 2, "slice": 3, "strided_slice": 4, "matmul": 2, "einsum": 2}
_INPUTS |= {"where": 3, "one_hot": 2}  # that a rule needs at least; one if not listed


def lift(graph: Graph, probes: tuple[Probe, Probe]) -> tuple[Lifted, list[RuleRow]]:
    """Lifts a translated graph: constants are folded, nodes that a rule knows become larger operations, and the others
    stay as they are. Gives a row for every node that was folded, lifted or refused."""
    lifting = Lifting(graph, probes)
    rows: list[RuleRow] = []
    for node in graph.nodes:
        spend()
        note_longest(lifting, node)
        lifting.compute(node)
        if lifting.fold(node):
            rows.append(RuleRow("lift", "fold", (label(node),), "constant"))
        elif (rule := _RULES.get(node.op)) is None:
            lifting.keep(node)
        else:
            rows.append(_apply(rule, lifting, node))
    return lifting.result(), rows


def _apply(rule: Callable[[Lifting, Node], None], lifting: Lifting, node: Node) -> RuleRow:
    """Lifts a node by its rule, or keeps it where the rule refuses."""
    made = len(lifting.nodes)
    try:
        _check_inputs(node)
        with ax.undone_if_raised():
            rule(lifting, node)
    except Refused as refused:
        note_misfit(lifting, node)
        lifting.keep(node)
        return RuleRow("lift", node.op, (label(node),), "", refused.reason)
    return RuleRow("lift", node.op, (label(node),), lifting.nodes[-1].op if len(lifting.nodes) > made else "view")


def _check_inputs(node: Node) -> None:
    needed = _INPUTS.get(node.op, 1)
    if len(node.inputs) < needed or not all(node.inputs[:needed]):
        raise Refused(f"{node.op} needs {needed} inputs")
