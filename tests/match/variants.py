"""Variants of the small BERT: the same mathematics in other words, which must be found, and others that only look like
BERT, which must not be. `GOOD` says what must be found of each, `BAD` which words the reason must have."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto
from small import POSITIONS, Small

GOOD: dict[str, tuple[type[Small], dict[str, Any]]] = {}
BAD: dict[str, tuple[type[Small], str]] = {}


def good(**facts: Any) -> Callable[[type[Small]], type[Small]]:
    def add(variant: type[Small]) -> type[Small]:
        GOOD[variant.__name__] = variant, facts
        return variant

    return add


def bad(reason: str) -> Callable[[type[Small]], type[Small]]:
    def add(variant: type[Small]) -> type[Small]:
        BAD[variant.__name__] = variant, reason
        return variant

    return add


# LayerNorm


@good()
class NormDuplicatedSub(Small):
    def layer_norm(self, x, gain, bias):
        mean = self.mean(x)
        one, two = self.op("Sub", x, mean), self.op("Sub", x, mean)
        variance = self.mean(self.op("Pow", one, self.const(2.0)))
        root = self.op("Sqrt", self.op("Add", variance, self.const(self.epsilon)))
        return self.op("Add", self.op("Mul", self.op("Div", two, root), gain), bias)


@good()
class NormMulCast(Small):
    def layer_norm(self, x, gain, bias):
        centred = self.op("Sub", x, self.mean(x))
        wide = self.op("Cast", centred, to=TensorProto.FLOAT)
        variance = self.mean(self.op("Mul", wide, wide))
        root = self.op("Sqrt", self.op("Add", variance, self.const(self.epsilon)))
        return self.op("Add", self.op("Mul", gain, self.op("Div", centred, root)), bias)


@good(epsilon=1e-6)
class NormTensorFlow(Small):
    epsilon = 1e-6

    def layer_norm(self, x, gain, bias):
        mean = self.mean(x)
        centred = self.op("Sub", x, mean)
        variance = self.mean(self.op("Mul", centred, centred))
        inverse = self.op("Reciprocal", self.op("Sqrt", self.op("Add", variance, self.const(self.epsilon))))
        factor = self.op("Mul", inverse, gain)
        rest = self.op("Sub", bias, self.op("Mul", mean, factor))
        return self.op("Add", self.op("Mul", x, factor), rest)


@good(epsilon=1e-5)
class NormSquares(Small):
    """The variance as the mean of squares less the square of the mean; means as sums; the root as a power."""

    epsilon = 1e-5

    def layer_norm(self, x, gain, bias):
        over = self.const(1.0 / self.hidden)
        mean = self.op("Mul", self.mean(x, "ReduceSum"), over)
        squares = self.op("Mul", self.mean(self.op("Mul", x, x), "ReduceSum"), over)
        variance = self.op("Sub", squares, self.op("Mul", mean, mean))
        inverse = self.op("Pow", self.op("Add", variance, self.const(self.epsilon)), self.const(-0.5))
        return self.op("Add", self.op("Mul", self.op("Mul", self.op("Sub", x, mean), inverse), gain), bias)


@good(epsilon=1e-5)
class NormDefaultEpsilon(Small):
    """No attribute means 1e-5."""

    opset = 17

    def layer_norm(self, x, gain, bias):
        return self.op("LayerNormalization", x, gain, bias)


@good(epsilon=1e-3)
class NormAxis(Small):
    opset = 17

    def layer_norm(self, x, gain, bias):
        return self.op("LayerNormalization", x, gain, bias, axis=2, epsilon=1e-3)


@good(epsilon=0.0)
class NormNoEpsilon(Small):
    def layer_norm(self, x, gain, bias):
        centred = self.op("Sub", x, self.mean(x))
        root = self.op("Sqrt", self.mean(self.op("Pow", centred, self.const(2.0))))
        return self.op("Add", self.op("Mul", self.op("Div", centred, root), gain), bias)


@good()
class NormNoGain(Small):
    def layer_norm(self, x, gain, bias):  # noqa: ARG002
        return super().layer_norm(x, self.const(1.0), self.const(0.0))


@good()
class NormWideGain(Small):
    """Gain and bias with axes of one before them."""

    def layer_norm(self, x, gain, bias):
        gain, bias = (self.op("Reshape", v, self.const([1, 1, -1])) for v in (gain, bias))
        return super().layer_norm(x, gain, bias)


@bad("")
class NormOtherAxis(Small):
    length = 24

    def layer_norm(self, x, gain, bias):
        turned = self.op("Transpose", x, perm=[0, 2, 1])
        return self.op("Transpose", super().layer_norm(turned, gain, bias), perm=[0, 2, 1])


@bad("")
class NormGainPerPosition(Small):
    """The gain belongs to positions, of which there are as many as columns."""

    length = 24

    def layer_norm(self, x, gain, bias):
        return super().layer_norm(x, self.op("Reshape", gain, self.const([24, 1])), bias)


@bad("")
class NormGainMatrix(Small):
    opset, length = 17, 6

    def layer_norm(self, x, gain, bias):  # noqa: ARG002
        return self.op("LayerNormalization", x, self.weight(6, self.hidden, mean=1), bias, epsilon=1e-12)


@bad("")
class NormOneGain(Small):
    """A gain of one number is one for all columns; it would be read beyond its end."""

    opset = 17

    def layer_norm(self, x, gain, bias):  # noqa: ARG002
        return self.op("LayerNormalization", x, self.const([1.5]), bias, epsilon=1e-12)


@bad("")
class NormUnbiased(Small):
    def layer_norm(self, x, gain, bias):
        centred = self.op("Sub", x, self.mean(x))
        total = self.mean(self.op("Mul", centred, centred), "ReduceSum")
        variance = self.op("Div", total, self.const(float(self.hidden - 1)))
        root = self.op("Sqrt", self.op("Add", variance, self.const(self.epsilon)))
        return self.op("Add", self.op("Mul", self.op("Div", centred, root), gain), bias)


@bad("")
class NormEpsilonOutside(Small):
    """Added to the deviation, not to the variance."""

    def layer_norm(self, x, gain, bias):
        centred = self.op("Sub", x, self.mean(x))
        root = self.op("Sqrt", self.mean(self.op("Pow", centred, self.const(2.0))))
        root = self.op("Add", root, self.const(1e-3))
        return self.op("Add", self.op("Mul", self.op("Div", centred, root), gain), bias)


@bad("")
class NormRootMeanSquare(Small):
    def layer_norm(self, x, gain, bias):
        root = self.op("Sqrt", self.op("Add", self.mean(self.op("Mul", x, x)), self.const(1e-6)))
        return self.op("Add", self.op("Mul", self.op("Div", x, root), gain), bias)


# Activations


@good()
class GeluHalfFirst(Small):
    def activation(self, x):
        erf = self.op("Erf", self.op("Mul", x, self.const(math.sqrt(0.5))))
        return self.op("Mul", self.op("Mul", self.const(0.5), x), self.op("Add", self.const(1.0), erf))


@good()
class GeluHalfInside(Small):
    def activation(self, x):
        erf = self.op("Erf", self.op("Mul", x, self.const(0.70710678)))
        return self.op("Mul", x, self.op("Add", self.op("Mul", erf, self.const(0.5)), self.const(0.5)))


@good()
class GeluRounded(Small):
    """1.4142 for the root of two."""

    def activation(self, x):
        erf = self.op("Erf", self.op("Div", x, self.const(1.4142)))
        return self.op("Mul", self.op("Mul", x, self.op("Add", erf, self.const(1.0))), self.const(0.5))


@good()
class GeluNative(Small):
    opset = 20

    def activation(self, x):
        return self.op("Gelu", x)


@good(activation="gelu_tanh")
class GeluNativeTanh(Small):
    opset = 20

    def activation(self, x):
        return self.op("Gelu", x, approximate="tanh")


def _tanh(self: Small, x: str, cube: str) -> str:
    inner = self.op("Add", x, self.op("Mul", cube, self.const(0.044715)))
    tanh = self.op("Tanh", self.op("Mul", inner, self.const(math.sqrt(2 / math.pi))))
    return self.op("Add", tanh, self.const(1.0))


@good(activation="gelu_tanh")
class GeluTanhPow(Small):
    def activation(self, x):
        return self.op("Mul", self.op("Mul", x, self.const(0.5)), _tanh(self, x, self.op("Pow", x, self.const(3.0))))


@good(activation="gelu_tanh")
class GeluTanhProducts(Small):
    def activation(self, x):
        cube = self.op("Mul", self.op("Mul", x, x), x)
        return self.op("Mul", self.op("Mul", x, _tanh(self, x, cube)), self.const(0.5))


@good(activation="gelu_tanh")
class GeluOpenAI(Small):
    """x * 0.79788 * (1 + 0.044715 x x) inside."""

    def activation(self, x):
        factor = self.op("Add", self.op("Mul", self.op("Mul", x, self.const(0.044715)), x), self.const(1.0))
        inner = self.op("Mul", self.op("Mul", x, self.const(0.79788456)), factor)
        half = self.op("Mul", x, self.const(0.5))
        return self.op("Mul", half, self.op("Add", self.op("Tanh", inner), self.const(1.0)))


@good(activation="gelu_quick")
class GeluQuick(Small):
    def activation(self, x):
        return self.op("Mul", x, self.op("Sigmoid", self.op("Mul", x, self.const(1.702))))


@good(activation="relu")
class ReluAsMaximum(Small):
    def activation(self, x):
        return self.op("Max", x, self.const(0.0))


@good(activation="relu")
class ReluAsClip(Small):
    def activation(self, x):
        return self.op("Clip", x, self.const(0.0))


@bad("activation")
class GeluShifted(Small):
    def activation(self, x):
        return super().activation(self.op("Add", x, self.const(1.0)))


@bad("activation")
class GeluTwice(Small):
    def activation(self, x):
        return super().activation(self.op("Mul", x, self.const(2.0)))


@bad("activation")
class Mish(Small):
    def activation(self, x):
        return self.op("Mul", x, self.op("Tanh", self.op("Softplus", x)))


@good(activation="silu")
class Silu(Small):
    def activation(self, x):
        return self.op("Mul", x, self.op("Sigmoid", x))


@bad("activation")
class ReluLimited(Small):
    """As ReLU up to 20."""

    def activation(self, x):
        return self.op("Clip", x, self.const(0.0), self.const(20.0))


@bad("activation")
class ReluLeaky(Small):
    def activation(self, x):
        return self.op("LeakyRelu", x, alpha=0.01)


@good()
class GatedFeed(Small):
    def feed(self, x):
        gate = super().activation(self.linear(x, self.hidden, self.inner))
        return self.linear(self.op("Mul", gate, self.linear(x, self.hidden, self.inner)), self.inner, self.hidden)


# Scales and residuals


@good(scale=1.0)
class ScaleOne(Small):
    def scale(self):
        return 1.0


@good(scale=1.0)
class ScaleNone(Small):
    def scores(self, query, key):
        return self.op("MatMul", query, key)


@good(scale=1 / math.sqrt(8))
class ScaleOnBoth(Small):
    """As scaled_dot_product_attention is exported: the root of the scale on queries and keys."""

    def scores(self, query, key):
        root = self.const(8**-0.25)
        return self.op("MatMul", self.op("Mul", query, root), self.op("Mul", root, key))


@good(scale=1 / math.sqrt(8))
class ScaleOnLinear(Small):
    """Before the heads are split."""

    def projections(self, x):
        query, key, value = (self.linear(x, self.hidden, self.hidden) for _ in range(3))
        query = self.op("Div", query, self.const(math.sqrt(8)))
        return self.split(query, 3), self.split(key, 3, transposed=True), self.split(value, 3)

    def scores(self, query, key):
        return self.op("MatMul", query, key)


@good(scale=0.5 / math.sqrt(8))
class ScaleAfterMask(Small):
    def mask(self, scores):
        return self.op("Mul", super().mask(scores), self.const(0.5))


@bad("scores")
class ScalePerHead(Small):
    def scores(self, query, key):
        return self.op("Mul", super().scores(query, key), self.const(np.array([1, 2, 3.0]).reshape(3, 1, 1)))


@bad("linear")
class ResidualScaled(Small):
    def residual(self, x, y):
        return self.op("Add", self.op("Mul", y, self.const(0.5)), x)


@bad("")
class ResidualOtherScaled(Small):
    def residual(self, x, y):
        return self.op("Add", y, self.op("Mul", x, self.const(0.5)))


@bad("")
class ResidualBeforeNorm(Small):
    """The residual is taken before the LayerNorm that attention reads after."""

    def layer(self, x):
        y = self.normed(x)
        x = self.normed(self.residual(x, self.attention(y)))
        return self.normed(self.residual(x, self.feed(x)))


@bad("")
class ResidualOfFirst(Small):
    """The second residual is the layer's input."""

    def layer(self, x):
        y = self.normed(self.residual(x, self.attention(x)))
        return self.normed(self.residual(x, self.feed(y)))


