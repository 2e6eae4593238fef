"""The hand that rules write with: says primitive words about the node at hand and keeps what was emitted, in order.

A rule is a function `rule(e, *inputs, **attributes)` that gives the tensors which the node's outputs are."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fusebert.match.inline import output_number
from fusebert.ops.graph import Array, Graph, Node, Weight
from fusebert.ops.primitives import MEANING

Rule = Callable[..., str | tuple[str, ...]]

TRUTHS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and", "or", "xor", "invert"}
TRUTHS |= {"isnan", "isinf"}
_WHOLES = {"shape", "size", "argmax", "argmin", "nonzero"}
_TYPED_BY = {"where": 1, "fill": 1, "dequantize": 1, "key_mask": 1, "one_hot": 2}  # by which input; else the first
_PASSTHROUGH = {"identity", "cast", "reshape", "squeeze", "unsqueeze", "shape", "transpose"}
_UNTYPED = {"quantize", "dynamic_quantize", "matmul_integer", "mask_index"}


class NotCoveredError(Exception):
    """Raised by a rule for a form of the operation that it does not cover: the node then keeps its own word."""


class Emitter:
    """Primitive words as methods: `e.add(a, b)` says a node and gives the name of its result."""

    def __init__(self, flat: Graph, opsets: Mapping[str, int], numbered_outputs: bool) -> None:
        self._flat, self._opsets, self._numbered = flat, opsets, numbered_outputs
        self._taken = {*flat.inputs, *flat.weights, *(t for node in flat.nodes for t in (*node.outputs, *node.inputs))}
        self._made: dict[str, Node] = {}
        self._emitted: list[Node] = []
        self.node = Node("", (), ())
        self.nodes: list[Node] = []
        self.weights: dict[str, Weight] = dict(flat.weights)

    @property
    def opset(self) -> int:
        """The version of the ONNX operations that the node at hand is one of."""
        return self._opsets.get(self.node.function, self._opsets.get("", 0))

    def __getattr__(self, word: str) -> Callable[..., str]:
        if word not in MEANING:
            raise AttributeError(word)
        return partial(self.emit, word)

    def emit(self, word: str, /, *inputs: str, **attributes: Any) -> str:
        """Says a word with one result; gives the result's name."""
        return self.emit_many(word, 1, *inputs, **attributes)[0]

    def emit_many(self, word: str, results: int, /, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Says a word with several results; gives their names."""
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        if not inputs:
            raise NotCoveredError(f"{word} of nothing")
        outputs = tuple(self._fresh() for _ in range(results))
        self._emitted.append(node := Node(word, inputs, outputs, attributes, self.node.name, self.node.function))
        self._made |= dict.fromkeys(outputs, node)
        return outputs

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """The name of a new small weight."""
        return self.keep(Weight.of(np.asarray(value, dtype)))

    def keep(self, weight: Weight) -> str:
        """The name of a weight that was an attribute."""
        name = self._fresh()
        self.weights[name] = weight
        return name

    def numbers(self, tensor: str) -> tuple[int, ...]:
        """The whole numbers in a small constant."""
        return tuple(int(n) for n in np.ravel(self._constant(tensor)))

    def _constant(self, tensor: str, deepest: int = 8) -> Array:
        """A small constant, also where words that change little were emitted about it."""
        weight, node = self.weights.get(tensor), self._made.get(tensor)
        if weight is not None and math.prod(weight.shape) <= 64:
            return weight.read()
        if weight is not None or node is None or node.op not in _PASSTHROUGH or not deepest:
            raise NotCoveredError(f"{tensor} is not a small constant")
        inputs = [self._constant(name, deepest - 1) for name in node.inputs]
        return np.asarray(MEANING[node.op](*inputs, **node.attributes))

    def sizes(self, tensor: str) -> tuple[int | str | None, ...] | None:
        """What the file says about a tensor's shape."""
        if tensor in self.weights:
            return self.weights[tensor].shape
        kind = self._flat.types.get(tensor)
        return kind.shape if kind else None

    def is_last(self, axis: int, tensor: str) -> bool:
        """Whether an axis is certainly a tensor's last one."""
        shape = self.sizes(tensor)
        return axis == -1 or (shape is not None and axis == len(shape) - 1)

    def dtype(self, tensor: str) -> str:
        """A tensor's type as far as the file or the words that made it tell; "" if they do not."""
        for _ in range(64):
            if tensor in self.weights:
                return self.weights[tensor].dtype
            if (kind := self._flat.types.get(tensor)) and kind.dtype:
                return kind.dtype
            node = self._made.get(tensor)
            if node is None or not node.inputs or node.op in _UNTYPED:
                return ""
            if node.op in TRUTHS:
                return "bool"
            if node.op == "cast" or node.op in _WHOLES:
                return str(node.attributes.get("to", "int64"))
            tensor = node.inputs[_TYPED_BY.get(node.op, 0)]
        return ""

    def number(self, value: float, beside: str) -> str:
        """A new constant of the type of the tensor that it is combined with; fractions stay fractions."""
        dtype = self.dtype(beside)
        return self.constant(value, dtype if "float" in dtype or (dtype and not value % 1) else "float32")

    def translate(self, node: Node, rule: Rule | None) -> None:
        """Says what a rule makes of a node; a node without one, or of a form it does not cover, keeps its own word."""
        self.node, self._emitted = node, []
        try:
            results = rule(self, *node.inputs, **node.attributes) if rule else ()
        except (NotCoveredError, AttributeError, IndexError, KeyError, TypeError, ValueError):
            results, self._emitted = (), []
        self._bind((results,) if isinstance(results, str) else results)
        self.nodes += self._emitted
        self._made |= {tensor: emitted for emitted in self._emitted for tensor in emitted.outputs if tensor}

    def _bind(self, results: tuple[str, ...]) -> None:
        """Gives the results the names of the node's outputs; outputs that no result is for keep the node alive."""
        fresh = {tensor for emitted in self._emitted for tensor in emitted.outputs}
        names: dict[str, str] = {}
        copies, left = [], []
        for position, output in enumerate(self.node.outputs):
            index = output_number(output) if self._numbered else position
            result = results[index] if index < len(results) else ""
            left.append("" if result else output)
            if not result or not output:
                continue
            if result in fresh and result not in names:
                names[result] = output
            else:
                copies.append((result, output))
        self._emitted = [_renamed(emitted, names) for emitted in self._emitted]
        for result, output in copies:
            source = names.get(result, result)
            self._emitted.append(Node("identity", (source,), (output,), {}, self.node.name, self.node.function))
        if any(left):
            self._emitted.append(replace(self.node, outputs=tuple(left)))

    def _fresh(self) -> str:
        stem = next(filter(None, self.node.outputs), self.node.name)
        number = len(self._emitted) + len(self.weights) - len(self._flat.weights)
        while (name := f"{stem}~{number}") in self._taken:
            number += 1
        self._taken.add(name)
        return name


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(names.get(t, t) for t in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(t, t) for t in node.outputs))
