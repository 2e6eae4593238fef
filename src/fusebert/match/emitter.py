"""Emitter: translates one node at a time. A rule emits primitive operations about the node, and the emitter keeps them
in order and names them.

A rule is a function `rule(e, *inputs, **attributes)` that gives the tensors which the node's outputs are. Its signature
says what it takes: a node with other inputs, or with attributes of other types, is refused before the rule runs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np

from fusebert.match.findings import Refused, RuleRow, label
from fusebert.match.inline import output_number
from fusebert.match.lift.shapes import BINARY, compute
from fusebert.ops.graph import Array, Graph, Node, TensorType, Weight
from fusebert.ops.primitives import MEANING

Rule = Callable[..., str | tuple[str, ...]]
MaybeOmitted = str  # an input before others that must be given, though it may be omitted
Ints = tuple[int, ...]
Floats = tuple[float, ...]

TRUTHS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and", "or", "xor", "invert"}
TRUTHS |= {"isnan", "isinf"}
_WHOLES = {"shape", "size", "argmax", "argmin", "nonzero"}
_TYPED_BY = {"where": 1, "fill": 1, "dequantize": 1, "key_mask": 1, "one_hot": 2}  # by which input; else the first
_PASSTHROUGH = {"identity", "cast", "reshape", "squeeze", "unsqueeze", "shape", "transpose"}
_UNTYPED = {"quantize", "dynamic_quantize", "matmul_integer", "mask_index"}
_NUMERIC = {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
_NUMERIC |= {"bool", "float16", "bfloat16", "float32", "float64"}
_KINDS: Mapping[str, Callable[[Any], bool]] = {  # by annotation, or by the type of the default
    "int": lambda value: isinstance(value, int),
    "bool": lambda value: isinstance(value, int),
    "float": lambda value: isinstance(value, (int, float)),
    "str": lambda value: isinstance(value, str),
    "Ints": lambda value: isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value),
    "Floats": lambda value: isinstance(value, (tuple, list)) and all(isinstance(n, (int, float)) for n in value),
}
_MOST_RESULTS = 1 << 16  # of one operation


def dtype_of(
    tensor: str, maker: Mapping[str, Node], weights: Mapping[str, Weight], types: Mapping[str, TensorType]
) -> str:
    """The type of a tensor of primitive operations, as far as the file or its makers tell; "" if they do not."""
    for _ in range(64):
        if tensor in weights:
            return weights[tensor].dtype
        if (kind := types.get(tensor)) and kind.dtype:
            return kind.dtype
        node = maker.get(tensor)
        if node is None or node.op in _UNTYPED:
            return ""
        if node.op in TRUTHS:
            return "bool"
        if node.op == "cast" or node.op in _WHOLES:
            return str(node.attributes.get("to", "int64"))
        if (place := _TYPED_BY.get(node.op, 0)) >= len(node.inputs):
            return ""
        tensor = node.inputs[place]
    return ""


class Emitter:
    """Primitive operations as methods: `e.add(a, b)` emits a node and gives the name of its result."""

    def __init__(self, flat: Graph, opsets: Mapping[str, int], numbered_outputs: bool) -> None:
        self._flat, self._opsets, self._numbered = flat, opsets, numbered_outputs
        self._taken = {*flat.inputs, *flat.weights, *(t for node in flat.nodes for t in (*node.outputs, *node.inputs))}
        self._made: dict[str, Node] = {}
        self._emitted: list[Node] = []
        self._kept: list[str] = []  # weights that the rule at work has made
        self.node = Node("", (), ())
        self.nodes: list[Node] = []
        self.rows: list[RuleRow] = []
        self.weights: dict[str, Weight] = dict(flat.weights)

    @property
    def opset(self) -> int:
        """The version of the ONNX operations that the current node is one of."""
        return self._opsets.get(self.node.function, self._opsets.get("", 0))

    def __getattr__(self, op: str) -> Callable[..., str]:
        if op not in MEANING:
            raise AttributeError(f"there is no primitive operation {op!r}")
        return partial(self.emit, op)

    def emit(self, op: str, /, *inputs: str, **attributes: Any) -> str:
        """Emits an operation with one result; gives the result's name."""
        return self.emit_many(op, 1, *inputs, **attributes)[0]

    def emit_many(self, op: str, results: int, /, *inputs: str, **attributes: Any) -> tuple[str, ...]:
        """Emits an operation with several results; gives their names."""
        if op not in MEANING:
            raise AttributeError(f"there is no primitive operation {op!r}")
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        if not inputs or (op in BINARY and (len(inputs) != 2 or not inputs[0])):
            raise Refused(f"{op} does not have {2 if op in BINARY else 'any'} inputs")
        if not 0 <= results <= _MOST_RESULTS:
            raise Refused(f"{op} has {results} results")
        outputs = tuple(self._fresh() for _ in range(results))
        self._emitted.append(node := Node(op, inputs, outputs, attributes, self.node.name, self.node.function))
        self._made |= dict.fromkeys(outputs, node)
        return outputs

    def constant(self, value: Any, dtype: str = "int64") -> str:
        """The name of a new small weight."""
        if dtype not in _NUMERIC:
            raise Refused(f"constants of type {dtype or 'unknown'} are not supported")
        return self.keep(Weight.of(np.asarray(value, dtype)))

    def keep(self, weight: Weight) -> str:
        """The name of a weight that was an attribute."""
        name = self._fresh()
        self.weights[name] = weight
        self._kept.append(name)
        return name

    def numbers(self, tensor: str) -> Ints:
        """The integers in a small constant."""
        array = self._constant(tensor)
        if array.dtype.kind not in "iub":
            raise Refused(f"{tensor} is not a constant of integers")
        return tuple(int(n) for n in np.ravel(array))

    def integer(self, tensor: str) -> int:
        """The integer that a constant begins with."""
        numbers = self.numbers(tensor)
        if not numbers:
            raise Refused(f"{tensor} is empty")
        return numbers[0]

    def _constant(self, tensor: str, deepest: int = 8) -> Array:
        """A small constant, also behind operations that only pass its numbers through."""
        weight, node = self.weights.get(tensor), self._made.get(tensor)
        if weight is not None and math.prod(weight.shape) <= 64:
            return weight.read()
        if weight is not None or node is None or node.op not in _PASSTHROUGH or not deepest:
            raise Refused(f"{tensor} is not a small constant")
        made = compute(node, [self._constant(name, deepest - 1) for name in node.inputs])
        if made is None:
            raise Refused(f"{tensor} cannot be computed")
        return made[0]

    def sizes(self, tensor: str) -> tuple[int | str | None, ...] | None:
        """A tensor's shape as the file declares it."""
        if tensor in self.weights:
            return self.weights[tensor].shape
        kind = self._flat.types.get(tensor)
        return kind.shape if kind else None

    def unchanged(self, tensor: str) -> str:
        """The tensor whose numbers another one has, perhaps of another type."""
        while (made := self._made.get(tensor)) is not None and made.op in ("identity", "cast"):
            tensor = made.inputs[0]
        return tensor

    def is_last(self, axis: int, tensor: str) -> bool:
        """Whether an axis is certainly a tensor's last one."""
        shape = self.sizes(tensor)
        return axis == -1 or (shape is not None and axis == len(shape) - 1)

    def dtype(self, tensor: str) -> str:
        """A tensor's type as far as the file or the operations that made it tell; "" if they do not."""
        return dtype_of(tensor, self._made, self.weights, self._flat.types)

    def number(self, value: float, beside: str) -> str:
        """A new constant of the type of the tensor that it is combined with; fractions stay fractions."""
        dtype = self.dtype(beside)
        return self.constant(value, dtype if "float" in dtype or (dtype and not value % 1) else "float32")

    def translate(self, node: Node, rule: Rule | None) -> None:
        """Emits what a rule makes of a node; a node without a rule, or which its rule refuses, stays as it is."""
        self.node, self._emitted, self._kept = node, [], []
        results: str | tuple[str, ...] = ()
        if rule is not None:
            try:
                _signature(rule).check(node)
                results = rule(self, *node.inputs, **node.attributes)
            except Refused as refused:
                self._forget()
                self._record("", refused.reason)
        elif node.op not in MEANING:
            self._record("", "unsupported operator")
        self._bind((results,) if isinstance(results, str) else results)
        if results:
            self._record(" ".join(emitted.op for emitted in self._emitted))
        self.nodes += self._emitted
        self._made |= {tensor: emitted for emitted in self._emitted for tensor in emitted.outputs if tensor}

    def _forget(self) -> None:
        """Undoes what a rule did before it refused."""
        for tensor in (t for node in self._emitted for t in node.outputs):
            del self._made[tensor]
        for weight in self._kept:
            del self.weights[weight]
        self._emitted, self._kept = [], []

    def _record(self, result: str, reason: str = "") -> None:
        self.rows.append(RuleRow("translate", self.node.op, (label(self.node),), result, reason))

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


