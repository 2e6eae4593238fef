"""Locate: a pattern and a graph -> every occurrence of the pattern, and the reason against every other candidate.

Operations, ports, attributes and constants are compared; names of nodes are not. Inputs of commutative operations may
be swapped, and passthrough nodes such as Identity may be on one side only. Each input of the pattern is bound to one
tensor."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.scope import Node, Scope
from fusebert.recipes.constants import Inputs
from fusebert.recipes.pattern import Occurrence, Pattern, Refusal, heights
from fusebert.recipes.walk import Walk


class Locator:
    """Searches the scopes of one model."""

    def __init__(
        self, graphs: TensorFlowFile, pattern: Pattern, ignored: Iterable[str] = (), asked: Iterable[str] = ()
    ) -> None:
        self.pattern = pattern
        self.refused: list[Refusal] = []
        self._inputs = Inputs(graphs, pattern)
        self._ignored, self._asked = frozenset(ignored), frozenset(asked)

    def find(self, scope: Scope, protect: bool = True) -> list[Occurrence]:
        """The occurrences in one scope; no two share a node. With `protect`, an occurrence is refused if other nodes
        read a result that its replacement would remove."""
        found: list[Occurrence] = []
        taken: set[str] = set()
        tall = heights(scope.nodes)
        root = self.pattern.roots[0]
        wanted = self.pattern.nodes[root]
        short = []
        for node in scope.nodes.values():
            if node.op != wanted.op or node.name in taken:
                continue
            if tall[node.name] < self.pattern.heights[root]:
                short.append(node)
                continue
            result = self._candidate(scope, root, node, taken, protect)
            if isinstance(result, Occurrence):
                found.append(result)
                taken |= result.inside | result.unread
        if not found and not self.refused:
            for node in short[-500:]:  # they cannot match, but one of them may be the nearest miss
                self._candidate(scope, root, node, taken, protect)
        return found

    def nearest(self) -> Refusal | None:
        """The refused candidate with the most matched nodes."""
        return max(self.refused, key=lambda one: one.matched, default=None)

    def _candidate(self, scope: Scope, root: str, node: Node, taken: set[str], protect: bool) -> Occurrence | Refusal:
        walk = Walk(self.pattern, self._inputs, scope, taken, self._ignored, self._asked)
        result = walk.run(root, node)
        if isinstance(result, Occurrence) and protect:
            protected = _protected(self.pattern, result)
            if isinstance(protected, Occurrence):
                result = protected
            else:
                result = Refusal(scope.where, node.name, len(result.nodes), len(self.pattern.nodes), *protected)
        if isinstance(result, Refusal):
            self.refused.append(result)
        return result


def _protected(pattern: Pattern, place: Occurrence) -> Occurrence | tuple[str, str, str]:
    """The occurrence if it can be replaced; else the node that prevents it, as (pattern node, node, reason)."""
    scope, inside = place.scope, place.inside
    seeds = {place.nodes[name]: name for name in pattern.seeds if name in place.nodes}
    named = {node: name for name, node in place.nodes.items()}
    unread: set[str] = set()
    for name in sorted(inside - set(seeds)):
        if name in scope.kept:
            return named.get(name, ""), name, f"it is {scope.kept[name]}, so it cannot be removed"
        for reader, edge in scope.consumers.get(name, ()):
            if reader.name not in inside and reader.name not in unread:
                chain = scope.unread_from(reader)
                if chain is None:
                    return (
                        named.get(name, ""),
                        name,
                        f"{reader.name} ({reader.op}), outside the pattern, reads {edge.text}",
                    )
                unread |= chain
    for name, seed in seeds.items():
        for reader, edge in scope.consumers.get(name, ()):
            if reader.name not in inside and reader.name not in unread and edge.number(scope.nodes[name].op):
                return (
                    seed,
                    name,
                    f"{reader.name} reads its output {edge.text}, but a recipe replaces only the first one",
                )
    if (cycle := _through(place, inside)) is not None:
        return named.get(cycle, ""), cycle, "an input of the pattern is computed from it: replacing makes a cycle"
    return replace(place, unread=frozenset(unread))


def _through(place: Occurrence, inside: set[str]) -> str | None:
    """A node of the occurrence from which one of its own inputs or control inputs is computed, or None."""
    scope = place.scope
    controls = {c for name in inside for c in scope.nodes[name].controls}
    waiting = [*{edge.node for edge in place.inputs.values()}, *(controls - inside)]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in inside:
            return name
        if name in seen or name not in scope.nodes:
            continue
        seen.add(name)
        waiting += [edge.node for edge in scope.nodes[name].inputs]
        waiting += scope.nodes[name].controls
    return None
