"""Pattern: a Pattern message, indexed by name, and what a search for it gives: occurrences, and candidates refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fusebert.errors import FusebertError
from fusebert.recipes.equivalence import PASSTHROUGH
from fusebert.recipes.scope import Edge, Node, Scope, read_nodes


@dataclass(frozen=True)
class Occurrence:
    """A place: pattern node -> node, pattern tensor -> tensor, and nodes that go with them: those that pass on what
    they are given, and shape arithmetic that nobody reads."""

    scope: Scope = field(repr=False)
    nodes: Mapping[str, str]
    inputs: Mapping[Edge, Edge]
    passed: frozenset[str]
    unread: frozenset[str]

    @property
    def inside(self) -> set[str]:
        """Every node that goes away."""
        return {*self.nodes.values(), *self.passed}


@dataclass(frozen=True)
class Refusal:
    """A candidate that is no occurrence: how far it matched, and the node where it stopped, and why."""

    where: str
    seed: str
    matched: int
    of: int
    pattern_node: str
    node: str
    reason: str

    def __str__(self) -> str:
        at = f"{self.node} (in the pattern {self.pattern_node})" if self.pattern_node else self.node
        return (
            f"{self.where}: back from {self.seed} {self.matched} of {self.of} nodes match, then at {at}: {self.reason}"
        )


@dataclass(frozen=True)
class Output:
    """The output of the new node that takes a seed's place: its name, its place in that list, its number among all."""

    name: str
    index: int
    number: int


class Pattern:
    """A Pattern message, indexed. `free` are inputs whose constants do not count, as a recipe's node reads them."""

    def __init__(self, message: Any, free: Iterable[str] = ()) -> None:
        self.nodes = read_nodes((*message.seed_nodes, *message.internal_nodes), "the pattern")
        self.seeds = [node.name for node in message.seed_nodes]
        if not self.seeds:
            raise FusebertError("the pattern has no seed, so it is found nowhere; extract it again with -s")
        self.sources = {one.name: one for one in message.input_nodes}
        self.free = set(free)
        self.inputs = list(
            dict.fromkeys(e for node in self.nodes.values() for e in node.inputs if e.node not in self.nodes)
        )
        read = {edge.node for node in self.nodes.values() for edge in node.inputs}
        self.heights = heights(self.nodes)
        self.roots = [name for name in self.seeds if name not in read] or self.seeds[-1:]

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Inputs that must be this constant."""
        return {name: one for name, one in self.sources.items() if one.op == "Const" and name not in self.free}


def heights(nodes: Mapping[str, Node]) -> dict[str, int]:
    """How many nodes each stands on, but for those that only pass something on; in a loop some are left out."""
    found: dict[str, int] = {}
    for first in nodes:
        path = [first]
        while path:
            name = path[-1]
            below = [edge.node for edge in nodes[name].inputs if edge.node in nodes]
            if name not in found:
                found[name] = 0  # on the way
                path += [other for other in below if other not in found]
            else:
                path.pop()
                own = nodes[name].op not in PASSTHROUGH
                found[name] = max(found[name], own + max((found[other] for other in below), default=0))
    return found