@bad("")
class ValueScaled(Small):
    def projections(self, x):
        query, key, value = super().projections(x)
        return query, key, self.op("Mul", value, self.const(2.0))


@bad("")
class QueryFromElsewhere(Small):
    """Queries are made of what enters the first layer."""

    def layer(self, x):
        self.first = getattr(self, "first", x)
        return super().layer(x)

    def projections(self, x):
        query = self.split(self.linear(self.first, self.hidden, self.hidden), self.heads)
        _, key, value = super().projections(x)
        return query, key, value

    def stack(self, x):
        self.first = self.op("Mul", x, self.const(1.5))
        return super().stack(x)


@bad("")
class OnlySecondLayerWrong(Small):
    """No layer may be taken for one because its neighbour is: the first is found, the second is not."""

    layers = 1

    def stack(self, x):
        self.before = x
        return super().stack(x)

    def projections(self, x):
        query, key, _ = super().projections(x)
        return query, key, self.split(self.linear(self.op("Relu", x), self.hidden, self.hidden), self.heads)


# Heads


@good(heads=1, scale=1 / math.sqrt(24))
class OneHead(Small):
    heads = 1


@good(heads=1, scale=1 / math.sqrt(24))
class OneHeadUnsplit(Small):
    heads = 1

    def projections(self, x):
        query, key, value = (self.linear(x, self.hidden, self.hidden) for _ in range(3))
        return query, self.op("Transpose", key, perm=[0, 2, 1]), value

    def additive(self):
        if self.masked is None:
            hidden = self.op("Sub", self.const(1.0), self.op("Cast", "mask", to=TensorProto.FLOAT))
            self.masked = self.axes("Unsqueeze", self.op("Mul", hidden, self.const(-10000.0)), [1])
        return self.masked

    def merge(self, x):
        return x


