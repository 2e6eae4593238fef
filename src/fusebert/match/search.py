"""Layer: the pattern of one encoder layer, which is `encoder.layer` itself said with holes for its weights, and the
search for it backwards from a LayerNorm. A failed search says how far it came, and what it met there."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from fusebert.match.findings import Match, Miss
from fusebert.ops.graph import Graph, Node
from fusebert.ops.vocabulary import Record
from fusebert.values.forms import block
from fusebert.values.traverse import post_norm_layer


class _Hole:
    """Stands for a Linear or a Norm: its parts are names."""

    def __init__(self, name: str) -> None:
        self.bias, self.gain, self.epsilon, self.kind = f"{name}.bias", f"{name}.gain", f"{name}.epsilon", "layer"
        self._weight = f"{name}.weight"

    def floats(self) -> str:
        return self._weight


@cache
def pattern() -> Graph:
    """The layer as a Graph whose weights and attributes are holes."""
    record = Record()
    x = "x"
    for form in post_norm_layer(_Hole, "heads", "activation", "scale"):
        x = block(record, x, "mask", form)
    return record.graph(("x", "mask"), (x,))


class Search:
    """Matches the pattern in a lifted graph."""

    def __init__(self, graph: Graph, kept: Collection[str] = ()) -> None:
        """`kept` are tensors of nodes that no rule understood, whatever their word."""
        self._graph, self._kept = graph, kept
        self._maker = {name: node for node in graph.nodes for name in node.outputs}
        self._pattern = {node.outputs[0]: node for node in pattern().nodes}

    def match(self, tensor: str) -> Match | Miss:
        """The layer that makes a tensor, or what keeps it from being one."""
        attempt = _Attempt(self._graph, self._maker, self._pattern, self._kept)
        for bound in attempt.search(((pattern().outputs[0], tensor),), _Bound({}, ())):
            return Match(tensor, bound.bindings, bound.nodes)
        return attempt.miss


@dataclass(frozen=True)
class _Bound:
    """What has been found so far: holes and the pattern's tensors to what they are in the graph."""

    bindings: Mapping[str, Any]
    nodes: tuple[Node, ...]


@dataclass
class _Attempt:
    graph: Graph
    maker: Mapping[str, Node]
    pattern: Mapping[str, Node]
    kept: Collection[str]
    miss: Miss = field(default_factory=lambda: Miss(-1, "", "", ""))

    def search(self, goals: tuple[tuple[str, str], ...], bound: _Bound) -> Iterator[_Bound]:
        """All ways to make every (pattern tensor, graph tensor) the same."""
        if not goals:
            yield bound
            return
        (wanted, tensor), rest = goals[0], goals[1:]
        node = self.pattern.get(wanted)
        tensor = self._past_identity(tensor)
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
            for more, holes, made in self._ways(node, tensor, bound):
                yield from self.search((*more, *rest), _Bound({**holes, wanted: tensor}, made))

    def _ways(
        self, wanted: Node, tensor: str, bound: _Bound
    ) -> Iterator[tuple[tuple[tuple[str, str], ...], dict[str, Any], tuple[Node, ...]]]:
        """How a node of the pattern may be the one that makes a tensor: goals for its inputs, and its attributes."""
        made = self.maker.get(tensor)
        holes = dict(bound.bindings)
        if made is None or made.op != wanted.op or tensor in self.kept:
            if wanted.op == "mask":  # a model may have none
                holes["mask"] = None
                yield ((wanted.inputs[0], tensor),), holes, bound.nodes
            elif wanted.op in ("split_heads", "merge_heads") and holes.get("heads", 1) == 1:
                holes["heads"] = 1
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
        if wanted.op != "add":
            yield tuple(goals), holes, nodes
            return
        first, second = goals
        swapped = ((first[0], second[1]), (second[0], first[1]))
        linear = next(hole for hole, _ in goals if self._word(hole) == "linear")
        for way in sorted((tuple(goals), swapped), key=lambda way: self._made(dict(way)[linear]) != "linear"):
            if self._made(dict(way)[linear]) == "linear" or way == tuple(goals):
                yield tuple(sorted(way, key=lambda goal: goal[0] != linear)), holes, nodes

    def _word(self, hole: str) -> str:
        return self.pattern[hole].op if hole in self.pattern else ""

    def _made(self, tensor: str) -> str:
        made = self.maker.get(self._past_identity(tensor))
        return made.op if made else ""

    def _past_identity(self, tensor: str) -> str:
        while (made := self.maker.get(tensor)) is not None and made.op == "identity":
            tensor = made.inputs[0]
        return tensor

    def _fits(self, hole: str, tensor: str) -> bool:
        return hole in ("x", "mask") or tensor in self.graph.weights

    def _failed(self, bound: _Bound, expected: str, tensor: str) -> None:
        if len(bound.nodes) <= self.miss.matched:
            return
        made = self.maker.get(tensor)
        found = made.op if made else "a constant" if tensor in self.graph.weights else f"the input {tensor}"
        found = f"{found} of another form" if made and tensor in self.kept and made.op == expected else found
        name = made.name if made and made.name else tensor
        self.miss = Miss(len(bound.nodes), expected, found, name, made.function if made else "")


def _bind(bound: _Bound, hole: str, value: Any) -> _Bound:
    return _Bound({**bound.bindings, hole: value}, bound.nodes)
