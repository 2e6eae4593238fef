"""Search: the blocks of a raised graph. Each pattern is looked for backwards from every node that may end a block of
its form; a search that fails says which form came nearest, how far it came, and what it met there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fusebert.match.findings import Match, Miss, described
from fusebert.match.patterns import FORMS, Pattern, patterns
from fusebert.ops.graph import Graph, Node
from fusebert.values import limits
from fusebert.values.blocks import Attention


def find_blocks(graph: Graph, kept: Collection[str] = ()) -> tuple[dict[str, Match], dict[str, Miss]]:
    """The blocks of a graph by what they make, and what kept other nodes from ending one. `kept` are tensors of nodes
    that no rule understood, whatever their operation."""
    search = _Search(graph, kept)
    misses: dict[str, Miss] = {}
    for node in graph.nodes:
        if node.op in search.roots and isinstance(result := search.match(node), Miss):
            misses[node.outputs[0]] = result
    return search.matches, misses


_COMMUTATIVE = ("add", "mul")


class _Search:
    """Matches every pattern in a raised graph."""

    def __init__(self, graph: Graph, kept: Collection[str]) -> None:
        self._graph, self._kept = graph, kept
        self._maker = {name: node for node in graph.nodes for name in node.outputs}
        self.roots = {pattern.root for pattern in patterns()}
        self.matches: dict[str, Match] = {}

    def match(self, node: Node) -> Match | Miss:
        """The block that a node ends, or what kept the form that came nearest from being one. Forms with another body
        than the block before are tried first, and win where two come equally near: layers alternate."""
        before = self._before(node)
        body = type(FORMS[before.form].body) if before else None
        fitting = [pattern for pattern in patterns() if pattern.root == node.op]
        nearest: Miss | None = None
        limits.spend()
        for pattern in sorted(fitting, key=lambda pattern: type(FORMS[pattern.form].body) is body):
            attempt = _Attempt(self._graph, self._maker, pattern, self._kept)
            for bound in attempt.search(((pattern.output, node.outputs[0]),), _Bound({}, ())):
                bindings = {name: value for name, value in bound.bindings.items() if name not in pattern.nodes}
                match = Match(pattern.form, node.outputs[0], bindings, bound.nodes)
                self.matches[match.output] = match
                return match
            if nearest is None or attempt.miss.matched > nearest.matched:
                nearest = attempt.miss
        assert nearest is not None
        return (
            replace(nearest, matched=nearest.matched + len(before.nodes)) if body is Attention and before else nearest
        )

    def _before(self, node: Node) -> Match | None:
        """The block that makes one of the terms of a node's sum."""
        terms = [node] if node.op == "add" else [self._maker.get(past_identity(self._maker, node.inputs[0]))]
        names = (name for term in terms if term is not None and term.op == "add" for name in term.inputs)
        found = (self.matches.get(past_identity(self._maker, name)) for name in names)
        return next(filter(None, found), None)


@dataclass(frozen=True)
class _Bound:
    """What has been found so far: holes and the pattern's tensors to what they are in the graph."""

    bindings: Mapping[str, Any]
    nodes: tuple[Node, ...]