@good(heads=24, scale=1.0)
class HeadsOfOne(Small):
    heads = 24


@good(heads=12, hidden=312, scale=1 / math.sqrt(26))
class Hidden312(Small):
    hidden, heads, inner, layers = 312, 12, 100, 1


@good(inner=10)
class InnerSmaller(Small):
    inner = 10


@good()
class HeadsPerLayer(Small):
    layers = 3

    def layer(self, x):
        self.heads = (3, 4, 6)[self.number]
        return super().layer(x)


@good(layers=1)
class OneLayer(Small):
    layers = 1


@good(layers=3)
class SharedLayers(Small):
    """As in ALBERT: one layer's weights, used again and again."""

    layers = 3

    def stack(self, x):
        state = self.random.bit_generator.state
        for _ in range(self.layers):
            self.random.bit_generator.state = state
            x = self.layer(x)
        return x

    def const(self, value, dtype=None):
        shared = self.__dict__.setdefault("shared", {})
        array = np.asarray(value)
        key = array.tobytes(), array.shape, str(array.dtype), str(dtype)
        if key not in shared:
            shared[key] = super().const(value, dtype)
        return shared[key]


@good()
class OtherWidths(Small):
    """Queries and keys of one width, values of another, neither of them the hidden one."""

    def projections(self, x):
        query, key = (self.linear(x, self.hidden, 18) for _ in range(2))
        value = self.linear(x, self.hidden, 15)
        return self.split(query, 3), self.split(key, 3, transposed=True), self.split(value, 3)

    def attention(self, x):
        query, key, value = self.projections(x)
        context = self.op("MatMul", self.softmax(self.mask(self.scores(query, key))), value)
        return self.linear(self.merge(context), 15, self.hidden)


