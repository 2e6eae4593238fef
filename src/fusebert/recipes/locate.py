"""Locate: a pattern in a graph -> every place where the same is computed, and of those that are not one, why.

Names do not count. Operations, ports, attributes and constants do; inputs of commutative operations may be swapped, and
nodes that give what they are given may stand on one side only. One input of the pattern is one tensor everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow import tensor_value
from fusebert.graph import Array
from fusebert.recipes.extract import constant_behind
from fusebert.recipes.graphs import Graphs
from fusebert.recipes.meaning import COMMUTATIVE, QUIET, SHAPES, WEIGHTS, difference
from fusebert.recipes.messages import DIGEST
from fusebert.recipes.scope import Edge, Node, Scope, read_nodes, same_port

_ANY = -1  # the port of a seed, which is not read through an edge
_LOOK = 3  # how far inputs are looked at to tell which of two orders is meant
_QUIET = 100  # nodes that pass something on, one after the other: more is a circle
_STEPS = 40  # times the pattern's nodes: then a candidate is given up


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
                own = nodes[name].op not in QUIET
                found[name] = max(found[name], own + max((found[other] for other in below), default=0))
    return found


class Locator:
    """Searches the scopes of one model."""

    def __init__(
        self, graphs: Graphs, pattern: Pattern, ignored: Iterable[str] = (), asked: Iterable[str] = ()
    ) -> None:
        self.graphs, self.pattern = graphs, pattern
        self.ignored, self.asked = frozenset(ignored), frozenset(asked)
        self.refused: list[Refusal] = []
        self._values: dict[int, tuple[Array | str, Any]] = {}
        self._wanted = {name: self._value(one) for name, one in pattern.constants.items()}

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
        walk = _Walk(self, scope, taken)
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

    def mismatch(self, scope: Scope, name: str, edge: Edge) -> str | None:
        """Why a tensor cannot be an input of the pattern: another constant, or no weight where there is one."""
        source = self.pattern.sources.get(name)
        if source is None:  # a pattern of the earlier tools, which has names only
            return None
        if name in self._wanted:
            constant = constant_behind(scope, edge)
            if constant is None:
                return f"{edge.text} is not a constant, but {name} of the pattern is"
            return _unequal(self._wanted[name], self._value(constant.message), name, constant.name)
        if source.op in WEIGHTS and edge.node not in scope.arguments and not self._is_weight(scope, edge):
            return f"{edge.text} is not a weight, but {name} of the pattern is"
        return None

    def _is_weight(self, scope: Scope, edge: Edge) -> bool:
        for _ in range(16):
            node = scope.nodes.get(edge.node)
            if node is None or node.op in WEIGHTS:
                return True
            if (node.op not in QUIET and node.op != "Cast") or not node.inputs:
                return False
            edge = node.inputs[0]
        return False

    def _value(self, constant: Any) -> Array | str:
        """A constant's numbers, or what a pattern has instead of them where they are many."""
        if id(constant) not in self._values:
            digest = next((e.value.s.decode() for e in constant.attr if e.key == DIGEST), None)
            tensor = next((e.value.tensor for e in self.graphs.whole(constant).attr if e.key == "value"), None)
            if tensor is None:
                raise FusebertError(f"{constant.name} (Const) has no value")
            if digest is None:
                value: Array | str = tensor_value(tensor, constant.name)
            else:
                value = f"{'x'.join(str(dim.size) for dim in tensor.tensor_shape.dim)} {digest}"
            self._values[id(constant)] = value, constant  # an id is good as long as its object is there
        return self._values[id(constant)][0]