@dataclass(frozen=True)
class _Signature:
    """What a rule takes: which of its inputs must be given, how many it has, and a check by attribute; `needed` are the
    attributes without a default."""

    inputs: tuple[bool, ...]
    most: float
    checks: Mapping[str, Callable[[Any], bool]]
    needed: tuple[str, ...]
    others: bool  # whether it takes attributes that it does not name

    def check(self, node: Node) -> None:
        """Refuses a node with other inputs or attributes."""
        missing = [i for i, needed in enumerate(self.inputs) if needed and not "".join(node.inputs[i : i + 1])]
        if missing or len(node.inputs) > self.most:
            raise Refused(f"{node.op} has unexpected inputs: {', '.join(node.inputs) or 'none'}")
        if absent := [name for name in self.needed if name not in node.attributes]:
            raise Refused(f"{node.op} has no attribute {absent[0]}")
        for name, value in node.attributes.items():
            fits = self.checks.get(name, _anything if self.others else _nothing)
            if not fits(value):
                raise Refused(f"attribute {name} of {node.op} has an unexpected type or is not supported")


def _anything(_: Any) -> bool:
    return True


def _nothing(_: Any) -> bool:
    return False


@cache
def _signature(rule: Rule) -> _Signature:
    """A rule's parameters: inputs come before "/", or are those without a default or with an empty one; all others are
    attributes, of the type of their annotation or default."""
    kinds = inspect.Parameter
    parameters = list(inspect.signature(rule).parameters.values())
    before = [p for p in parameters if p.kind is kinds.POSITIONAL_ONLY]
    if not before:
        before = [p for p in parameters if p.kind is kinds.POSITIONAL_OR_KEYWORD and p.default in (kinds.empty, "")]
    named = [p for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY) and p not in before]
    several = any(p.kind is kinds.VAR_POSITIONAL for p in parameters)
    inputs = tuple(p.default is kinds.empty and p.annotation != "MaybeOmitted" for p in before[1:])
    checks: dict[str, Callable[[Any], bool]] = {}
    checks |= {p.name: _nothing for p in before if p.kind is kinds.POSITIONAL_OR_KEYWORD}
    for p in named:
        told = str(p.annotation).removesuffix(" | None")
        checks[p.name] = _KINDS.get(told) or _KINDS.get(type(p.default).__name__, _anything)
    return _Signature(
        inputs=inputs,
        most=math.inf if several else len(inputs),
        checks=checks,
        needed=tuple(p.name for p in named if p.default is kinds.empty),
        others=any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    inputs = tuple(names.get(t, t) for t in node.inputs)
    return replace(node, inputs=inputs, outputs=tuple(names.get(t, t) for t in node.outputs))