@good()
class PackedSplit(Small):
    def projections(self, x):
        packed = self.linear(x, self.hidden, 3 * self.hidden)
        query, key, value = self.op("Split", packed, self.const([24, 24, 24]), outputs=3, axis=-1)
        return self.split(query, 3), self.split(key, 3, transposed=True), self.split(value, 3)


@good()
class PackedSlice(Small):
    def projections(self, x):
        packed = self.linear(x, self.hidden, 3 * self.hidden)
        parts = [
            self.op("Slice", packed, self.const([24 * i]), self.const([24 * i + 24]), self.const([2])) for i in range(3)
        ]
        return self.split(parts[0], 3), self.split(parts[1], 3, transposed=True), self.split(parts[2], 3)


@good()
class PackedGather(Small):
    """[B, S, 3, A, D] turned to [3, B, A, S, D], then taken apart."""

    def projections(self, x):
        packed = self.op("Reshape", self.linear(x, self.hidden, 72), self.const([0, 0, 3, 3, 8]))
        packed = self.op("Transpose", packed, perm=[2, 0, 3, 1, 4])
        query, key, value = (self.op("Gather", packed, self.const(i), axis=0) for i in range(3))
        return query, self.op("Transpose", key, perm=[0, 1, 3, 2]), value


@good()
class PackedPerHead(Small):
    """As in GPT-NeoX: queries, keys and values of one head side by side."""

    def projections(self, x):
        packed = self.op("Reshape", self.linear(x, self.hidden, 72), self.const([0, 0, 3, 24]))
        packed = self.op("Transpose", packed, perm=[0, 2, 1, 3])
        query, key, value = self.op("Split", packed, outputs=3, axis=-1)
        return query, self.op("Transpose", key, perm=[0, 1, 3, 2]), value


