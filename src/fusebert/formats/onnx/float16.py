"""An ONNX graph in floats -> the same in halves: weights, and every operation that loses little by it. Inputs and
outputs keep their types. What is sensitive (softmax, means, roots, fused encoders) or takes no halves stays in floats,
with casts around."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.formats.onnx.types import NUMBERS
from fusebert.ops.graph import Array

_FLOAT, _UINT8, _INT32, _INT64, _BOOL, _HALF = (
    NUMBERS[name] for name in ("float32", "uint8", "int32", "int64", "bool", "float16")
)
_LARGEST = float(np.finfo(np.float16).max)
_SMALLEST = float(np.finfo(np.float16).smallest_subnormal)
_IN_HALVES = {
    "MatMul", "Gemm", "Einsum", "Add", "Sub", "Mul", "Div", "Neg", "Abs", "Relu", "Tanh", "Erf", "Sigmoid", "Gelu",
    "LayerNormalization", "Where", "Identity", "Dropout", "Gather", "GatherElements", "GatherND", "Slice", "Split",
    "Concat", "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Expand", "Tile", "Pad",
    *(f"com.microsoft.{word}" for word in (
        "Attention", "MultiHeadAttention", "SkipLayerNormalization", "EmbedLayerNormalization", "BiasGelu", "FastGelu",
        "Gelu", "QuickGelu", "MatMulNBits", "FusedMatMul",
    )),
}  # fmt: skip
_TAKE_EITHER = ("Cast", "Shape", "Size")
_FUSED = "fusebert.Encoder"  # computes in its own precision; its weights may be halves
_MADE = {  # the element types of outputs; a function of the inputs' types where they follow them
    **dict.fromkeys(("Shape", "Size", "NonZero", "ArgMax", "ArgMin"), (_INT64,)),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor", "Not"), (_BOOL,)),
    **dict.fromkeys(("IsNaN", "IsInf"), (_BOOL,)),
    **dict.fromkeys(("DequantizeLinear", "com.microsoft.DynamicQuantizeMatMul", "com.microsoft.QAttention"), (_FLOAT,)),
    **dict.fromkeys(("com.microsoft.MatMulIntegerToFloat", _FUSED), (_FLOAT,)),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), (_INT32,)),
    "DynamicQuantizeLinear": (_UINT8, _FLOAT, _UINT8),
}
_FOLLOWS: dict[str, Callable[[list[int]], tuple[int, ...]]] = {
    "Where": lambda given: (given[1],),
    "CastLike": lambda given: (given[1],),
    "OneHot": lambda given: (given[2],),
    "QuantizeLinear": lambda given: ((*given, _UINT8)[2],),
    "QLinearMatMul": lambda given: (given[7],),
    "TopK": lambda given: (given[0], _INT64),
    "Dropout": lambda given: (given[0], _BOOL),
    "com.microsoft.EmbedLayerNormalization": lambda given: (given[2], _INT32, given[2]),
}


def halve(model: Any, data: Callable[[Any], Array], put: Callable[[Any, Array], None]) -> int:
    """Changes a model in place; returns how many numbers were too large for a half and were clamped. `data` gives the
    float32 numbers of a tensor, `put` replaces them."""
    halving = _Halving(model, data, put)
    halving.settle_types()
    halving.store()
    halving.connect()
    return halving.clamped


def _word(node: Any) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"


class _Halving:
    def __init__(self, model: Any, data: Callable[[Any], Array], put: Callable[[Any, Array], None]) -> None:
        self._graph, self._data, self._put = model.graph, data, put
        self._functions = {f"{function.domain}.{function.name}" for function in model.functions}
        self._stored = {tensor.name: tensor for tensor in self._graph.initializer}
        self._types = {value.name: value.type.tensor_type.elem_type for value in self._graph.input}
        self._types |= {name: tensor.data_type for name, tensor in self._stored.items()}
        self._outputs = {value.name for value in self._graph.output}
        self._kept: dict[str, int] = {}  # the type that a float tensor is kept in, which is a float or a half
        self._names: dict[tuple[str, int], str] = {}  # of the same numbers in the other type
        self.clamped = 0

    def settle_types(self) -> None:
        """Follows the element types through the graph, and decides which floats become halves."""
        wanted: set[str] = set()  # stored numbers that somebody reads in halves
        for node in self._graph.node:
            word = _word(node)
            if word in self._functions or any(a.HasField("g") or a.graphs for a in node.attribute):
                raise UnsupportedError(
                    f"node {node.name or word} has a graph of its own, which float16 does not change"
                )
            if word == "Constant":
                self._stored |= {name: a.t for name in node.output for a in node.attribute if a.name == "value"}
            made = self._made(node, word)
            self._types |= zip(node.output, made, strict=False)
            for name, kind in zip(node.output, made, strict=False):
                if kind == _FLOAT and self._halves_come_from(node, word):
                    self._kept[name] = _HALF
            wanted |= {name for i, name in enumerate(node.input) if self._wants(word, i, name) == _HALF}
        self._kept |= dict.fromkeys((wanted & self._stored.keys()) - self._outputs, _HALF)

    def _made(self, node: Any, word: str) -> tuple[int, ...]:
        given = [self._types.get(name, 0) for name in node.input]
        attributes = {a.name: a for a in node.attribute}
        if word == "Cast":
            return (int(attributes["to"].i),)
        if word in ("Constant", "ConstantOfShape"):
            usual = _FLOAT if word == "ConstantOfShape" or "value_float" in attributes else _INT64
            return (attributes["value"].t.data_type if "value" in attributes else usual,)
        if word in _MADE:
            return _MADE[word] * (len(node.output) if word == _FUSED else 1)
        if word in _FOLLOWS:
            return _FOLLOWS[word](given)
        return (given[0] if given else 0,) * len(node.output)

    def _halves_come_from(self, node: Any, word: str) -> bool:
        """Whether a node's floats become halves. Whole numbers that are cast stay floats, which hold larger ones."""
        if word == "Cast":
            return self._types.get(node.input[0]) == _FLOAT
        return word in _IN_HALVES

    def _wants(self, word: str, place: int, name: str) -> int:
        """The type that a node reads a float tensor in; 0 where that does not matter."""
        if self._types.get(name) != _FLOAT or word in _TAKE_EITHER:
            return 0
        if word == _FUSED and place > 1:
            return _HALF if name in self._stored and len(self._stored[name].dims) == 2 else 0
        return _HALF if word in _IN_HALVES else _FLOAT

    def store(self) -> None:
        """Rounds the numbers that are kept as halves, and declares what became one."""
        for name in self._kept.keys() & self._stored.keys():
            numbers = self._data(self._stored[name])
            large = np.isfinite(numbers) & (np.abs(numbers) > _LARGEST)
            self.clamped += int(large.sum())
            numbers = np.where(large, np.sign(numbers) * _LARGEST, numbers)
            if numbers.size == 1 and 0 < abs(numbers.item()) < _SMALLEST:  # an epsilon, which is there not to be 0
                numbers = np.full_like(numbers, np.sign(numbers) * _SMALLEST)
            self._put(self._stored[name], numbers.astype(np.float16))
        for value in (*self._graph.input, *self._graph.value_info):
            if value.name in self._kept:
                value.type.tensor_type.elem_type = _HALF

    def connect(self) -> None:
        """Lets every node read the type it wants."""
        nodes: list[Any] = []
        for node in self._graph.node:
            word = _word(node)
            for i, name in enumerate(node.input):
                wanted = self._wants(word, i, name)
                node.input[i] = self._as(nodes, node, name, wanted) if wanted else self._here(name)
            if word == "Cast" and self._kept.get(node.output[0]) == _HALF:
                next(a for a in node.attribute if a.name == "to").i = _HALF
            for i, name in enumerate(node.output):
                node.output[i] = self._here(name)
            nodes.append(node)
            for name in self._outputs & self._kept.keys():
                if self._here(name) in node.output:
                    nodes.append(_cast(node, self._here(name), name, _FLOAT))
        kept = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del self._graph.node[:]
        self._graph.node.extend(kept)

    def _here(self, name: str) -> str:
        """What a tensor is called inside the graph: an output's own name is for the floats it gives."""
        return f"{name}.half" if name in self._outputs and name in self._kept else name

    def _as(self, nodes: list[Any], like: Any, name: str, wanted: int) -> str:
        if self._kept.get(name, _FLOAT) == wanted:
            return self._here(name)
        if (name, wanted) not in self._names:
            made = self._names[name, wanted] = f"{name}.as_{'half' if wanted == _HALF else 'float'}"
            nodes.append(_cast(like, self._here(name), made, wanted))
        return self._names[name, wanted]


def _cast(like: Any, given: str, made: str, kind: int) -> Any:
    node = type(like)(op_type="Cast", name=f"{made}.Cast", input=[given], output=[made])
    node.attribute.add(name="to", type=2, i=kind)
    return node
