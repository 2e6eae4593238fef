"""Walk: a pattern and one candidate node, compared node by node backwards -> an occurrence, or where matching stopped
and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusebert.formats.tensorflow.scope import Edge, Node, Scope, same_port
from fusebert.recipes.constants import Inputs
from fusebert.recipes.equivalence import COMMUTATIVE, PASSTHROUGH, difference
from fusebert.recipes.pattern import Occurrence, Pattern, Refusal

_ANY = -1  # the port of a seed, which is reached through no edge
_LOOKAHEAD = 3  # levels of inputs compared to choose between the two orders of a commutative operation
_MOST_PASSTHROUGH = 100  # passthrough nodes in a row; more are a cycle
_STEPS = 40  # steps per node of the pattern before a candidate is given up

_Agenda = tuple[Edge, Edge, "_Agenda"] | None


@dataclass
class Walk:
    """The state of one candidate: the nodes and tensors bound so far, a trail to undo them, and the open
    alternatives."""

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
                    return self._refusal(node, "no node is left for the pattern's next seed")
                agenda = self._another()
                continue
            steps -= 1
            wanted, found, rest = agenda
            result = self._step(wanted, found)
            if steps < 0:
                return self._refusal(node, "the limit on matching steps was reached")
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
        """Binds a tensor of the pattern to one of the graph: the reason why it cannot be, or the ways to continue."""
        pattern = self.pattern
        p, g = pattern.nodes.get(wanted.node), self.scope.nodes.get(found.node)
        if p is None:
            return self._bind(wanted, found) or [[]]
        if p.name in self.nodes:
            if g is not None and self.nodes[p.name] == g.name:
                return [[]] if same_port(wanted, found, p.op) else self._ports(wanted, found)
            if g is None or not _is_passthrough(g):
                return f"the pattern has here the node that {self.nodes[p.name]} is bound to"
        if g is None:
            return f"it is an argument, but the pattern has {p.op} here"
        passthrough_p = _is_passthrough(p) and wanted.index != _ANY
        passthrough_g = _is_passthrough(g) and found.index != _ANY
        if p.op != g.op and passthrough_p and p.name not in pattern.seeds:
            return [[(p.inputs[0], found)]]
        if (p.op != g.op or p.name in self.nodes) and passthrough_g:
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
            return f"it is already bound to {self.back[g.name]} of the pattern"
        if g.name in self.taken:
            return "it belongs to another occurrence"
        if len(p.inputs) != len(g.inputs):
            return f"it has {len(g.inputs)} inputs, not {len(p.inputs)}"
        return difference(p, g, self.ignored, self.asked)

    @staticmethod
    def _ports(wanted: Edge, found: Edge) -> str:
        return f"its output {found.text} is read, but the pattern reads {wanted.text}"

    def _bind(self, wanted: Edge, found: Edge) -> str | None:
        if wanted in self.inputs:
            if self._plain(self.inputs[wanted]) == self._plain(found):
                return None
            if wanted.node not in self.pattern.constants:
                return f"{found.text} is read, but {wanted.text} is already bound to {self.inputs[wanted].text}"
        if reason := self.allowed.mismatch(self.scope, wanted.node, found):
            return reason
        if wanted in self.inputs or wanted.node in self.pattern.constants:  # equal constants may be shared
            if wanted not in self.inputs:
                self._note(self.inputs, wanted, found)
            return None
        if found in self.bound:
            return f"{found.text} is read, but it is already bound to {self.bound[found].text} of the pattern"
        self._note(self.inputs, wanted, found, self.bound)
        return None

    def _plain(self, edge: Edge) -> Edge:
        """The tensor before any passthrough nodes."""
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
        likely = [order for order in (straight, swapped) if all(self._alike(a, b, _LOOKAHEAD) for a, b in order)]
        return likely or [straight]

    def _alike(self, wanted: Edge, found: Edge, depth: int) -> bool:
        """Whether a tensor may match one of the pattern, judged by its inputs up to `depth` levels."""
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


def _is_passthrough(node: Node) -> bool:
    """Whether a node's output is its one input."""
    return node.op in PASSTHROUGH and len(node.inputs) == 1


def _behind(nodes: Mapping[str, Node], edge: Edge, op: str) -> Edge:
    """The tensor before any passthrough nodes, stopping at a node of operation `op`."""
    for _ in range(_MOST_PASSTHROUGH):
        node = nodes.get(edge.node)
        if node is None or node.op == op or not _is_passthrough(node):
            break
        edge = node.inputs[0]
    return edge


def _then(pairs: list[tuple[Edge, Edge]], agenda: _Agenda) -> _Agenda:
    for wanted, found in reversed(pairs):
        agenda = (wanted, found, agenda)
    return agenda