@good()
class PerHeadProducts(Small):
    """Weights [H, A, D] in Einsum, and the output's [A, D, H]."""

    def linear_heads(self, x):
        product = self.op("Einsum", x, self.weight(24, 3, 8), equation="bsh,had->bsad")
        return self.op("Add", product, self.weight(3, 8))

    def attention(self, x):
        query, key, value = (self.linear_heads(x) for _ in range(3))
        scores = self.op("Einsum", query, key, equation="bqad,bkad->baqk")
        scores = self.op("Mul", scores, self.const(self.scale()))
        context = self.op("Einsum", self.softmax(self.mask(scores)), value, equation="baqk,bkad->bqad")
        out = self.op("Einsum", context, self.weight(3, 8, 24), equation="bqad,adh->bqh")
        return self.op("Add", out, self.weight(24))


@good()
class BatchedHeads(Small):
    """[B * A, S, D] as in fairseq and nn.MultiheadAttention, scores of rank 3."""

    def split(self, x, heads, transposed=False):  # noqa: ARG002
        batch, length = self.shape("ids", 0), self.shape("ids", 1)
        target = self.op(
            "Concat", *(self.axes("Unsqueeze", n, [0]) for n in (batch, length)), self.const([3, 8]), axis=0
        )
        x = self.op("Transpose", self.op("Reshape", x, target), perm=[0, 2, 3, 1] if transposed else [0, 2, 1, 3])
        rows = self.axes("Unsqueeze", length, [0])
        shape = (self.const([-1, 8]), rows) if transposed else (self.const([-1]), rows, self.const([8]))
        return self.op("Reshape", x, self.op("Concat", *shape, axis=0))

    def mask(self, scores):
        length = self.axes("Unsqueeze", self.shape("ids", 1), [0])
        wide = self.op("Concat", self.const([-1, 3]), length, length, axis=0)
        masked = self.op("Add", self.op("Reshape", scores, wide), self.additive())
        return self.op("Reshape", masked, self.op("Concat", self.const([-1]), length, length, axis=0))

    def merge(self, x):
        length = self.axes("Unsqueeze", self.shape("ids", 1), [0])
        wide = self.op("Reshape", x, self.op("Concat", self.const([-1, 3]), length, self.const([8]), axis=0))
        return super().merge(wide)


@bad("")
class HeadsInterleaved(Small):
    """[B, S, D, A]: column i belongs to head i mod A."""

    def split(self, x, heads, transposed=False):
        x = self.op("Reshape", x, self.const([0, 0, -1, heads]))
        return self.op("Transpose", x, perm=[0, 3, 2, 1] if transposed else [0, 3, 1, 2])


@bad("")
class HeadsMergedWrong(Small):
    """The context is merged as [B, S, D, A]."""

    def merge(self, x):
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 3, 1]), self.const([0, 0, -1]))


@bad("")
class HeadsNotTransposed(Small):
    """[B, S, H] read as [B, A, S, D], a bug that trains well enough; three heads, three tokens."""

    length = 6

    def split(self, x, heads, transposed=False):
        x = self.op("Reshape", x, self.const([0, heads, 6, -1]))
        return self.op("Transpose", x, perm=[0, 1, 3, 2]) if transposed else x

    def merge(self, x):
        return self.op("Reshape", x, self.const([0, 6, -1]))


