"""Trials: what a tensor of a raised graph is, for the probes and for inputs that differ from them in content and
length. What holds for all of them is taken to hold always."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from fusebert.errors import FusebertError
from fusebert.match import axes as ax
from fusebert.match.axes import Size
from fusebert.match.budget import refuse_large
from fusebert.match.findings import Lifted
from fusebert.match.lift.shapes import SHAPE_ONLY, numbers_read
from fusebert.match.probe import Probe
from fusebert.ops.graph import Array, Graph, Node
from fusebert.ops.vocabulary import evaluate

LONGER = (521, 509, 251, 127, 61)  # the first that the graph can be given is tried
_KEPT = 1 << 16  # elements of an array that is remembered
_IDS = 10  # so many ids are tried, with 0 and 1 among them


class Trials:
    """Tensors of one raised graph, each computed once for each trial."""

    def __init__(self, raised: Lifted) -> None:
        self._raised, self._graph = raised, raised.graph
        self._maker = {name: i for i, node in enumerate(self._graph.nodes) for name in node.outputs}
        self._known: dict[int, dict[str, Array]] = {}

    @cached_property
    def ids(self) -> frozenset[str]:
        """The inputs that tables are looked up by as they are, or, if there is none, by way of other operations."""
        indices = {node.inputs[1] for node in self._graph.nodes if node.op == "embed"}
        plain = frozenset(map(self._plain, indices)).intersection(self._graph.inputs)
        return plain or self.inputs_of(indices)

    def _plain(self, tensor: str) -> str:
        while (at := self._maker.get(tensor)) is not None and self._graph.nodes[at].op in ("cast", "arrange"):
            tensor = self._graph.nodes[at].inputs[0]
        return tensor

    def inputs_of(self, tensors: set[str]) -> frozenset[str]:
        """The inputs that the content of tensors depends on."""
        needed = set(tensors)
        for node in reversed(self._graph.nodes):
            if needed.intersection(node.outputs):
                needed.update(numbers_read(node))
        return frozenset(needed.intersection(self._graph.inputs))

    @cached_property
    def short(self) -> tuple[Probe, ...]:
        """The probes, and the same with other content: 0 and 1, or a few ids."""
        random = np.random.default_rng(5)
        probes = [{n: a for n, a in probe.items() if self._is_fixed(n)} for probe in self._raised.probes]
        return (*probes, *(self._refilled(probe, random) for probe in probes * 2))

    def _is_fixed(self, name: str) -> bool:
        """Whether what a probe has is an input or a shape, which content does not change."""
        at = self._maker.get(name)
        return at is None or self._graph.nodes[at].op in ("shape", "size")

    def _refilled(self, probe: Probe, random: np.random.Generator) -> Probe:
        other = dict(probe)
        for name in self._graph.inputs:
            if name in probe and probe[name].ndim > 1:
                most = _IDS if name in self.ids and probe[name].dtype.kind in "iu" else 2
                other[name] = random.integers(0, most, probe[name].shape).astype(probe[name].dtype)
        return other

    def long(self, length: int, full: bool = False) -> Probe | None:
        """One sequence of so many tokens, if the graph takes other lengths than the probes'; all of them are shown if
        it is to be `full`."""
        first, second = self._raised.probes
        if self._sizes is None or ax.fixed(self._sizes[1]):
            return None
        batch = self._sizes[0][0] if ax.fixed(self._sizes[0]) else 1
        random = np.random.default_rng(length)
        probe: Probe = {}
        for name, a in first.items():
            if name not in self._graph.inputs:
                continue
            shape = self._grown([*zip(a.shape, second[name].shape, strict=True)], (batch, length))
            if shape is None or math.prod(shape) > 1 << 20:
                continue
            most = _IDS if name in self.ids and a.dtype.kind in "iu" else 2
            low, high = (0, most) if a.ndim > 1 else (1, length + 1)
            probe[name] = self._ones(name, a, shape, length) if full else random.integers(low, high, shape)
            probe[name] = probe[name].astype(a.dtype)
        return probe

    def _ones(self, name: str, a: Array, shape: Sequence[int], length: int) -> Array:
        """What hides nothing: ids that are no padding, ones in a mask, or whole lengths."""
        return np.full(shape, _IDS - 1 if name in self.ids else 1 if a.ndim > 1 else length)

    @cached_property
    def _sizes(self) -> tuple[Size, Size] | None:
        """Batch and length of both probes."""
        first, second = self._raised.probes
        whole = ((a.shape, second[n].shape) for n, a in first.items() if n in self._graph.inputs and a.ndim == 2)
        return next((((b, c), (s, t)) for (b, s), (c, t) in whole), None)

    def _grown(self, shape: Sequence[Size], to: tuple[int, int]) -> list[int] | None:
        """A shape for inputs of another size."""
        (b, c), (s, t) = self._sizes or ((1, 1), (1, 1))
        ways = ((1, 1, 1), (s, t, to[1]), (b, c, to[0]), (b * s, c * t, to[0] * to[1]))
        sizes = []
        for m, n in shape:
            fitting = [m // x * new for x, y, new in ways if x and y and m % x == n % y == 0 and m // x == n // y]
            sizes += fitting[:1]
        return sizes if len(sizes) == len(shape) else None

    def _shapes(self, nodes: list[Node], given: Mapping[str, Array]) -> dict[str, Array]:
        """Zeros for tensors of which nodes only want the shape, which take no memory."""
        like = next((a for n, a in given.items() if n in self._graph.inputs and a.ndim == 2), None)
        zeros: dict[str, Array] = {}
        made = {name for node in nodes for name in node.outputs}
        for node in nodes:
            for place in SHAPE_ONLY.get(node.op, ()):
                name = node.inputs[place]
                dims = self._raised.dims.get(name)
                if like is None or dims is None or name in given or name in made or name in self._graph.weights:
                    continue
                if (shape := self._grown(ax.shape_of(dims), like.shape)) is not None:
                    zeros[name] = np.broadcast_to(np.float32(0), shape)
        return zeros

    def try_all(self, tensor: str, lengths: tuple[int, ...] = LONGER) -> Iterator[tuple[Probe, Array]]:
        """A tensor in every short trial, and in the longest that the graph can be given; raises FusebertError where it
        cannot be computed."""
        for number, probe in enumerate(self.short):
            yield probe, self._compute(tensor, probe, number)
        for length in lengths:
            if (longer := self.long(length)) is None:
                return
            try:
                value = self._compute(tensor, longer, length + len(self.short))
            except FusebertError:
                continue
            yield longer, value
            return

    def whole(self, tensor: str, lengths: tuple[int, ...] = LONGER) -> Array | None:
        """A tensor for one long sequence that is shown in full: as long as the graph can be given, or, where that is
        fixed, as the probes are."""
        for length in lengths:
            longer = self.long(length, full=True)
            try:
                return self._compute(tensor, longer or self._shown, -1)
            except FusebertError:
                if longer is None:
                    break
        return None

    @property
    def _shown(self) -> Probe:
        """A probe that hides nothing."""
        probe = dict(self._raised.probes[0])
        for name in self._graph.inputs:
            if name in probe:
                length = self._sizes[1][0] if self._sizes else 1
                probe[name] = self._ones(name, probe[name], probe[name].shape, length).astype(probe[name].dtype)
        return probe

    def compute(self, tensor: str, probe: Probe) -> Array:
        """A tensor for a probe."""
        return self._compute(tensor, probe, -1)

    def _compute(self, tensor: str, probe: Probe, number: int) -> Array:
        known = self._known.setdefault(number, {}) if number >= 0 else {}
        given: Mapping[str, Array] = {**probe, **known}
        nodes = self._needed(tensor, given)
        given = {**self._shapes(nodes, given), **given}
        made = {name: None for node in nodes for name in node.outputs if name}
        part = Graph(tuple(nodes), self._graph.inputs, (*made, tensor), self._graph.weights)
        values = evaluate(part, given, refuse_large)
        known.update((name, value) for name, value in values.items() if value.size <= _KEPT)
        return values[tensor]

    def makers(self, tensor: str) -> list[Node]:
        """The nodes that a tensor's numbers depend on."""
        return self._needed(tensor, {})

    def _needed(self, tensor: str, given: Mapping[str, Array]) -> list[Node]:
        waiting, places = [tensor], set()
        while waiting:
            name = waiting.pop()
            at = self._maker.get(name)
            if at is not None and name not in given and at not in places:
                places.add(at)
                node = self._graph.nodes[at]
                shapes = SHAPE_ONLY.get(node.op, ())
                waiting += [n for i, n in enumerate(node.inputs) if i not in shapes or n not in self._raised.dims]
        return [self._graph.nodes[at] for at in sorted(places)]


def inputs_that_matter(raised: Lifted) -> frozenset[str]:
    """The inputs whose numbers, not only whose shapes, some output depends on."""
    return Trials(raised).inputs_of(set(raised.graph.outputs))
