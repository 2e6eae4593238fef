"""The vocabulary: what each word means in NumPy, and the same words as a recorder that builds a Graph.

`values/forms.py` is written in these words. Run with `Numpy` it is the reference result; with `Record`, a Graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.ops.graph import Array, Graph, Node, Weight
from fusebert.ops.primitives import ACTIVATIONS as ACTIVATIONS
from fusebert.ops.primitives import MEANING, Meaning


class Numpy:
    """Every word on arrays `[..., tokens, width]`; heads become an axis before tokens."""

    def linear(self, x: Array, weight: Array, bias: Array | None) -> Array:
        """x times the transposed weight `[outputs, inputs]`, plus the bias."""
        y: Array = x @ weight.astype(x.dtype).T
        return y if bias is None else y + bias

    def split_heads(self, x: Array, heads: int) -> Array:
        """`[..., tokens, heads * size]` to `[..., heads, tokens, size]`."""
        return np.swapaxes(x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads), -2, -3)

    def merge_heads(self, x: Array) -> Array:
        """The inverse of split_heads."""
        x = np.swapaxes(x, -2, -3)
        return x.reshape(*x.shape[:-2], x.shape[-2] * x.shape[-1])

    def scores(self, query: Array, key: Array, scale: float) -> Array:
        """How much each token attends to each other one, before masking."""
        y: Array = query @ np.swapaxes(key, -1, -2) * scale
        return y

    def repeat_heads(self, x: Array, times: int) -> Array:
        """Every head of `[..., heads, tokens, size]` so many times in a row: groups of queries share keys."""
        return np.repeat(x, times, -3)

    def rotate(self, x: Array, frequencies: Array, positions: Array | None = None) -> Array:
        """Rotary positions of `[..., heads, tokens, size]`: number k of a head's first half and number k of its second
        turn by the token's position times frequency k, an angle in float32 as frameworks have it."""
        places = np.arange(x.shape[-2]) if positions is None else positions
        angles = (places[..., None].astype(np.float32) * np.float32(frequencies)).astype(x.dtype)[..., None, :, :]
        (first, second), cos, sin = np.split(x, 2, -1), np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)

    def turn(self, x: Array, cos: Array, sin: Array) -> Array:
        """The same with cosines and sines as they are, `[..., tokens, size]`: both halves of a row have their own."""
        first, second = np.split(x, 2, -1)
        y: Array = x * cos + np.concatenate([-second, first], -1) * sin
        return y

    def distance_bias(self, table: Array, scores: Array, positions: Array | None = None) -> Array:
        """What a table `[heads, 2 * reach + 1]` holds for every score's key minus query position, clamped to reach."""
        reach = table.shape[-1] // 2
        return np.moveaxis(table[:, np.clip(-_distances(scores.shape[-1], positions), -reach, reach) + reach], 0, -3)

    def by_distance(
        self, x: Array, positions: Array | None = None, *, buckets: int, reach: int, of_keys: bool = False
    ) -> Array:
        """Numbers `[..., heads, tokens, buckets]` of every query, or of every key, as scores `[..., queries, keys]`:
        DeBERTa's bucket of query minus key position says which number."""
        index = distance_buckets(_distances(x.shape[-2], positions), buckets, reach, x.shape[-1] // 2)
        index = np.swapaxes(index, -1, -2) if of_keys else index
        taken = np.take_along_axis(x, np.broadcast_to(index[..., None, :, :], (*x.shape[:-1], x.shape[-2])), -1)
        return np.swapaxes(taken, -1, -2) if of_keys else taken

    def window(self, scores: Array, positions: Array | None = None, *, window: int) -> Array:
        """Scores of keys that are farther than so many positions from their query become nothing."""
        near = np.abs(_distances(scores.shape[-1], positions)) <= window
        return np.where(near[..., None, :, :], scores, -np.inf)

    def mask(self, scores: Array, mask: Array | None) -> Array:
        """Scores plus an additive mask; a query that sees no key at all attends to all keys equally."""
        if mask is None:
            return scores
        masked: Array = (scores.astype(np.float32) + mask).astype(scores.dtype)
        return np.where(np.isneginf(masked).all(-1, keepdims=True), 0, masked)

    def softmax(self, x: Array) -> Array:
        """Along the last axis."""
        e = np.exp(x - x.max(-1, keepdims=True))
        y: Array = e / e.sum(-1, keepdims=True)
        return y

    def context(self, attention: Array, value: Array) -> Array:
        """Values averaged by attention."""
        y: Array = attention @ value
        return y

    def add(self, a: Array, b: Array) -> Array:
        """Elementwise sum."""
        y: Array = a + b
        return y

    def multiply(self, a: Array, b: Array) -> Array:
        """Elementwise product."""
        y: Array = a * b
        return y

    def activation(self, x: Array, name: str) -> Array:
        """One of ACTIVATIONS."""
        return ACTIVATIONS[name](x)

    def layer_norm(self, x: Array, gain: Array | None, bias: Array | None, epsilon: float) -> Array:
        """Along the last axis, with the biased variance."""
        centered = x - x.mean(-1, keepdims=True)
        y: Array = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon)
        y = y if gain is None else y * gain
        return y if bias is None else y + bias

    def rms_norm(self, x: Array, gain: Array | None, epsilon: float) -> Array:
        """Along the last axis, without centring."""
        y: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)
        return y if gain is None else y * gain

    def embed(self, table: Array, indices: Array) -> Array:
        """The rows of a table that the indices name."""
        y: Array = table[indices]
        return y

    def select(self, x: Array, axis: int, index: int) -> Array:
        """One row along an axis."""
        y: Array = np.take(x, index, axis)
        return y

    def arrange(
        self, x: Array, splits: tuple[tuple[int, ...], ...], order: tuple[int, ...], merges: tuple[int, ...]
    ) -> Array:
        """Another layout of the same numbers: every dimension is split into axes of these sizes (0: it is one axis; -1:
        what the others leave), the axes are put in order, and so many of them at a time make up the new dimensions."""
        sizes: list[int] = []
        for length, parts in zip(x.shape, splits, strict=True):
            known = int(np.prod([n for n in parts if n > 0]))
            sizes += [length if n == 0 else length // known if n < 0 else n for n in parts]
        x = x.reshape(sizes).transpose(order)
        ends = np.cumsum((0, *merges))
        return x.reshape([int(np.prod(x.shape[a:b])) for a, b in pairwise(ends)])


def _distances(tokens: int, positions: Array | None) -> Array:
    """Query minus key position, `[..., tokens, tokens]`."""
    places = np.arange(tokens) if positions is None else positions
    distances: Array = places[..., :, None] - places[..., None, :]
    return distances


def distance_buckets(distances: Array, buckets: int, reach: int, middle: int) -> Array:
    """DeBERTa's row for a distance: the distance itself up to half the buckets, then coarser up to `reach`; counted
    from `middle`, the row of distance 0. Without buckets, the distance itself."""
    rows = distances
    if buckets > 0:
        half = buckets // 2
        far = np.maximum(np.abs(distances), half).astype(np.float32) / np.float32(half)
        steps = np.log(far) / np.log(np.float32((reach - 1) / half)) * np.float32(half - 1)
        rows = np.where(np.abs(distances) <= half, distances, np.sign(distances) * (np.ceil(steps) + half))
    return np.clip(rows.astype(np.int64) + middle, 0, 2 * middle - 1)


class Record:
    """The same words, remembered: tensors are names, and `graph()` is what was said."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._weights: dict[str, Array] = {}

    def _say(self, word: str, inputs: tuple[Any, ...], **attributes: Any) -> str:
        names = tuple(self._weight(i) if isinstance(i, np.ndarray) else i for i in inputs if i is not None)
        output = f"{word}_{len(self._nodes)}"
        self._nodes.append(Node(word, names, (output,), attributes))
        return output

    def _weight(self, value: Array) -> str:
        name = f"weight_{len(self._weights)}"
        self._weights[name] = value
        return name

    def linear(self, x: str, weight: Array, bias: Array | None) -> str:
        return self._say("linear", (x, weight, bias))

    def split_heads(self, x: str, heads: int) -> str:
        return self._say("split_heads", (x,), heads=heads)

    def merge_heads(self, x: str) -> str:
        return self._say("merge_heads", (x,))

    def scores(self, query: str, key: str, scale: float) -> str:
        return self._say("scores", (query, key), scale=scale)

    def repeat_heads(self, x: str, times: int) -> str:
        return self._say("repeat_heads", (x,), times=times)

    def rotate(self, x: str, frequencies: Array, positions: str | None = None) -> str:
        return self._say("rotate", (x, frequencies, positions))

    def distance_bias(self, table: Array, scores: str, positions: str | None = None) -> str:
        return self._say("distance_bias", (table, scores, positions))

    def by_distance(self, x: str, positions: str | None = None, **sizes: Any) -> str:
        return self._say("by_distance", (x, positions), **sizes)

    def window(self, scores: str, positions: str | None = None, *, window: int) -> str:
        return self._say("window", (scores, positions), window=window)

    def mask(self, scores: str, mask: str | None) -> str:
        return self._say("mask", (scores, mask)) if mask else scores

    def softmax(self, x: str) -> str:
        return self._say("softmax", (x,))

    def context(self, attention: str, value: str) -> str:
        return self._say("context", (attention, value))

    def add(self, a: str, b: str) -> str:
        return self._say("add", (a, b))

    def multiply(self, a: str, b: str) -> str:
        return self._say("mul", (a, b))

    def activation(self, x: str, name: str) -> str:
        return self._say("activation", (x,), name=name)

    def layer_norm(self, x: str, gain: Array, bias: Array, epsilon: float) -> str:
        return self._say("layer_norm", (x, gain, bias), epsilon=epsilon)

    def rms_norm(self, x: str, gain: Array, epsilon: float) -> str:
        return self._say("rms_norm", (x, gain), epsilon=epsilon)

    def graph(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        """What was said so far."""
        return Graph(tuple(self._nodes), inputs, outputs, {n: Weight.of(a) for n, a in self._weights.items()})


def evaluate(
    graph: Graph,
    feeds: Mapping[str, Array],
    check: Callable[[Node, list[Array | None]], None] | None = None,
    more: Callable[[Node], Meaning | None] | None = None,
) -> dict[str, Array]:
    """Runs a Graph of vocabulary and primitive words in NumPy, what its outputs need of it; returns them by name.
    `check` is asked before each node; `more` knows what nodes of other words mean."""
    nodes, uses = _needed(graph, feeds)
    values = dict(feeds)
    with np.errstate(all="ignore"):
        for node in nodes:
            inputs = [_value(graph, values, name, node) for name in node.inputs]
            if check is not None:
                check(node, inputs)
            made = _run(node, inputs, more(node) if more else None)
            for name, value in zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False):
                if uses.get(name):
                    values[name] = value
            for name in node.inputs:
                uses[name] -= 1
                if uses[name] == 0:
                    values.pop(name, None)
    return {name: _value(graph, values, name, None) for name in graph.outputs}  # type: ignore[misc]


def _needed(graph: Graph, feeds: Mapping[str, Array]) -> tuple[list[Node], dict[str, int]]:
    """The nodes that the outputs depend on, and how often each tensor is read by them or is an output."""
    uses = dict.fromkeys(graph.outputs, 1)
    nodes = []
    for node in reversed(graph.nodes):
        if any(uses.get(name) and name not in feeds for name in node.outputs):
            nodes.append(node)
            for name in node.inputs:
                uses[name] = uses.get(name, 0) + 1
    return nodes[::-1], uses


def _value(graph: Graph, values: dict[str, Array], name: str, reader: Node | None) -> Array | None:
    if not name:
        return None
    if name not in values:
        if name not in graph.weights:
            who = f"node {reader.name} ({reader.op}) needs" if reader else "the graph's outputs need"
            raise FusebertError(f"{who} {name!r}, which is neither given nor made before")
        values[name] = graph.weights[name].read()
    return values[name]


VOCABULARY = {word: getattr(Numpy(), word) for word in vars(Numpy) if not word.startswith("_")}


def _run(node: Node, inputs: list[Array | None], known: Meaning | None) -> Any:
    meaning = known or MEANING.get(node.op) or VOCABULARY.get(node.op)
    if meaning is None:
        raise UnsupportedError(f"node {node.name} ({node.op}) has no meaning in NumPy")
    if node.op == "linear" and len(inputs) == 2:
        inputs = [*inputs, None]
    try:
        return meaning(*inputs, **node.attributes)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
        raise FusebertError(f"node {node.name} ({node.op}) cannot be computed: {error}") from error