@bad("")
class HeadsShared(Small):
    """All heads have the keys of one."""

    def projections(self, x):
        query, _, value = super().projections(x)
        key = self.axes("Unsqueeze", self.op("Transpose", self.linear(x, self.hidden, 8), perm=[0, 2, 1]), [1])
        return query, key, value


@bad("")
class HeadsAcross(Small):
    """Attention over heads instead of positions."""

    def split(self, x, heads, transposed=False):
        x = self.op("Reshape", x, self.const([0, 0, heads, -1]))
        return self.op("Transpose", x, perm=[0, 1, 3, 2]) if transposed else x

    def mask(self, scores):
        return scores

    def merge(self, x):
        return self.op("Reshape", x, self.const([0, 0, -1]))


@bad("")
class SoftmaxOverQueries(Small):
    def softmax(self, x):
        return self.op("Softmax", x, axis=2)


@bad("")
class SoftmaxOverQueriesStatic(Small):
    """Where there are as many queries as columns of a head, heads and sequences."""

    batch, length, hidden, heads = 8, 8, 64, 8
    inputs = ("ids", "types")

    def softmax(self, x):
        return self.op("Softmax", x, axis=2)


@bad("")
class SoftmaxOverHeads(Small):
    def softmax(self, x):
        return self.op("Softmax", x, axis=1)


@bad("")
class SoftmaxFlat(Small):
    """Before opset 13 the axes from axis on are one."""

    opset = 12

    def softmax(self, x):
        return self.op("Softmax", x, axis=1)


@bad("")
class SoftmaxTransposed(Small):
    """Values are averaged along the queries."""

    batch, length = 2, 6

    def softmax(self, x):
        return self.op("Transpose", super().softmax(x), perm=[0, 1, 3, 2])


@bad("")
class SoftmaxScaled(Small):
    def softmax(self, x):
        return self.op("Mul", super().softmax(x), self.const(0.9))


@bad("")
class SoftmaxPlusOne(Small):
    """exp(x) / (1 + sum exp(x)), which may attend to nothing."""

    def softmax(self, x):
        e = self.op("Exp", x)
        return self.op("Div", e, self.op("Add", self.mean(e, "ReduceSum"), self.const(1.0)))


@good()
class SoftmaxWrittenOut(Small):
    def softmax(self, x):
        e = self.op("Exp", self.op("Sub", x, self.mean(x, "ReduceMax")))
        return self.op("Div", e, self.mean(e, "ReduceSum"))


@good()
class DropoutAfterSoftmax(Small):
    def softmax(self, x):
        return self.op("Dropout", super().softmax(x), self.const(0.1), self.const(False))


@bad("")
class DropoutMask(Small):
    """Attention times a constant mask of dropout that was left in the graph."""

    length = 6

    def softmax(self, x):
        kept = (np.random.default_rng(3).random((3, 6, 6)) > 0.2) / 0.8
        return self.op("Mul", super().softmax(x), self.const(kept))


@bad("")
class CrossAttention(Small):
    """A decoder's layer: keys and values are made of something else."""

    layers = 1

    def stack(self, x):
        self.memory = self.normed(self.linear(x, self.hidden, self.hidden))
        return super().stack(x)

    def projections(self, x):
        query, _, _ = super().projections(x)
        _, key, value = super().projections(self.memory)
        return query, key, value


# Products


@good()
class GemmTransposed(Small):
    def linear(self, x, inputs, outputs):
        flat = self.op("Reshape", x, self.const([-1, inputs]))
        y = self.op("Gemm", flat, self.weight(outputs, inputs), self.weight(outputs), transB=1)
        length = self.axes("Unsqueeze", self.shape("ids", 1), [0])
        return self.op("Reshape", y, self.op("Concat", self.const([-1]), length, self.const([outputs]), axis=0))


