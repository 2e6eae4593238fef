"""Lifting: the state of a lift and what every rule needs of it: what is known of a tensor, and how to say a word, to
lay numbers out, and to leave a node as it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.graph import Array, Graph, Node, Weight
from fusebert.match import axes as ax
from fusebert.match.axes import Group, Size, View
from fusebert.match.limits import broadcast, product_shape, result_size
from fusebert.match.probe import Probe, full_shape
from fusebert.ops import Numpy
from fusebert.primitives import MEANING

_MOST = 1 << 20  # elements of an array that is computed on the way
_MOST_KEPT = 1 << 23  # of all such arrays together; from then on only those that may be shapes
_SHAPE = 64


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


ELEMENTWISE = _words("""
    neg abs sqrt rsqrt reciprocal exp log erf tanh sigmoid softplus relu sin cos floor ceil sign square invert isnan
    isinf activation add sub mul div floordiv mod pow maximum minimum equal not_equal less less_equal greater
    greater_equal and or where clip
""")
_FOLDED = ELEMENTWISE | _words("""
    identity cast reshape transpose squeeze unsqueeze expand concat stack split slice strided_slice gather dequantize
""")
_BY_SHAPE = ELEMENTWISE | _words("""
    cast concat stack matmul einsum gather softmax log_softmax identity layer_norm quantize dequantize dynamic_quantize
    matmul_integer
