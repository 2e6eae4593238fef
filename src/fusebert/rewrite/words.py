"""The vocabulary as ONNX: `values.forms` run with these words is a graph of ONNX's own operators, in which a Network's
weights are initializers, each stored once."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.formats.onnx import encoder_op
from fusebert.formats.onnx.edit import NewNode
from fusebert.formats.onnx.types import NUMBERS
from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import distance_buckets
from fusebert.rewrite.packing import store_once
from fusebert.rewrite.spelling import Spelling
from fusebert.values.operator import Operator
from fusebert.values.precision import PRECISIONS

OPSET = 17  # the first with LayerNormalization
ENCODED = "encoded"  # what the fused operator makes
_LOWEST = float(np.finfo(np.float32).min)


class OnnxWords(Spelling):
    """Nodes and weights as words are said. Rows are `[batch, tokens, width]`; heads are an axis before tokens. `ids` is
    an input `[batch, tokens]`, of at most `longest` tokens."""

    def __init__(self, ids: str, longest: int) -> None:
        super().__init__()
        self.nodes: list[NewNode] = []
        self.weights: dict[str, Array] = {}
        self._ids, self._longest = ids, longest

    def say(self, operation: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Adds a node; returns what it makes."""
        made = output or f"{operation}_{len(self.nodes)}"
        self.nodes.append(NewNode(operation, "", inputs, (made,), attributes, f"{operation}.{len(self.nodes)}"))
        return made

    def constant(self, array: Any) -> str:
        """Adds an initializer; whole numbers are int64."""
        given = np.asarray(array)
        name = f"weight_{len(self.weights)}"
        self.weights[name] = np.asarray(given, np.int64 if given.dtype.kind == "i" else np.float32, order="C")
        return name

    def named(self, tensor: str, name: str) -> None:
        """Calls a tensor by the name of an output."""
        self.say("Identity", tensor, output=name)

    def lookup(self, table: Array, ids: str) -> str:
        return self.say("Gather", self.weight(table), ids)

    def pick(self, x: str, place: int, axis: int) -> str:
        """One place of an axis, which goes away."""
        return self.say("Gather", x, self.constant(place), axis=axis)

    def counted(self, ids: str, padding: int) -> str:
        """The positions of tokens that are counted over all but padding."""
        empty = self.constant(padding)
        real = self.say("Cast", self.say("Not", self.say("Equal", ids, empty)), to=NUMBERS["int64"])
        return self.add(self.multiply(self.say("CumSum", real, self.constant(1)), real), empty)

    def visible_mean(self, rows: str, mask: str) -> str:
        """The mean of the rows that a 0/1 input shows."""
        seen = self.say("Cast", self.say("Unsqueeze", mask, self.constant([2])), to=NUMBERS["float32"])
        axes = self.constant([1])
        total = self.say("ReduceSum", self.multiply(rows, seen), axes, keepdims=0)
        return self.say("Div", total, self.say("ReduceSum", seen, axes, keepdims=0))

    def encoder(self, rows: str, mask: str, operator: Operator) -> str:
        """The fused operator, which reads a 0/1 input. Its weights keep their types."""
        encoder, precision = operator.encoder, operator.plan.precision
        stored: dict[object, str] = {}
        given = encoder_op.tensors(encoder, PRECISIONS[precision].int8)
        tensors = [store_once(self.weights, stored, f"encoder.{key}", array) for key, array in given]
        attributes = encoder_op.attributes_of(encoder, precision, operator.padding)
        if operator.plan.static:
            attributes["ranges"] = operator.plan.ranges
        inputs = (rows, mask, *tensors)
        self.nodes.append(NewNode(encoder_op.OPERATION, encoder_op.DOMAIN, inputs, (ENCODED,), attributes, "encoder"))
        return ENCODED

    def linear(self, x: str, weight: Array, bias: Array | None) -> str:
        product = self.say("MatMul", x, self.weight(weight, transposed=True))
        return product if bias is None else self.say("Add", product, self.weight(bias))

    def split_heads(self, x: Any, heads: int) -> Any:
        if isinstance(x, np.ndarray):  # a table, in place of rows
            return np.swapaxes(np.asarray(x, np.float32).reshape(len(x), heads, -1), 0, 1)
        wide = self.say("Reshape", x, self.constant([0, 0, heads, -1]))
        return self.say("Transpose", wide, perm=[0, 2, 1, 3])

    def merge_heads(self, x: str) -> str:
        return self.say("Reshape", self.say("Transpose", x, perm=[0, 2, 1, 3]), self.constant([0, 0, -1]))

    def scores(self, query: str, key: Any, scale: float) -> str:
        if isinstance(key, np.ndarray):
            turned = self.constant(np.swapaxes(key, -1, -2))
        else:
            turned = self.say("Transpose", key, perm=[0, 1, 3, 2])
        return self.say("Mul", self.say("MatMul", query, turned), self.number(scale))

    def repeat_heads(self, x: str, times: int) -> str:
        shape = self.say("Shape", x)
        begin, end = (self.say("Slice", shape, self.constant([a]), self.constant([b])) for a, b in ((0, 2), (2, 4)))
        wide = self.say("Concat", begin, self.constant([times]), end, axis=0)
        several = self.say("Expand", self.say("Unsqueeze", x, self.constant([2])), wide)
        return self.say("Reshape", several, self.say("Mul", shape, self.constant([1, times, 1, 1])))

    def rotate(self, x: str, frequencies: Array, positions: None = None) -> str:  # noqa: ARG002
        half = len(frequencies)
        first, second = (self._part(x, begin, begin + half) for begin in (0, half))
        angles = self.weight(frequencies)
        cos, sin = (self.once((angles, turn), partial(self._turn, turn, angles)) for turn in ("Cos", "Sin"))
        turned = self.say("Concat", self.say("Neg", second), first, axis=-1)  # as exporters of torch's models spell it
        return self.say("Add", self.say("Mul", x, cos), self.say("Mul", turned, sin))

    def _part(self, x: str, begin: int, end: int) -> str:
        return self.say("Slice", x, self.constant([begin]), self.constant([end]), self.constant([-1]))

    def _turn(self, turn: str, frequencies: str) -> str:
        places = self.say("Cast", self.say("Unsqueeze", self.places(), self.constant([1])), to=NUMBERS["float32"])
        angles = self.say("Mul", places, frequencies)
        return self.say(turn, self.say("Concat", angles, angles, axis=-1))

    def length(self) -> str:
        """How many tokens a sequence has."""
        return self.once("length", lambda: self.say("Gather", self.say("Shape", self._ids), self.constant(1), axis=0))

    def places(self) -> str:
        """0, 1, 2 and so on."""
        return self.once("places", lambda: self.say("Range", self.constant(0), self.length(), self.constant(1)))

    def _distances(self) -> str:
        """Query minus key position, `[tokens, tokens]`."""

        def make() -> str:
            sides = (self.say("Unsqueeze", self.places(), self.constant([axis])) for axis in (1, 0))
            return self.say("Sub", *sides)

        return self.once("distances", make)

    def distance_bias(self, table: Array, scores: str, positions: None = None) -> str:  # noqa: ARG002
        reach = table.shape[-1] // 2

        def make() -> str:
            toward = self.say("Neg", self._distances())
            near = self.say("Min", self.say("Max", toward, self.constant(-reach)), self.constant(reach))
            return self.say("Add", near, self.constant(reach))

        return self.say("Gather", self.weight(table), self.once(("near", reach), make), axis=1)

    def by_distance(
        self,
        x: str,
        positions: None = None,  # noqa: ARG002
        *,
        buckets: int,
        reach: int,
        of_keys: bool = False,
    ) -> str:
        """The row of every distance is a table, since a sequence has at most `longest` tokens."""
        middle = buckets if buckets > 0 else reach
        farthest = self._longest - 1
        known = distance_buckets(np.arange(-farthest, farthest + 1), buckets, reach, middle)

        def make() -> str:
            place = self.say("Add", self._distances(), self.constant(farthest))
            index = self.say("Gather", self.constant(known), place, axis=0)
            return self.say("Transpose", index, perm=[1, 0]) if of_keys else index

        index = self.once(("buckets", buckets, reach, of_keys), make)
        lead = self.say("Slice", self.say("Shape", x), self.constant([0]), self.constant([3]))
        tokens = self.say("Unsqueeze", self.length(), self.constant([0]))
        wide = self.say("Expand", index, self.say("Concat", lead, tokens, axis=0))
        taken = self.say("GatherElements", x, wide, axis=3)
        return self.say("Transpose", taken, perm=[0, 1, 3, 2]) if of_keys else taken

    def window(self, scores: str, positions: None = None, *, window: int) -> str:  # noqa: ARG002
        def make() -> str:
            return self.say("LessOrEqual", self.say("Abs", self._distances()), self.constant(window))

        return self.say("Where", self.once(("window", window), make), scores, self.number(-np.inf))

    def mask(self, scores: str, mask: str) -> str:
        return self.say("Add", scores, mask)

    def hiding(self, mask: str) -> str:
        """What is added to scores, of a 0/1 input `[batch, tokens]`."""
        wide = self.say("Unsqueeze", mask, self.constant([1, 2]))
        hidden = self.say("Sub", self.number(1), self.say("Cast", wide, to=NUMBERS["float32"]))
        return self.say("Mul", hidden, self.number(_LOWEST))

    def softmax(self, x: str) -> str:
        return self.say("Softmax", x, axis=-1)

    def context(self, attention: str, value: str) -> str:
        return self.say("MatMul", attention, value)

    def add(self, a: str, b: str) -> str:
        return self.say("Add", a, b)

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
            bent = self.say("Erf", self.say("Div", x, self.number(2**0.5)))
        elif name == "gelu_tanh":
            cube = self.say("Mul", self.say("Mul", self.say("Mul", x, x), x), self.number(0.044715))
            bent = self.say("Tanh", self.say("Mul", self.say("Add", x, cube), self.number((2 / np.pi) ** 0.5)))
        else:
            return x  # identity
        return self.say("Mul", self.say("Mul", x, self.number(0.5)), self.say("Add", bent, self.number(1)))

    def layer_norm(self, x: str, gain: Array | None, bias: Array | None, epsilon: float) -> str:
        if gain is None:
            raise UnsupportedError("a LayerNorm without gain cannot be written as ONNX's operator")
        given = (self.weight(gain),) if bias is None else (self.weight(gain), self.weight(bias))
        return self.say("LayerNormalization", x, *given, axis=-1, epsilon=float(epsilon))

    def rms_norm(self, x: str, gain: Array | None, epsilon: float) -> str:
        squares = self.say("ReduceMean", self.say("Mul", x, x), axes=[-1], keepdims=1)
        root = self.say("Sqrt", self.say("Add", squares, self.number(epsilon)))
        normed = self.say("Div", x, root)
        return normed if gain is None else self.say("Mul", normed, self.weight(gain))