@good()
class GemmScaled(Small):
    """alpha and beta other than one are parts of weight and bias; here of queries and keys only."""

    def projections(self, x):
        def gemm(alpha: float) -> str:
            flat = self.op("Reshape", x, self.const([-1, 24]))
            y = self.op("Gemm", flat, self.weight(24, 24), self.weight(24), alpha=1.0, beta=alpha)
            length = self.axes("Unsqueeze", self.shape("ids", 1), [0])
            return self.op("Reshape", y, self.op("Concat", self.const([-1]), length, self.const([24]), axis=0))

        query, key, value = gemm(0.5), gemm(2.0), self.linear(x, 24, 24)
        return self.split(query, 3), self.split(key, 3, transposed=True), self.split(value, 3)


@good()
class ConvolutionStyle(Small):
    """As Conv1D of GPT-2: a weight [inputs, outputs] that is transposed twice."""

    def linear(self, x, inputs, outputs):
        turned = self.op("Transpose", self.weight(outputs, inputs), perm=[1, 0])
        return self.op("Add", self.weight(outputs), self.op("MatMul", x, turned))


@good()
class WideWeights(Small):
    """Weights [1, in, out]."""

    def linear(self, x, inputs, outputs):
        return self.op("Add", self.op("MatMul", x, self.weight(1, inputs, outputs)), self.weight(1, 1, outputs))


@good()
class NoBiases(Small):
    def linear(self, x, inputs, outputs):
        return self.op("MatMul", x, self.weight(inputs, outputs))


@good()
class BiasAfterResidual(Small):
    def layer(self, x):
        query, key, value = self.projections(x)
        context = self.op("MatMul", self.softmax(self.mask(self.scores(query, key))), value)
        y = self.op("MatMul", self.merge(context), self.weight(24, 24))
        x = self.normed(self.op("Add", self.op("Add", y, x), self.weight(24)))
        return self.normed(self.residual(x, self.feed(x)))


@bad("")
class BiasPerPosition(Small):
    length = 24

    def linear(self, x, inputs, outputs):
        return self.op("Add", self.op("MatMul", x, self.weight(inputs, outputs)), self.weight(24, 1))


@bad("")
class WeightsGiven(Small):
    """A product with something that is computed from the input."""

    def linear(self, x, inputs, outputs):
        total = self.op("Cast", self.op("ReduceMax", "ids", keepdims=0), to=TensorProto.FLOAT)
        return (
            super().linear(x, inputs, outputs)
            if outputs != 24
            else self.op(
                "MatMul",
                x,
                self.op(
                    "Mul",
                    self.weight(inputs, outputs),
                    self.op("Add", self.op("Mul", total, self.const(1e-3)), self.const(1.0)),
                ),
            )
        )


@good()
class Half(Small):
    dtype = np.float16
    epsilon = 1e-5

    def additive(self):
        return super().additive()


@good(activation="relu")
class Opset7(Small):
    opset, batch, length = 7, 2, 6

    def positions(self):
        return self.op("Gather", self.weight(POSITIONS, self.hidden), self.const(np.arange(6)))

    def activation(self, x):
        return self.op("Relu", x)

    def mask(self, scores):
        return self.op("Add", scores, self.additive())


@good()
class Opset21(Small):
    opset = 21


# Sizes


@good()
class BatchOne(Small):
    batch = 1


@good()
class BatchOneInside(Small):
    """As torch exports from an example of one sequence: any batch is declared, but later layers are made for one."""

    layers = 3

    def sized(self, x, *rest):
        length = self.axes("Unsqueeze", self.shape("ids", 1), [0])
        return self.op("Reshape", x, self.op("Concat", self.const([1]), length, self.const(rest), axis=0))

    def split(self, x, heads, transposed=False):
        if self.number == 0:
            return super().split(x, heads, transposed)
        x = self.sized(x, -1, self.hidden // heads)
        return self.op("Transpose", x, perm=[0, 2, 3, 1] if transposed else [0, 2, 1, 3])

    def merge(self, x):
        if self.number == 0:
            return super().merge(x)
        return self.sized(self.op("Transpose", x, perm=[0, 2, 1, 3]), self.hidden)

    def feeds(self, kind, batch, length):  # noqa: ARG002
        return super().feeds(kind, 1, length)


@good()
class StaticOneByTwo(Small):
    batch, length = 1, 2


@good()
class StaticEqual(Small):
    """All sizes that can be are the same."""

    batch, length, hidden, heads, inner = 4, 4, 16, 4, 16


@good()
class StaticLengthIsHidden(Small):
    batch, length, inner = 3, 24, 24


@good()
class HiddenIsInner(Small):
    inner = 24