""")  # the shapes of their inputs alone decide what shape comes out
_ALONG = _words("cast softmax log_softmax identity quantize dequantize")  # as their first input is
_VIEWS = _words("reshape transpose squeeze unsqueeze expand split slice strided_slice")  # which NumPy does not copy for
SHAPE_ONLY = {"shape": (0,), "size": (0,), "key_mask": (1,), "causal_mask": (0,)}  # inputs of which only that counts
_FEW, _SOME = 8, 4096  # numbers, and whole ones; more are weights, which are not read until they are needed
_WHOLE = ("int64", "int32", "bool")
LAST = "last axis"  # the name of the constant that names it


@dataclass
class Lifted:
    """The lifted graph and what was learned on the way: the layout of every tensor of the original, and where each
    weight comes from (the constant's name, and what was done to it)."""

    graph: Graph
    views: dict[str, View]
    origins: dict[str, tuple[str, str]]
    dims: dict[str, tuple[Group, ...]]
    probes: tuple[Probe, Probe]  # with the shapes that were asked for on the way
    content: set[str]  # tensors that depend on what is in an input, not only on its shape
    quantized: list[str]  # nodes whose 8-bit numbers became floats
    baked: dict[int, int]  # sizes of the inputs' dimensions that the graph insists on, though it declares none
    kept: set[str]  # tensors that nodes make which no rule understood; their words mean what the dialect's did


@dataclass
class Lifting:
    """Values, their layouts, and the nodes that make them, as far as the lift has come."""

    source: Graph
    probes: tuple[Probe, Probe]
    nodes: list[Node] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    origins: dict[str, tuple[str, str]] = field(default_factory=dict)
    views: dict[str, View] = field(default_factory=dict)
    dims: dict[str, tuple[Group, ...]] = field(default_factory=dict)  # the layout of every value
    maker: dict[str, Node] = field(default_factory=dict)  # of a value
    arrays: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # of a tensor, in each probe
    content: set[str] = field(default_factory=set)  # tensors that depend on what is in an input, not only on its shape
    laid: dict[str, list[tuple[tuple[Group, ...], str]]] = field(default_factory=dict)  # other layouts of a value
    multiplied: dict[tuple[str, float], str] = field(default_factory=dict)
    quantized: list[str] = field(default_factory=list)
    rounded: dict[str, View] = field(default_factory=dict)  # what 8-bit tensors were before
    baked: dict[int, int] = field(default_factory=dict)
    kept: set[str] = field(default_factory=set)
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
        return float(array.reshape(())) if array is not None and array.size == 1 and array.dtype != object else None

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
        shape_only = SHAPE_ONLY.get(node.word, ())
        pairs = [self._zeros(name) if i in shape_only else self.known(name) for i, name in enumerate(node.inputs)]
        if any(pair is None for pair, name in zip(pairs, node.inputs, strict=True) if name):
            return
        inputs = [[None if pair is None else pair[i] for pair in pairs] for i in (0, 1)]
        largest = max(result_size(node, values) for values in inputs)
        if largest > (_MOST if self._kept <= _MOST_KEPT else _SHAPE):
            return
        made = [meaning(node, values) for values in inputs]
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
                self.origins[name] = self._origin(node)
            return True
        if not node.inputs or not all(n in self.weights for n in node.inputs if n) or node.word not in _FOLDED:
            return False
        stand_ins = [self._stand_in(name) for name in node.inputs]
        made = self._example(node, stand_ins)
        if made is None:
            return False
        for place, (name, example) in enumerate(zip(node.outputs, made, strict=False)):
            weights = [self.weights[n] if n else None for n in node.inputs]

            def read(weights: list[Weight | None] = weights, place: int = place) -> Array:
                arrays = [None if w is None else w.read() for w in weights]
                made = meaning(node, arrays)
                if made is None or place >= len(made):
                    raise FusebertError(f"node {node.name} ({node.word}) cannot be computed")
                return made[place]

            self.weights[name] = Weight(example.shape, example.dtype.name, read)
            self.origins[name] = self._origin(node)
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

    def _origin(self, node: Node) -> tuple[str, str]:
        large = [n for n in node.inputs if n in self.weights and self.known(n) is None]
        name = large[0] if large else next((n for n in node.inputs if n in self.weights), "")
        root, how = self.origins.get(name, (name, ""))
        quiet = node.word in ("identity", "cast", "reshape", "squeeze", "unsqueeze")
        return root, how if quiet else f"{how} {node.word}".strip()

    def emit(
        self,
        word: str,
        inputs: tuple[str, ...],
        output: str,
        dims: tuple[Group, ...],
        node: Node | None = None,
        **attributes: Any,
    ) -> str:
        made = Node(word, inputs, (output,), attributes, node.name if node else "", node.function if node else "")
        self.nodes.append(made)
        self.dims[output], self.maker[output] = dims, made
        if any(name in self.content for name in inputs):
            self.content.add(output)
        return output

    def scaled(self, view: View) -> str:
        """The value a view shows, with its factor."""
        if view.factor == 1:
            return view.value
        key = (view.value, view.factor)
        if key not in self.multiplied:
            name = f"{view.value} x {view.factor:g}"
            made = self.maker.get(view.value)
            if made is not None and made.word == "scores":
                scale = made.attributes["scale"] * view.factor
                self.emit("scores", made.inputs, name, self.dims[view.value], made, scale=scale)
            else:
                self.weights[f"factor {view.factor!r}"] = Weight.of(np.array(view.factor, np.float32))
                self.emit("mul", (view.value, f"factor {view.factor!r}"), name, self.dims[view.value])
            self.multiplied[key] = name
        return self.multiplied[key]

    def lay(self, view: View, target: tuple[Group, ...]) -> str:
        """The name of the view's numbers laid out so; rearranged if they are not."""
        source, target = ax.settled(self.dims[view.value]), ax.settled(target)
        if view.value in self.weights:
            return self.lay_weight(view.value, source, target)
        value = self.scaled(view)
        if source == target:
            return value
        laid = self.laid.setdefault(value, [])
        name = next((name for other, name in laid if ax.settled(other) == target), "")  # axes may have become the same
        if not name:
            made = self.maker.get(value)
            name = f"{value} @{len(laid)}"
            turned = len(source) > 1 and target == (*source[:-2], source[-1], source[-2])
            if made is not None and made.word == "scores" and turned:
                self.emit("scores", (made.inputs[1], made.inputs[0]), name, target, made, **made.attributes)
            elif made is not None and made.word == "mask" and turned:
                self._turn_mask(made, name, target)
            elif _splits_heads(source, target):
                self.emit("split_heads", (value,), name, target, made, heads=target[-3][0].size[0])
            elif _splits_heads(target, source):
                self.emit("merge_heads", (value,), name, target, made)
            else:
                self.emit("arrange", (value,), name, target, made, **_arrangement(source, target))
            laid.append((target, name))
        return name

    def _turn_mask(self, made: Node, name: str, target: tuple[Group, ...]) -> None:
        """Masked scores with queries and keys the other way round."""
        scores, added = made.inputs
        dims = self.dims[added]
        dims = ((),) * max(0, 2 - len(dims)) + dims
        turned = self.lay(View(added, self.dims[added]), (*dims[:-2], dims[-1], dims[-2]))
        self.emit("mask", (self.lay(View(scores, self.dims[scores]), target), turned), name, target, made)

    def lay_weight(self, name: str, source: tuple[Group, ...], target: tuple[Group, ...]) -> str:
        if source == target:
            return name
        weight, how = self.weights[name], _arrangement(source, target)
        shape = tuple(size[0] for size in ax.shape_of(target))
        laid = f"{name} @{len(self.weights)}"
        self.weights[laid] = Weight(shape, weight.dtype, lambda: Numpy().arrange(weight.read(), **how))
        root, note = self.origins.get(name, (name, ""))
        turned = [atom for group in source for atom in group] != [atom for group in target for atom in group]
        self.origins[laid] = root, f"{note} transpose".strip() if turned else note
        return laid

    def keep(self, node: Node) -> None:
        """A node as it is, on tensors laid out as it expects them."""
        inputs = []
        for name in node.inputs:
            view = self.view(name) if name and name not in self.weights else None
            inputs.append(name if view is None else self.lay(view, view.dims))
        self.nodes.append(Node(node.word, tuple(inputs), node.outputs, node.attributes, node.name, node.function))
        self.kept.update(node.outputs)
        shapes = self.shapes(node)
        for place, name in enumerate(node.outputs):
            self.maker[name] = self.nodes[-1]
            if name in self.arrays:
                self.value(name, self._sizes(self.arrays[name]))
            elif shapes is not None and place < len(shapes):
                self.value(name, shapes[place])

    def shapes(self, node: Node) -> list[list[Size]] | None:
        """The sizes of what a node makes, found by running it on zeros that take no memory."""
        if all(name in self.arrays for name in node.outputs):
            return None
        results = []
        for i in (0, 1):
            inputs: list[Array | None] = []
            for place, name in enumerate(node.inputs):
                pair = self.known(name) if name else None
                if pair is None and name and (place == 0 or node.word in _BY_SHAPE):
                    pair = self._zeros(name)  # further inputs of other words decide what shape comes out
                if name and pair is None:
                    return None
                inputs.append(None if pair is None else pair[i])
            made = self._example(node, inputs)
            if made is None:
                return None
            results.append(made)
        if any(a.ndim != b.ndim for a, b in zip(*results, strict=True)):
            return None
        return [self._sizes((a, b)) for a, b in zip(*results, strict=True)]

    @staticmethod
    def _example(node: Node, inputs: list[Array | None]) -> list[Array] | None:
        """What a node makes of arrays of which only shapes count, as one that has a shape and no more where that can be
        told without computing it."""
        shapes = [a.shape for a in inputs if a is not None]
        try:
            if node.word in ELEMENTWISE or node.word in _ALONG or node.word == "layer_norm":
                shape = shapes[0] if node.word in _ALONG else broadcast(*shapes)
            elif node.word in ("matmul", "matmul_integer") and len(shapes) > 1:
                shape = product_shape(shapes[0], shapes[1], node.attributes)
            elif node.word == "concat":
                axis = int(node.attributes["axis"]) % len(shapes[0])
                shape = (*shapes[0][:axis], sum(s[axis] for s in shapes), *shapes[0][axis + 1 :])
            else:
                numbers = 0 if node.word in _VIEWS else result_size(node, inputs)
                read = 0 if node.word in (*_VIEWS, "gather") else sum(a.size for a in inputs if a is not None)
                return None if max(numbers, read) > _MOST << 2 else meaning(node, inputs)
            one = meaning(node, [None if a is None else a.reshape(-1)[:1].reshape([1] * a.ndim) for a in inputs])
            return None if one is None else [np.broadcast_to(np.zeros((), a.dtype), shape) for a in one]
        except (ArithmeticError, LookupError, TypeError, ValueError):
            return None

    def note_baked(self, view: View, shapes: tuple[Array, Array]) -> None:
        """Remembers a reshape that only fits inputs of one size."""
        usual = next(([*zip(*(a.shape for a in self.arrays[n]), strict=True)] for n in self.probes[0]), [])
        for group, n, m in zip(view.dims, shapes[0].reshape(-1), shapes[1].reshape(-1), strict=False):
            if ax.size_of(group) in usual and not ax.fixed(ax.size_of(group)) and n == m > 1:
                self.baked.setdefault(usual.index(ax.size_of(group)), int(n))

    def see(self, node: Node, view: View, dims: tuple[Group, ...]) -> bool:
        """A node that only lays out otherwise: its output is a view."""
        self.views[node.outputs[0]] = View(view.value, dims, view.factor)
        return True

    def result(self) -> Lifted:
        """What the outputs need, as a Graph; outputs are laid out as they were."""
        outputs = []
        for name in self.source.outputs:
            view = self.views.get(name)
            outputs.append(name if view is None or name in self.weights else self.lay(view, view.dims))
        probes: tuple[Probe, Probe] = dict(self.probes[0]), dict(self.probes[1])
        for node in self.nodes:
            if node.word in SHAPE_ONLY and (pair := self.arrays.get(node.outputs[0])) is not None:
                probes[0][node.outputs[0]], probes[1][node.outputs[0]] = pair
        graph = Graph(
            tuple(self.nodes),
            self.source.inputs,
            tuple(outputs),
            self.weights,
            self.source.types,
            {},
            self.source.facts,
        )
        return Lifted(
            graph, self.views, self.origins, self.dims, probes, self.content, self.quantized, self.baked, self.kept
        )


def numbers_read(node: Node) -> list[str]:
    """The tensors whose numbers a node reads, not only their shape."""
    return [name for i, name in enumerate(node.inputs) if name and i not in SHAPE_ONLY.get(node.word, ())]


def meaning(node: Node, inputs: list[Any]) -> list[Array] | None:
    """What a node makes of arrays; None if it has no meaning for them."""
    if node.word not in MEANING:
        return None
    try:
        with np.errstate(all="ignore"):
            made = MEANING[node.word](*inputs, **{k: v for k, v in node.attributes.items() if k != "^"})
    except Exception:  # the probe is not a real input; whatever it breaks is only not known
        return None
    return [np.asarray(a) for a in (made if isinstance(made, (tuple, list)) else (made,))]


def _dtype(name: str) -> Any:
    import ml_dtypes

    return ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype("O" if name == "string" else name)


def _splits_heads(source: tuple[Group, ...], target: tuple[Group, ...]) -> bool:
    """(..., t, (a, d)) to (..., a, t, d)."""
    if len(source) < 2 or len(target) != len(source) + 1 or not source[-1]:
        return False
    (*lead, t), (a, *d) = source[:-1], source[-1]
    return target == (*lead, (a,), t, tuple(d)) and ax.fixed(a.size)


def _arrangement(source: tuple[Group, ...], target: tuple[Group, ...]) -> dict[str, Any]:
    """How to get from one layout to another, as the attributes of `arrange`."""
    have = ax.flat(source)
    splits = tuple(
        tuple((axis.size[0] if ax.fixed(axis.size) else -1) for axis in group) if len(group) > 1 else (0,) * len(group)
        for group in source
    )
    order = tuple(have.index(axis) for axis in ax.flat(target))
    return {"splits": splits, "order": order, "merges": tuple(len(group) for group in target)}
