"""Locate: a pattern in a graph -> every place where the same is computed, and of those that are not one, why.

Names do not count. Operations, ports, attributes and constants do; inputs of commutative operations may be swapped, and
nodes that give what they are given may stand on one side only. One input of the pattern is one tensor everywhere."""

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
        """The occurrences in one scope, none of which has a node of another. With `protect`, only where nothing else
        reads what would go away."""
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
            for node in short[-500:]:  # to tell what came nearest
                self._candidate(scope, root, node, taken, protect)
        return found

    def nearest(self) -> Refusal | None:
        """The candidate that matched most."""
        return max(self.refused, key=lambda one: one.matched, default=None)

    def _candidate(self, scope: Scope, root: str, node: Node, taken: set[str], protect: bool) -> Occurrence | Refusal:
        walk = Walk(self.pattern, self._inputs, scope, taken, self._ignored, self._asked)
        result = walk.run(root, node)
        if isinstance(result, Occurrence) and protect:
            judged = _judged(self.pattern, result)
            if isinstance(judged, Occurrence):
                result = judged
            else:
                result = Refusal(scope.where, node.name, len(result.nodes), len(self.pattern.nodes), *judged)
        if isinstance(result, Refusal):
            self.refused.append(result)
        return result


def _judged(pattern: Pattern, place: Occurrence) -> Occurrence | tuple[str, str, str]:
    """What matches, if it can be replaced; else where it cannot: pattern node, node, reason."""
    scope, inside = place.scope, place.inside
    seeds = {place.nodes[name]: name for name in pattern.seeds if name in place.nodes}
    named = {node: name for name, node in place.nodes.items()}
    unread: set[str] = set()
    for name in sorted(inside - set(seeds)):
        if name in scope.kept:
            return named.get(name, ""), name, f"it is {scope.kept[name]}, so it cannot go away"
        for reader, edge in scope.readers.get(name, ()):
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
        for reader, edge in scope.readers.get(name, ()):
            if reader.name not in inside and reader.name not in unread and edge.number(scope.nodes[name].op):
                return seed, name, f"{reader.name} reads its output {edge.text}, but a recipe gives the first one only"
    if (cycle := _through(place, inside)) is not None:
        return named.get(cycle, ""), cycle, "what it gives goes into what would be replaced, by way of other nodes"
    return replace(place, unread=frozenset(unread))


def _through(place: Occurrence, inside: set[str]) -> str | None:
    """A node inside that an input, or a node that is waited for, is computed from."""
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