@dataclass
class _Attempt:
    graph: Graph
    maker: Mapping[str, Node]
    pattern: Pattern
    kept: Collection[str]
    miss: Miss = field(default_factory=lambda: Miss(-1, "", "", ""))

    def search(self, goals: tuple[tuple[str, str], ...], bound: _Bound) -> Iterator[_Bound]:
        """All ways to make every (pattern tensor, graph tensor) the same."""
        if not goals:
            yield bound
            return
        (wanted, tensor), rest = goals[0], goals[1:]
        node = self.pattern.nodes.get(wanted)
        tensor = past_identity(self.maker, tensor)
        if wanted in bound.bindings:
            if bound.bindings[wanted] == tensor:
                yield from self.search(rest, bound)
            else:
                self._failed(bound, f"the tensor {bound.bindings[wanted]}", tensor)
        elif node is None:
            if self._fits(wanted, tensor):
                yield from self.search(rest, _bind(bound, wanted, tensor))
            else:
                self._failed(bound, f"a constant or variable as {wanted}", tensor)
        else:
            limits.spend()
            for more, holes, made in self._ways(node, tensor, bound):
                yield from self.search((*more, *rest), _Bound({**holes, wanted: tensor}, made))

    def _ways(
        self, wanted: Node, tensor: str, bound: _Bound
    ) -> Iterator[tuple[tuple[tuple[str, str], ...], dict[str, Any], tuple[Node, ...]]]:
        """How a node of the pattern may be the one that makes a tensor: goals for its inputs, and its attributes."""
        made = self.maker.get(tensor)
        holes = dict(bound.bindings)
        if made is None or made.op != wanted.op or tensor in self.kept:
            absent = _absent(wanted)
            if absent is not None and all(holes.setdefault(hole, value) == value for hole, value in absent.items()):
                yield ((wanted.inputs[0], tensor),), holes, bound.nodes
            else:
                self._failed(bound, wanted.op, tensor)
            return
        for name, hole in wanted.attributes.items():
            value = made.attributes.get(name)
            if holes.setdefault(hole, value) != value:
                self._failed(bound, f"{wanted.op} with {name} {holes[hole]}", tensor)
                return
        nodes = (*bound.nodes, made)
        inputs = [*made.inputs, *[""] * (len(wanted.inputs) - len(made.inputs))]
        goals = []
        for hole, name in zip(wanted.inputs, inputs, strict=False):
            if name:
                goals.append((hole, name))
            else:
                holes[hole] = None  # no bias
        if wanted.op not in _COMMUTATIVE:
            yield tuple(goals), holes, nodes
            return
        first, second = goals
        swapped = ((first[0], second[1]), (second[0], first[1]))
        told = next(
            hole for hole, _ in goals if hole in self.pattern.nodes
        )  # the operand that is told by its operation
        fits = {way: self._made(dict(way)[told]) == self.pattern.nodes[told].op for way in (tuple(goals), swapped)}
        for way in sorted(fits, key=lambda way: not fits[way]):
            if fits[way] or way == tuple(goals):
                yield tuple(sorted(way, key=lambda goal: goal[0] != told)), holes, nodes

    def _made(self, tensor: str) -> str:
        made = self.maker.get(past_identity(self.maker, tensor))
        return made.op if made else ""

    def _fits(self, hole: str, tensor: str) -> bool:
        return hole in ("x", "mask") or tensor in self.graph.weights

    def _failed(self, bound: _Bound, expected: str, tensor: str) -> None:
        if len(bound.nodes) <= self.miss.matched:
            return
        made = self.maker.get(tensor)
        found = described(made.op) if made else "a constant" if tensor in self.graph.weights else f"the input {tensor}"
        found = f"{found} of another form" if made and tensor in self.kept and made.op == expected else found
        name = made.name if made and made.name else tensor
        self.miss = Miss(len(bound.nodes), expected, found, name, made.function if made else "", self.pattern.form)


def _absent(wanted: Node) -> Mapping[str, Any] | None:
    """What the names in a node of a pattern stand for in a model that does without it; None if none does."""
    if wanted.op in ("mask", "rotate"):
        return {wanted.inputs[1]: None}
    if wanted.op in ("split_heads", "repeat_heads"):
        return dict.fromkeys(wanted.attributes.values(), 1)
    return {"heads": 1} if wanted.op == "merge_heads" else None


def past_identity(maker: Mapping[str, Node], tensor: str) -> str:
    """The tensor that is passed on unchanged to this one."""
    while (made := maker.get(tensor)) is not None and made.op == "identity":
        tensor = made.inputs[0]
    return tensor


def _bind(bound: _Bound, hole: str, value: Any) -> _Bound:
    return _Bound({**bound.bindings, hole: value}, bound.nodes)
