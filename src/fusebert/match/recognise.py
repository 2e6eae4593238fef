"""Recognise: LayerNorms, activations and softmaxes that an exporter wrote out in small steps are known by what they
compute, not by how: the steps are run on a few numbers, and the result is compared with the operation it may be."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fusebert.match import axes as ax
from fusebert.match.axes import Group
from fusebert.match.findings import RuleRow, label
from fusebert.match.lift.constants import LAST
from fusebert.match.lift.shapes import ELEMENTWISE, compute
from fusebert.ops.graph import Array, Graph, Node
from fusebert.ops.vocabulary import ACTIVATIONS, Numpy
from fusebert.values import limits

_ROWWISE = frozenset(("mean", "sum", "max", "min"))
_BENT = frozenset(("erf", "tanh", "sigmoid", "relu", "maximum", "clip", "exp"))  # what an activation has in it
_LARGEST_REGION = 48
_LARGEST_EPSILON = 0.1
_FAR = np.array([10, 25, 70, 300, 2000, 60000.0])  # where an activation with limits shows
_GRID = np.concatenate([-_FAR[::-1], np.linspace(-8, 8, 129), _FAR])
_NAMES = [name for name in ACTIVATIONS if name != "identity"]
with np.errstate(all="ignore"):
    _WANTED = np.stack([ACTIVATIONS[name](_GRID) for name in _NAMES])
_WEIGHT = 1 / np.maximum(1, np.abs(_GRID))
_TOLERANCE = 5e-5  # tells the two GELUs apart, which differ by 5e-4, and allows constants of five digits


def recognise(
    graph: Graph, dims: Mapping[str, tuple[Group, ...]], kept: Collection[str] = ()
) -> tuple[Graph, list[RuleRow]]:
    """The graph with larger operations in place of the small steps that compute them, and a row for each attempt.
    `kept` are tensors of nodes whose operands are not known to be laid out alike."""
    return _Recognition(graph, dims, kept).run()


@dataclass
class _Region:
    """What can be computed from one tensor, row by row, and with which constants."""

    values: dict[str, Array]
    vectors: dict[str, tuple[str, ...]]
    scalars: dict[str, tuple[float, ...]]
    nodes: list[int] = field(default_factory=list)


class _Recognition:
    def __init__(self, graph: Graph, dims: Mapping[str, tuple[Group, ...]], kept: Collection[str]) -> None:
        self._graph, self._dims, self._kept = graph, dims, kept
        self._nodes = list(graph.nodes)
        self._maker = {name: i for i, node in enumerate(self._nodes) for name in node.outputs}
        self._readers: dict[str, list[int]] = {}
        for i, node in enumerate(self._nodes):
            for name in dict.fromkeys(node.inputs):
                self._readers.setdefault(name, []).append(i)
        self._scalars: dict[str, float | None] = {}
        self._tried: set[int] = set()  # nodes that no search need begin at again
        self._endless: set[int] = set()  # nodes with a long way of small steps before them
        self.rows: list[RuleRow] = []

    def run(self) -> tuple[Graph, list[RuleRow]]:
        for i, node in enumerate(self._graph.nodes):
            if i not in self._tried and node.op in ("mean", "sum"):
                self._norm(self._squared(node.inputs[0]))
            elif i not in self._tried and node.op == "max":
                self._softmax(node.inputs[0])
        self._tried = set()
        for i, node in enumerate(self._graph.nodes):
            if node.op in _BENT and i not in self._tried:
                self._activation(self._start(i))
        return replace(self._graph, nodes=tuple(_pruned(self._nodes, self._graph.outputs))), self.rows

    def _refuse(self, rule: str, start: str, region: _Region) -> None:
        """Records that nothing in a region is what was looked for; no search begins in it again."""
        self._tried.update(region.nodes)
        nodes = tuple(dict.fromkeys(label(self._graph.nodes[i]) for i in region.nodes)) or (start,)
        what = "an activation" if rule == "activation" else f"a {rule}"
        self.rows.append(RuleRow("recognise", rule, nodes, "", f"none of what is computed from {start} is {what}"))

    def _emit(
        self, tensor: str, op: str, inputs: tuple[str, ...], region: _Region, reason: str, **attributes: object
    ) -> None:
        old = self._nodes[self._maker[tensor]]
        self._nodes[self._maker[tensor]] = Node(op, inputs, (tensor,), attributes, old.name, old.function)
        last = region.nodes.index(self._maker[tensor])
        self._tried.update(region.nodes[: last + 1])
        names = dict.fromkeys(label(self._graph.nodes[i]) for i in region.nodes[: last + 1])
        self.rows.append(RuleRow("recognise", op, tuple(names), op, reason))

    def _scalar(self, name: str) -> float | None:
        if name not in self._scalars:
            weight = self._graph.weights.get(name)
            one = weight is not None and weight.is_numbers and all(n == 1 for n in weight.shape)
            self._scalars[name] = float(weight.read().reshape(())) if weight is not None and one else None
        return self._scalars[name]

    def _is_vector(self, name: str, width: int) -> bool:
        weight = self._graph.weights.get(name)
        return weight is not None and weight.shape == (width,)

    def _region(self, start: str, value: Array, width: int, rowwise: bool) -> _Region:
        """Grows the region from a tensor, computing as it goes; `rowwise` allows vectors and means along the rows."""
        region = _Region({start: value}, {start: ()}, {start: ()})
        random = np.random.default_rng(0)
        constants: dict[str, Array] = {LAST: np.array([-1])}
        waiting = list(self._readers.get(start, ()))
        heapq.heapify(waiting)
        done: set[int] = set()
        while waiting and len(region.nodes) < _LARGEST_REGION:
            limits.spend()
            i = heapq.heappop(waiting)
            node = self._graph.nodes[i]
            if i in done or not (node.op in ELEMENTWISE or (rowwise and node.op in _ROWWISE)):
                continue
            if node.outputs[0] in self._kept:
                continue
            vectors: list[str] = []
            scalars: list[float] = []
            for name in filter(None, node.inputs):
                if name in region.values:
                    vectors += region.vectors[name]
                    scalars += region.scalars[name]
                elif name == LAST:
                    continue
                elif (number := self._scalar(name)) is not None:
                    constants[name] = np.array(number, np.float64)
                    scalars.append(number)
                elif rowwise and self._is_vector(name, width):
                    constants.setdefault(name, random.uniform(0.5, 2, width))
                    vectors.append(name)
                else:
                    break
            else:
                arrays = [region.values.get(n, constants.get(n)) if n else None for n in node.inputs]
                made, out = compute(node, arrays), node.outputs[0]
                if made is None:
                    continue
                region.values[out] = made[0]
                region.vectors[out], region.scalars[out] = tuple(dict.fromkeys(vectors)), tuple(dict.fromkeys(scalars))
                region.nodes.append(i)
                done.add(i)
                for reader in self._readers.get(out, ()):
                    heapq.heappush(waiting, reader)
        self._constants = constants
        return region

    def _squared(self, tensor: str) -> str:
        """What a tensor is the square of, as in an RMSNorm; else the tensor."""
        node = self._graph.nodes[at] if (at := self._maker.get(tensor)) is not None else None
        if node is None or node.op not in ("square", "mul", "pow"):
            return tensor
        base = {name for name in node.inputs if self._scalar(name) is None}
        return base.pop() if len(base) == 1 else tensor

    def _norm(self, start: str) -> None:
        dims = self._dims.get(start)
        if not dims or not dims[-1] or not ax.fixed(size := ax.size_of(dims[-1])) or size[0] < 2:
            return
        width = size[0]
        random = np.random.default_rng(1)
        scales = np.array([1, 1, 0.1, 1e-2, 1e-4, 1e-6, 0])  # without any variance, only epsilon is left
        x = random.normal(size=(len(scales), width)) * scales[:, None] + scales[:, None]
        region = self._region(start, x, width, rowwise=True)
        found: tuple[str, str, tuple[str, ...], float] | None = None
        for i in region.nodes:
            out = self._graph.nodes[i].outputs[0]
            if self._graph.nodes[i].op in _ROWWISE or region.values[out].shape != x.shape:
                continue
            if (match := self._norm_of(x, out, region)) is not None:
                found = (out, *match)
        if found is None:
            self._refuse("norm", start, region)
            return
        out, word, parameters, epsilon = found
        self._emit(out, word, (start, *parameters), region, f"epsilon {epsilon:g}", epsilon=epsilon)

    def _norm_of(self, x: Array, out: str, region: _Region) -> tuple[str, tuple[str, ...], float] | None:
        """Which norm of its beginning a tensor of the region is, if it is one, with its gain, bias and epsilon."""
        vectors, value = region.vectors[out], region.values[out]
        if len(vectors) > 2:
            return None
        for epsilon in (*(e for e in region.scalars[out] if 0 < e < _LARGEST_EPSILON), 0.0):
            for gain, bias in _pairs(vectors):
                given = [self._constants[name] if name else None for name in (gain, bias)]
                parameters = (gain, bias) if bias else (gain,) if gain else ()
                with np.errstate(all="ignore"):
                    if _alike(value, Numpy().layer_norm(x, given[0], given[1], epsilon)):
                        return "layer_norm", parameters, epsilon
                    if not bias and _alike(value, Numpy().rms_norm(x, given[0], epsilon)):
                        return "rms_norm", parameters, epsilon
        return None

    def _softmax(self, start: str) -> None:
        x = np.random.default_rng(2).normal(size=(3, 7))
        region = self._region(start, x, 7, rowwise=True)
        wanted = Numpy().softmax(x)
        for i in region.nodes:
            out = self._graph.nodes[i].outputs[0]
            if region.values[out].shape == x.shape and np.allclose(region.values[out], wanted, rtol=1e-5):
                self._emit(out, "softmax", (start,), region, "written out")
                return
        self._refuse("softmax", start, region)

    def _start(self, i: int) -> str:
        """The tensor that an activation is a function of: as far back as one number decides; "" if that is too far."""
        frontier = {name for name in self._graph.nodes[i].inputs if name and self._scalar(name) is None}
        best = next(iter(frontier)) if len(frontier) == 1 else ""
        for _ in range(_LARGEST_REGION):
            latest = max(frontier, key=lambda name: self._maker.get(name, -1), default="")
            place = self._maker.get(latest, -1)
            if place in self._endless:
                break
            if place < 0 or self._graph.nodes[place].op not in ELEMENTWISE:
                return best
            inputs = {name for name in self._graph.nodes[place].inputs if name and self._scalar(name) is None}
            if not inputs or any(name in self._graph.weights for name in inputs):
                return best
            frontier = (frontier - {latest}) | inputs
            if len(frontier) == 1:
                best = next(iter(frontier))
        self._endless.add(i)
        return ""

    def _activation(self, start: str) -> None:
        if not start:
            return
        region = self._region(start, _GRID, 0, rowwise=False)
        found = None
        for i in region.nodes:
            value = region.values[self._graph.nodes[i].outputs[0]]
            if value.shape != _GRID.shape or value.dtype.kind != "f":
                continue
            with np.errstate(all="ignore"):
                apart = (np.abs(_WANTED - value) * _WEIGHT).max(1)
            best = int(apart.argmin())  # of a number that is none, which compares as false
            if apart[best] < _TOLERANCE:
                found = self._graph.nodes[i].outputs[0], _NAMES[best]
        if found is None:
            self._refuse("activation", start, region)
        else:
            self._emit(found[0], "activation", (start,), region, found[1], name=found[1])


def _alike(value: Array, wanted: Array) -> bool:
    return np.allclose(value, wanted, rtol=1e-5, atol=1e-7, equal_nan=True)


def _pairs(vectors: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Which vector may be the gain and which the bias."""
    if not vectors:
        yield "", ""
    elif len(vectors) == 1:
        yield from ((vectors[0], ""), ("", vectors[0]), (vectors[0], vectors[0]))
    else:
        yield from (vectors, vectors[::-1])  # type: ignore[misc]


def _pruned(nodes: list[Node], outputs: tuple[str, ...]) -> list[Node]:
    """The nodes that the outputs depend on."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed.update(node.inputs)
    return kept[::-1]
