"""The vocabulary: what each word means in NumPy, and the same words as a recorder that builds a Graph.

`encoder.layer` is written in these words once. Run with `Numpy` it is the reference result; with `Record`, a Graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import numpy as np

from fusebert.graph import Array, Graph, Node, Weight

_erf = np.vectorize(erf, otypes=[np.float64])

ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "identity": lambda x: x,
    "gelu_erf": lambda x: 0.5 * x * (1 + _erf(x / np.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x / (1 + np.exp(-1.702 * x)),
    "relu": lambda x: np.maximum(x, 0),
    "tanh": np.tanh,
}


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

    def activation(self, x: Array, name: str) -> Array:
        """One of ACTIVATIONS."""
        return ACTIVATIONS[name](x)

    def layer_norm(self, x: Array, gain: Array, bias: Array, epsilon: float) -> Array:
        """Along the last axis, with the biased variance."""
        centered = x - x.mean(-1, keepdims=True)
        y: Array = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + epsilon) * gain + bias
        return y


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

    def mask(self, scores: str, mask: str | None) -> str:
        return self._say("mask", (scores, mask)) if mask else scores

    def softmax(self, x: str) -> str:
        return self._say("softmax", (x,))

    def context(self, attention: str, value: str) -> str:
        return self._say("context", (attention, value))

    def add(self, a: str, b: str) -> str:
        return self._say("add", (a, b))

    def activation(self, x: str, name: str) -> str:
        return self._say("activation", (x,), name=name)

    def layer_norm(self, x: str, gain: Array, bias: Array, epsilon: float) -> str:
        return self._say("layer_norm", (x, gain, bias), epsilon=epsilon)

    def graph(self, inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Graph:
        """What was said so far."""
        return Graph(tuple(self._nodes), inputs, outputs, {n: Weight.of(a) for n, a in self._weights.items()})


def evaluate(graph: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a Graph of vocabulary words in NumPy; returns its outputs by name."""
    op = Numpy()
    values: dict[str, Array] = {**{name: weight.read() for name, weight in graph.weights.items()}, **feeds}
    for node in graph.nodes:
        inputs = [values[name] for name in node.inputs]
        if node.word == "linear" and len(inputs) == 2:
            inputs.append(None)  # type: ignore[arg-type]
        values[node.outputs[0]] = getattr(op, node.word)(*inputs, **node.attributes)
    return {name: values[name] for name in graph.outputs}
