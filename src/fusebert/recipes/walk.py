"""Walk: one candidate, node by node back from a root: an occurrence of the pattern, or where it stopped and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusebert.formats.tensorflow.scope import Edge, Node, Scope, same_port
from fusebert.recipes.constants import Inputs
from fusebert.recipes.equivalence import COMMUTATIVE, PASSTHROUGH, difference
from fusebert.recipes.pattern import Occurrence, Pattern, Refusal

_ANY = -1  # the port of a seed, which is not read through an edge
_LOOK = 3  # how far inputs are looked at to tell which of two orders is meant
_QUIET = 100  # nodes that pass something on, one after the other: more is a circle
_STEPS = 40  # times the pattern's nodes: then a candidate is given up

_Agenda = tuple[Edge, Edge, "_Agenda"] | None


@dataclass
class Walk:
    """One candidate: what stands for what so far, what is still to be compared, and where another way was open."""

    pattern: Pattern
    allowed: Inputs
    scope: Scope
    taken: set[str]
    ignored: frozenset[str]
    asked: frozenset[str]
    nodes: dict[str, str] = field(default_factory=dict)
    back: dict[str, str] = field(default_factory=dict)
    inputs: dict[Edge, Edge] = field(default_factory=dict)
    bound: dict[Edge, Edge] = field(default_factory=dict)
    passed: dict[str, None] = field(default_factory=dict)
    trail: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)
    open: list[tuple[_Agenda, int]] = field(default_factory=list)
    worst: tuple[int, str, str, str] = (-1, "", "", "")

    def run(self, root: str, node: Node) -> Occurrence | Refusal:
        pattern = self.pattern
        agenda: _Agenda = (Edge(root, index=_ANY), Edge(node.name, index=_ANY), None)
        steps = _STEPS * len(pattern.nodes) + 10_000
        while True:
            if agenda is None:
                following = next((one for one in pattern.roots if one not in self.nodes), None)
                if following is None:
                    return Occurrence(
                        self.scope, dict(self.nodes), dict(self.inputs), frozenset(self.passed), frozenset()
                    )
                op = pattern.nodes[following].op
                for other in reversed([n for n in self.scope.nodes.values() if n.op == op and n.name not in self.back]):
                    start: _Agenda = (Edge(following, index=_ANY), Edge(other.name, index=_ANY), None)
                    self.open.append((start, len(self.trail)))
                if not self.open:
                    return self._refusal(node, "no node is left for another seed")
                agenda = self._another()
                continue
            steps -= 1
            wanted, found, rest = agenda
            result = self._step(wanted, found)
            if steps < 0:
                return self._refusal(node, "there are too many ways to match it")
            if isinstance(result, str):
                at = (len(self.nodes), wanted.node, found.node, result)
                self.worst = max(self.worst, at, key=lambda one: one[0])
                if not self.open:
                    return self._refusal(node)
                agenda = self._another()
                continue
            orders = result
            for order in reversed(orders[1:]):
                self.open.append((_then(order, rest), len(self.trail)))
            agenda = _then(orders[0], rest)

    def _another(self) -> _Agenda:
        agenda, length = self.open.pop()
        while len(self.trail) > length:
            kept, key, back, value = self.trail.pop()
            del kept[key]
            if back is not None:
                back.pop(value, None)
        return agenda

    def _refusal(self, node: Node, reason: str = "") -> Refusal:
        matched, wanted, found, why = self.worst
        of = len(self.pattern.nodes)
        return Refusal(self.scope.where, node.name, max(matched, 0), of, wanted, found, reason or why)

    def _step(self, wanted: Edge, found: Edge) -> str | list[list[tuple[Edge, Edge]]]:
        """Lets one tensor stand for another: why that cannot be, or the ways to go on."""
        pattern = self.pattern
        p, g = pattern.nodes.get(wanted.node), self.scope.nodes.get(found.node)
        if p is None:
            return self._bind(wanted, found) or [[]]
        if p.name in self.nodes:
            if g is not None and self.nodes[p.name] == g.name:
                return [[]] if same_port(wanted, found, p.op) else self._ports(wanted, found)
            if g is None or not _passes(g):
                return f"the pattern has the same node here as at {self.nodes[p.name]}"
        if g is None:
            return f"it is an argument, but the pattern has {p.op} here"
        quiet_p, quiet_g = _passes(p) and wanted.index != _ANY, _passes(g) and found.index != _ANY
        if p.op != g.op and quiet_p and p.name not in pattern.seeds:
            return [[(p.inputs[0], found)]]
        if (p.op != g.op or p.name in self.nodes) and quiet_g:
            if g.name not in self.passed:
                self._note(self.passed, g.name, None)
            return [[(wanted, g.inputs[0])]]
        if reason := self._unlike(p, g, wanted, found):
            return reason
        self._note(self.nodes, p.name, g.name, self.back)
        return self._orders(p, g)

    def _unlike(self, p: Node, g: Node, wanted: Edge, found: Edge) -> str | None:
        if p.op != g.op:
            return f"it is {g.op}, but the pattern has {p.op} here"
        if wanted.index != _ANY and not same_port(wanted, found, p.op):
            return self._ports(wanted, found)
        if g.name in self.back:
            return f"it stands for {self.back[g.name]} of the pattern already"
        if g.name in self.taken:
            return "it belongs to another occurrence"
        if len(p.inputs) != len(g.inputs):
            return f"it has {len(g.inputs)} inputs, not {len(p.inputs)}"
        return difference(p, g, self.ignored, self.asked)

    @staticmethod
    def _ports(wanted: Edge, found: Edge) -> str:
        return f"its output {found.text} is read, where the pattern reads {wanted.text}"

    def _bind(self, wanted: Edge, found: Edge) -> str | None:
        if wanted in self.inputs:
            if self._plain(self.inputs[wanted]) == self._plain(found):
                return None
            if wanted.node not in self.pattern.constants:
                return f"{found.text} is read, but elsewhere {self.inputs[wanted].text} stands for {wanted.text}"
        if reason := self.allowed.mismatch(self.scope, wanted.node, found):
            return reason
        if wanted in self.inputs or wanted.node in self.pattern.constants:  # equal constants may be shared
            if wanted not in self.inputs:
                self._note(self.inputs, wanted, found)
            return None
        if found in self.bound:
            return f"{found.text} is read, which stands for {self.bound[found].text} of the pattern already"
        self._note(self.inputs, wanted, found, self.bound)
        return None

    def _plain(self, edge: Edge) -> Edge:
        """A tensor without the nodes that only pass it on."""
        return _behind(self.scope.nodes, edge, "")

    def _note(self, kept: dict[Any, Any], key: Any, value: Any, back: dict[Any, Any] | None = None) -> None:
        kept[key] = value
        if back is not None:
            back[value] = key
        self.trail.append((kept, key, back, value))

    def _orders(self, p: Node, g: Node) -> list[list[tuple[Edge, Edge]]]:
        straight = list(zip(p.inputs, g.inputs, strict=True))
        if p.op not in COMMUTATIVE or len(straight) != 2:
            return [straight]
        swapped = [(p.inputs[0], g.inputs[1]), (p.inputs[1], g.inputs[0])]
        likely = [order for order in (straight, swapped) if all(self._alike(a, b, _LOOK) for a, b in order)]
        return likely or [straight]

    def _alike(self, wanted: Edge, found: Edge, depth: int) -> bool:
        """Whether one tensor may stand for another, as far as can be seen from here."""
        pattern = self.pattern
        p, g = pattern.nodes.get(wanted.node), self.scope.nodes.get(found.node)
        if p is not None:
            found = _behind(self.scope.nodes, found, p.op)
            g = self.scope.nodes.get(found.node)
        if p is not None and p.name not in self.nodes:
            wanted = _behind(pattern.nodes, wanted, g.op if g is not None else "")
            p = pattern.nodes.get(wanted.node)
        if p is None:
            if wanted in self.inputs and wanted.node not in pattern.constants:
                return self._plain(self.inputs[wanted]) == self._plain(found)
            taken = found in self.bound and wanted.node not in pattern.constants
            return not taken and self.allowed.mismatch(self.scope, wanted.node, found) is None
        if g is None or p.name in self.nodes:
            return g is not None and self.nodes[p.name] == g.name
        if p.op != g.op or len(p.inputs) != len(g.inputs) or g.name in self.back or not same_port(wanted, found, p.op):
            return False
        if depth == 0:
            return True
        pairs = list(zip(p.inputs, g.inputs, strict=True))
        if all(self._alike(a, b, depth - 1) for a, b in pairs):
            return True
        swapped = zip(p.inputs, reversed(g.inputs), strict=True)
        return p.op in COMMUTATIVE and all(self._alike(a, b, depth - 1) for a, b in swapped)


def _passes(node: Node) -> bool:
    """Whether a node gives what it is given."""
    return node.op in PASSTHROUGH and len(node.inputs) == 1


def _behind(nodes: Mapping[str, Node], edge: Edge, op: str) -> Edge:
    """What a tensor is before nodes that only pass it on; one of operation `op` is not passed over."""
    for _ in range(_QUIET):
        node = nodes.get(edge.node)
        if node is None or node.op == op or not _passes(node):
            break
        edge = node.inputs[0]
    return edge


def _then(pairs: list[tuple[Edge, Edge]], agenda: _Agenda) -> _Agenda:
    for wanted, found in reversed(pairs):
        agenda = (wanted, found, agenda)
    return agenda
