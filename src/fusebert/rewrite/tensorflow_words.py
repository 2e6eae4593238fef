"""The vocabulary as TensorFlow: `values.forms` run with these words is a graph of TensorFlow's own operations, in which
a Network's weights are constants. Its encoder is one fused op, or layers of BERT in TensorFlow's own operations; those
of other forms are refused by name."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.formats.tensorflow.bert_layers import node_of
from fusebert.formats.tensorflow.bert_op import FORM
from fusebert.formats.tensorflow.edit import NewNode
from fusebert.formats.tensorflow.types import Type
from fusebert.ops.graph import Array
from fusebert.rewrite.spelling import Spelling
from fusebert.values.operator import Operator
from fusebert.values.target import FusedTensorFlow

_LOWEST = float(np.finfo(np.float32).min)
_FLOAT, _WHOLE = Type("float32"), Type("int32")
_OTHERS = {
    "by_distance": "disentangled positions", "distance_bias": "relative positions", "repeat_heads": "shared key heads",
    "rotate": "rotary positions", "window": "windows of attention",
}  # fmt: skip
_ATTRIBUTES: dict[str, dict[str, Any]] = {  # of operations that have more than a type T, which is float
    "BatchMatMulV2": {"T": _FLOAT, "adj_x": False, "adj_y": False},
    "Cast": {"DstT": _FLOAT, "SrcT": _WHOLE, "Truncate": False},
    "ConcatV2": {"N": 2, "T": _WHOLE, "Tidx": _WHOLE},
    "Cumsum": {"T": _WHOLE, "Tidx": _WHOLE, "exclusive": False, "reverse": False},
    "ExpandDims": {"T": _FLOAT, "Tdim": _WHOLE},
    "GatherV2": {"Taxis": _WHOLE, "Tindices": _WHOLE, "Tparams": _FLOAT, "batch_dims": 0},
    "MatMul": {"T": _FLOAT, "transpose_a": False, "transpose_b": False},
    "Mean": {"T": _FLOAT, "Tidx": _WHOLE, "keep_dims": True},
    "NotEqual": {"T": _WHOLE, "incompatible_shape_error": True},
    "Range": {"Tidx": _WHOLE},
    "Reshape": {"T": _FLOAT, "Tshape": _WHOLE},
    "Shape": {"T": _FLOAT, "out_type": _WHOLE},
    "Sum": {"T": _FLOAT, "Tidx": _WHOLE, "keep_dims": False},
    "Transpose": {"T": _FLOAT, "Tperm": _WHOLE},
}


class TensorFlowWords(Spelling):
    """Nodes as words are said. Rows are `[batch, tokens, width]`; heads are an axis before tokens. `ids` is an input
    `[batch, tokens]`."""

    def __init__(self, ids: str, target: FusedTensorFlow | None = None) -> None:
        super().__init__()
        self.nodes: list[NewNode] = []
        self._ids, self._target = ids, target or FusedTensorFlow()
        self._alive: list[Array] = []  # whose places in memory are in use as keys

    def say(self, operation: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Adds a node; returns what it makes."""
        made = name or f"{operation}_{len(self.nodes)}"
        given = {**_ATTRIBUTES.get(operation, {"T": _FLOAT}), **attributes}
        self.nodes.append(NewNode(operation, made, inputs, given))
        return made

    def constant(self, array: Any) -> str:
        """Adds a constant; whole numbers are int32."""
        given = np.asarray(array)
        kind = np.int32 if given.dtype.kind == "i" else np.float32
        name = f"weight_{len(self.nodes)}"
        stored = np.asarray(given, kind, order="C")
        self.nodes.append(NewNode("Const", name, (), {"dtype": Type(stored.dtype.name), "value": stored}))
        return name

    def named(self, tensor: str, name: str) -> None:
        """Calls a tensor by the name of an output."""
        self.say("Identity", tensor, name=name)

    def lookup(self, table: Array, ids: str) -> str:
        return self.say("GatherV2", self.weight(table), ids, self._axis(0))

    def pick(self, x: str, place: int, axis: int) -> str:
        """One place of an axis, which goes away."""
        return self.say("GatherV2", x, self.constant(place), self._axis(axis))

    def places(self) -> str:
        """0, 1, 2 and so on."""

        def make() -> str:
            sizes = self.say("Shape", self._ids, T=_WHOLE)
            length = self.say("GatherV2", sizes, self._axis(1), self._axis(0), Tparams=_WHOLE)
            return self.say("Range", self._axis(0), length, self._axis(1))

        return self.once("places", make)

    def counted(self, ids: str, padding: int) -> str:
        """The positions of tokens that are counted over all but padding."""
        empty = self.constant(padding)
        real = self.say("Cast", self.say("NotEqual", ids, empty), SrcT=Type("bool"), DstT=_WHOLE)
        places = self.say("Mul", self.say("Cumsum", real, self._axis(1)), real, T=_WHOLE)
        return self.say("AddV2", places, empty, T=_WHOLE)

    def hiding(self, mask: str) -> str:
        """What is added to scores, of a 0/1 input `[batch, tokens]`."""
        wide = self.say("ExpandDims", self.say("ExpandDims", self.say("Cast", mask), self._axis(1)), self._axis(1))
        return self.say("Mul", self.say("Sub", self.number(1), wide), self.number(_LOWEST))

    def visible_mean(self, rows: str, mask: str) -> str:
        """The mean of the rows that a 0/1 input shows."""
        seen = self.say("ExpandDims", self.say("Cast", mask), self._axis(2))
        total = self.say("Sum", self.multiply(rows, seen), self._axis(1))
        return self.say("RealDiv", total, self.say("Sum", seen, self._axis(1)))

    def encoder(self, rows: str, mask: str, operator: Operator) -> str:
        """The fused op, which reads a 0/1 input."""
        op, arrays, own = node_of(operator, self._target.compact)
        attributes = {
            **own, "MaskT": _WHOLE, "MaskValue": _LOWEST, "AdditiveMask": False, "Padding": operator.padding,
            "NumThreads": self._target.threads or 0, **({"NumHiddenStates": 0} if op == FORM else {}),
        }  # fmt: skip
        self.nodes.append(NewNode(op, "fused", (rows, mask, *map(self._stored_once, arrays)), attributes))
        return "fused"

    def _stored_once(self, array: Array) -> str:
        """A constant of floats or bytes; one that is used again is stored once."""
        kept = array if array.dtype == np.int8 else np.asarray(array, np.float32)
        place = kept.__array_interface__
        return self.once(("stored", place["data"][0], kept.shape, kept.strides), lambda: self._typed(kept))

    def _typed(self, array: Array) -> str:
        name = f"weight_{len(self.nodes)}"
        stored = np.asarray(array, order="C")
        self._alive.append(array)
        self.nodes.append(NewNode("Const", name, (), {"dtype": Type(stored.dtype.name), "value": stored}))
        return name

    def linear(self, x: str, weight: Array, bias: Array | None) -> str:
        """A product over the last axis, of any rank."""
        sizes = self.say("Shape", x)
        lead = self.say("GatherV2", sizes, self._lead(sizes), self._axis(0), Tparams=_WHOLE)
        flat = self.say("Reshape", x, self.constant([-1, weight.shape[1]]))
        product = self.say("MatMul", flat, self.weight(weight, transposed=True))
        if bias is not None:
            product = self.say("AddV2", product, self.weight(bias))
        shape = self.say("ConcatV2", lead, self.constant([weight.shape[0]]), self._axis(0))
        return self.say("Reshape", product, shape)

    def _lead(self, sizes: str) -> str:
        """The places of all but the last of some sizes."""
        rank = self.say("GatherV2", self.say("Shape", sizes, T=_WHOLE), self._axis(0), self._axis(0), Tparams=_WHOLE)
        return self.say("Range", self._axis(0), self.say("Sub", rank, self._axis(1), T=_WHOLE), self._axis(1))

    def _axis(self, number: int) -> str:
        return self.once(("axis", number), lambda: self.constant(number))

    def _heads(self, x: str, sizes: list[int]) -> str:
        """Rows in another shape, of which all but batch and tokens are given."""
        known = self.say("Shape", self._ids, T=_WHOLE)
        return self.say("Reshape", x, self.say("ConcatV2", known, self.constant(sizes), self._axis(0)))

    def split_heads(self, x: str, heads: int) -> str:
        return self.say("Transpose", self._heads(x, [heads, -1]), self.constant([0, 2, 1, 3]))

    def merge_heads(self, x: str) -> str:
        return self._heads(self.say("Transpose", x, self.constant([0, 2, 1, 3])), [-1])

    def scores(self, query: str, key: str, scale: float) -> str:
        return self.say("Mul", self.say("BatchMatMulV2", query, key, adj_y=True), self.number(scale))

    def mask(self, scores: str, mask: str) -> str:
        return self.say("AddV2", scores, mask)

    def softmax(self, x: str) -> str:
        return self.say("Softmax", x)

    def context(self, attention: str, value: str) -> str:
        return self.say("BatchMatMulV2", attention, value)

    def add(self, a: str, b: str) -> str:
        return self.say("AddV2", a, b)

    def multiply(self, a: str, b: str) -> str:
        return self.say("Mul", a, b)

    def activation(self, x: str, name: str) -> str:
        if name in ("relu", "tanh"):
            return self.say(name.capitalize(), x)
        if name == "silu":
            return self.say("Mul", x, self.say("Sigmoid", x))
        if name == "gelu_quick":
            return self.say("Mul", x, self.say("Sigmoid", self.say("Mul", x, self.number(1.702))))
        if name == "gelu_erf":
            bent = self.say("Erf", self.say("RealDiv", x, self.number(2**0.5)))
        elif name == "gelu_tanh":
            cube = self.say("Mul", self.say("Mul", self.say("Mul", x, x), x), self.number(0.044715))
            bent = self.say("Tanh", self.say("Mul", self.say("AddV2", x, cube), self.number((2 / np.pi) ** 0.5)))
        else:
            return x  # identity
        return self.say("Mul", self.say("Mul", x, self.number(0.5)), self.say("AddV2", bent, self.number(1)))

    def layer_norm(self, x: str, gain: Array | None, bias: Array | None, epsilon: float) -> str:
        mean = self.say("Mean", x, self._axis(-1))
        variance = self.say("Mean", self.say("SquaredDifference", x, mean), self._axis(-1))
        scale = self.say("Rsqrt", self.say("AddV2", variance, self.number(epsilon)))
        normed = self.say("Mul", self.say("Sub", x, mean), scale)
        if gain is not None:
            normed = self.say("Mul", normed, self.weight(gain))
        return normed if bias is None else self.say("AddV2", normed, self.weight(bias))

    def rms_norm(self, x: str, gain: Array | None, epsilon: float) -> str:
        squares = self.say("Mean", self.say("Mul", x, x), self._axis(-1))
        normed = self.say("Mul", x, self.say("Rsqrt", self.say("AddV2", squares, self.number(epsilon))))
        return normed if gain is None else self.say("Mul", normed, self.weight(gain))

    def __getattr__(self, word: str) -> NoReturn:
        """The words of other forms of blocks."""
        raise UnsupportedError(f"no plain SavedModel is written of {_OTHERS.get(word, word)}")
