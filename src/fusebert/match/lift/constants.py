"""Known: what is known of a graph's tensors under two probes: their numbers where they are few, their layout, and
which of them are constants of the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.match import axes as ax
from fusebert.match.axes import Group, Size, View
from fusebert.match.budget import result_size
from fusebert.match.findings import Applied, Provenance
from fusebert.match.lift.shapes import ELEMENTWISE, SHAPE_ONLY, compute, example, numbers_read, words
from fusebert.match.probe import Probe, full_shape
from fusebert.ops.graph import Array, Graph, Node, Weight

_MOST = 1 << 20  # elements of an array that is computed on the way
_MOST_KEPT = 1 << 23  # of all such arrays together; from then on only those that may be shapes
_SHAPE = 64
_FOLDED = ELEMENTWISE | words("""
    identity cast reshape transpose squeeze unsqueeze expand concat stack split slice strided_slice gather dequantize
""")
_BY_SHAPE = ELEMENTWISE | words("""
    cast concat stack matmul einsum gather softmax log_softmax identity layer_norm quantize dequantize dynamic_quantize
    matmul_integer
""")  # the shapes of their inputs alone decide what shape comes out
_FEW, _SOME = 8, 4096  # numbers, and whole ones; more are weights, which are not read until they are needed
_WHOLE = ("int64", "int32", "bool")
LAST = "last axis"  # the name of the constant that names it


@dataclass
class Known:
    """Tensors of a graph, and what is known of them, as far as the lift has come."""

    source: Graph
    probes: tuple[Probe, Probe]
    weights: dict[str, Weight] = field(default_factory=dict)
    origins: dict[str, Provenance] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    dims: dict[str, tuple[Group, ...]] = field(default_factory=dict)  # the layout of every value
    arrays: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # of a tensor, in each probe
    content: set[str] = field(default_factory=set)  # tensors that depend on what is in an input, not only on its shape
    _kept: int = 0  # numbers in `arrays`

    def __post_init__(self) -> None:
        self.weights = {**self.source.weights, LAST: Weight.of(np.array([-1], np.int64))}
        for name in self.source.inputs:
            self.content.add(name)
            if name in self.probes[0]:
                self.arrays[name] = self.probes[0][name], self.probes[1][name]
                self.value(name, self._sizes(self.arrays[name]))
            elif (declared := self.source.types.get(name)) and declared.shape is not None:
                first, second = (self._usual(declared.shape, probe) for probe in self.probes)
                self.value(name, list(zip(first, second, strict=True)))

    def _usual(self, shape: tuple[Any, ...], probe: Probe) -> list[int]:
        """The sizes of an input that is not filled, as the others have them."""
        usual = next((a.shape for a in probe.values() if a.ndim == 2), (1, 1))
        named: dict[int | str | None, int] = {}
        for name, array in probe.items():
            declared = self.source.types.get(name)
            named |= dict(zip(declared.shape or () if declared else (), array.shape, strict=False))
        return full_shape(shape, usual, {str(name): size for name, size in named.items()})

    @staticmethod
    def _sizes(pair: tuple[Array, Array]) -> list[Size]:
        return list(zip(pair[0].shape, pair[1].shape, strict=True))

    def known(self, name: str) -> tuple[Array, Array] | None:
        """A tensor's numbers under both probes, where they are few."""
        if name in self.arrays:
            return self.arrays[name]
        weight = self.weights.get(name)
        if weight is None:
            return None
        count = math.prod(weight.shape)
        if weight.dtype == "string" or count > (_SOME if weight.dtype in _WHOLE else _FEW):
            return None
        if not self._may_keep(count):
            return None
        array = weight.read()
        self.arrays[name] = array, array
        return self.arrays[name]

    def _may_keep(self, count: int) -> bool:
        if count > _SHAPE:
            self._kept += count
        return count <= _SHAPE or self._kept <= _MOST_KEPT

    def constant(self, name: str) -> Array | None:
        """A tensor's numbers, where they belong to the model and are few."""
        if not name or name in self.content or (pair := self.known(name)) is None:
            return None
        first, second = pair
        return first if first.shape == second.shape and np.array_equal(first, second) else None

    def scalar(self, name: str) -> float | None:
        """The number that a tensor is, where it belongs to the model."""
        array = self.constant(name)
        return float(array.reshape(())) if array is not None and array.size == 1 and _is_real(array) else None

    def view(self, name: str) -> View | None:
        """How a tensor is laid out, if that is known."""
        if name not in self.views and name in self.weights:
            shape = self.weights[name].shape
            self.value(name, [(n, n) for n in shape])
        return self.views.get(name)

    def value(self, name: str, shape: list[Size]) -> None:
        """A tensor that is seen as it is made."""
        self.dims[name] = ax.fresh(shape)
        self.views[name] = View(name, self.dims[name])

    def compute(self, node: Node) -> None:
        """Computes what a node makes, under both probes, where that is little."""
        if any(name in self.content for name in numbers_read(node)):
            self.content.update(node.outputs)
        if not any(node.inputs):
            return
        shape_only = SHAPE_ONLY.get(node.op, ())
        pairs = [self._zeros(name) if i in shape_only else self.known(name) for i, name in enumerate(node.inputs)]
        if any(pair is None for pair, name in zip(pairs, node.inputs, strict=True) if name):
            return
        inputs = [[None if pair is None else pair[i] for pair in pairs] for i in (0, 1)]
        largest = max(result_size(node, values) for values in inputs)
        if largest > (_MOST if self._kept <= _MOST_KEPT else _SHAPE):
            return
        made = [compute(node, values) for values in inputs]
        if made[0] is None or made[1] is None:
            return
        for name, first, second in zip(node.outputs, made[0], made[1], strict=False):
            if first.ndim == second.ndim and self._may_keep(first.size + second.size):
                self.arrays[name] = first, second

    def _zeros(self, name: str) -> tuple[Array, Array] | None:
        """Zeros of a tensor's shape, which take no memory."""
        if (view := self.view(name)) is None:
            return None
        first, second = zip(*ax.shape_of(view.dims), strict=True) if view.dims else ((), ())
        try:
            return np.broadcast_to(np.float32(0), first), np.broadcast_to(np.float32(0), second)
        except ValueError:  # more numbers than there are addresses
            return None

    def fold(self, node: Node) -> bool:
        """What depends on constants only is a constant: small ones are computed, large ones when they are read."""
        if all(self.constant(name) is not None for name in node.outputs if name) and node.outputs:
            for name in filter(None, node.outputs):
                array = self.arrays[name][0]
                self.weights[name] = Weight.of(array)
                self.origins[name] = self._made_of(node, array.shape)
            return True
        if not node.inputs or not all(n in self.weights for n in node.inputs if n) or node.op not in _FOLDED:
            return False
        stand_ins = [self._stand_in(name) for name in node.inputs]
        made = example(node, stand_ins)
        if made is None:
            return False
        for place, (name, like) in enumerate(zip(node.outputs, made, strict=False)):
            weights = [self.weights[n] if n else None for n in node.inputs]

            def read(weights: list[Weight | None] = weights, place: int = place) -> Array:
                arrays = [None if w is None else w.read() for w in weights]
                made = compute(node, arrays)
                if made is None or place >= len(made):
                    raise FusebertError(f"node {node.name} ({node.op}) cannot be computed")
                return made[place]

            self.weights[name] = Weight(like.shape, like.dtype.name, read)
            self.origins[name] = self._made_of(node, like.shape)
        return True

    def _stand_in(self, name: str) -> Array | None:
        if not name:
            return None
        if (pair := self.known(name)) is not None:
            return pair[0]
        weight = self.weights[name]
        try:
            return np.broadcast_to(np.zeros((), _dtype(weight.dtype)), weight.shape)
        except (TypeError, ValueError):
            return None

    def origin(self, weight: str) -> Provenance:
        """Where a weight comes from, as far as the lift has come."""
        return self.origins.get(weight) or Provenance(weight, (), self.weights[weight].shape)

    def _made_of(self, node: Node, shape: tuple[int, ...]) -> Provenance:
        """Where a folded constant comes from: the first large one of a node's inputs, or the first."""
        large = [n for n in node.inputs if n in self.weights and self.known(n) is None]
        name = large[0] if large else next((n for n in node.inputs if n in self.weights), "")
        passthrough = node.op in ("identity", "cast", "reshape", "squeeze", "unsqueeze")
        origin = self.origin(name) if name else Provenance("", (), shape)
        return origin.then(None if passthrough else Applied(node.op), shape)

    def shapes(self, node: Node) -> list[list[Size]] | None:
        """The sizes of what a node makes, found by running it on zeros that take no memory."""
        if all(name in self.arrays for name in node.outputs):
            return None
        results = []
        for i in (0, 1):
            inputs: list[Array | None] = []
            for place, name in enumerate(node.inputs):
                pair = self.known(name) if name else None
                if pair is None and name and (place == 0 or node.op in _BY_SHAPE):
                    pair = self._zeros(name)  # further inputs of other operations decide the shape of the result
                if name and pair is None:
                    return None
                inputs.append(None if pair is None else pair[i])
            made = example(node, inputs)
            if made is None:
                return None
            results.append(made)
        if any(a.ndim != b.ndim for a, b in zip(*results, strict=True)):
            return None
        return [self._sizes((a, b)) for a, b in zip(*results, strict=True)]


def _is_real(array: Array) -> bool:
    return array.dtype.kind not in "cOSUMm"


def _dtype(name: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype("O" if name == "string" else name)