def _unequal(wanted: Array | str, found: Array | str, name: str, other: str) -> str | None:
    if isinstance(wanted, str):
        sizes, digest = wanted.split(" ")
        same = isinstance(found, str) or (
            "x".join(map(str, found.shape)) == sizes
            and (not digest or hashlib.sha256(found.tobytes()).hexdigest() == digest)
        )
        return None if same else f"the constant {other} is another than {name} of the pattern"
    if isinstance(found, str) or found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"the constant {other} is {_brief(found)}, but {name} of the pattern is {_brief(wanted)}"
    numbers = found.dtype.kind == "f"
    if np.array_equal(found, wanted) or (numbers and np.allclose(found, wanted, 1e-6, 0, equal_nan=True)):
        return None
    return f"the constant {other} is {_brief(found)}, but {name} of the pattern is {_brief(wanted)}"


def _brief(value: Array | str) -> str:
    if isinstance(value, str):
        return "a large one"
    if value.size > 6:
        return f"{value.dtype.name} of {'x'.join(map(str, value.shape))}"
    if value.ndim == 0 and value.dtype.kind == "f":
        return f"{float(value):g}"
    return " ".join(str(value.tolist()).split())


_Agenda = tuple[Edge, Edge, "_Agenda"] | None


@dataclass
class _Walk:
    """One candidate: what stands for what so far, what is still to be compared, and where another way was open."""

    locator: Locator
    scope: Scope
    taken: set[str]
    nodes: dict[str, str] = field(default_factory=dict)
    back: dict[str, str] = field(default_factory=dict)
    inputs: dict[Edge, Edge] = field(default_factory=dict)
    bound: dict[Edge, Edge] = field(default_factory=dict)
    passed: dict[str, None] = field(default_factory=dict)
    trail: list[tuple[Any, Any, Any, Any]] = field(default_factory=list)
    open: list[tuple[_Agenda, int]] = field(default_factory=list)
    worst: tuple[int, str, str, str] = (-1, "", "", "")

    def run(self, root: str, node: Node) -> Occurrence | Refusal:
        pattern = self.locator.pattern
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
        of = len(self.locator.pattern.nodes)
        return Refusal(self.scope.where, node.name, max(matched, 0), of, wanted, found, reason or why)

    def _step(self, wanted: Edge, found: Edge) -> str | list[list[tuple[Edge, Edge]]]:
        """Lets one tensor stand for another: why that cannot be, or the ways to go on."""
        pattern = self.locator.pattern
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
        return difference(p, g, self.locator.ignored, self.locator.asked)

    @staticmethod
    def _ports(wanted: Edge, found: Edge) -> str:
        return f"its output {found.text} is read, where the pattern reads {wanted.text}"

    def _bind(self, wanted: Edge, found: Edge) -> str | None:
        if wanted in self.inputs:
            if self._plain(self.inputs[wanted]) == self._plain(found):
                return None
            if wanted.node not in self.locator.pattern.constants:
                return f"{found.text} is read, but elsewhere {self.inputs[wanted].text} stands for {wanted.text}"
        if reason := self.locator.mismatch(self.scope, wanted.node, found):
            return reason
        if wanted in self.inputs or wanted.node in self.locator.pattern.constants:  # equal constants may be shared
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
        pattern = self.locator.pattern
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
            return not taken and self.locator.mismatch(self.scope, wanted.node, found) is None
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
    return node.op in QUIET and len(node.inputs) == 1


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
                chain = _useless(scope, reader)
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


def _useless(scope: Scope, node: Node) -> set[str] | None:
    """Shape arithmetic that nobody reads, beginning with a node; None if it is read or does something. In a main graph
    without signatures somebody may ask for a result by its name, but hardly for a shape."""
    if not scope.returns and node.op not in ("Shape", "ShapeN", "Size", "Rank"):
        return None
    found: set[str] = set()
    waiting = [node]
    while waiting:
        one = waiting.pop()
        if one.op not in SHAPES or one.name in scope.kept or scope.waiting.get(one.name) or len(found) > 1000:
            return None
        found.add(one.name)
        waiting += [reader for reader, _ in scope.readers.get(one.name, ()) if reader.name not in found]
    return found


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
