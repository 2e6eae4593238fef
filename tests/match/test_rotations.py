"""match/rotations.py: cosines and sines that are those of positions times frequencies, and others that only look so."""

import numpy as np
import onnx
import pytest
from small import Small, judge

from fusebert.match import read_encoder
from fusebert.values.blocks import Rotary


class Turned(Small):
    """Queries and keys are rotated; the angles are computed."""

    inputs, theta = ("ids", "mask"), 100.0

    def frequencies(self) -> np.ndarray:
        size = self.hidden // self.heads
        return (self.theta ** (-2 * np.arange(size // 2) / size)).astype(np.float32)

    def positions(self) -> str:
        return self.const(np.zeros((1, self.hidden)))

    def angles(self) -> str:
        places = self.op("Range", self.const(0), self.shape("ids", 1), self.const(1))
        places = self.op("Cast", places, to=onnx.TensorProto.FLOAT)
        return self.op("Mul", self.axes("Unsqueeze", places, [1]), self.const(self.frequencies()))

    def tables(self) -> tuple[str, str]:
        angles = self.angles()
        both = self.op("Concat", angles, angles, axis=-1)
        return self.op("Cos", both), self.op("Sin", both)

    def halves(self, x: str) -> str:
        size = self.hidden // self.heads
        first, second = (
            self.op("Slice", x, self.const([begin]), self.const([end]), self.const([3]))
            for begin, end in ((0, size // 2), (size // 2, size))
        )
        return self.op("Concat", self.op("Neg", second), first, axis=-1)

    def turn(self, x: str) -> str:
        cos, sin = self.tables()
        return self.op("Add", self.op("Mul", x, cos), self.op("Mul", self.halves(x), sin))

    def attention(self, x: str) -> str:
        query, key, value = (self.split(self.linear(x, self.hidden, self.hidden), self.heads) for _ in range(3))
        key = self.op("Transpose", self.turn(key), perm=[0, 1, 3, 2])
        context = self.op("MatMul", self.softmax(self.mask(self.scores(self.turn(query), key))), value)
        return self.linear(self.merge(context), self.hidden, self.hidden)


class HalvesBySplit(Turned):
    def halves(self, x: str) -> str:
        size = self.hidden // self.heads // 2
        first, second = f"{x}_first", f"{x}_second"
        self.nodes.append(onnx.helper.make_node("Split", [x, self.const([size, size])], [first, second], axis=-1))
        return self.op("Concat", self.op("Mul", second, self.const(-1.0)), first, axis=-1)


class FromTables(Turned):
    """Cosines and sines are rows of tables."""

    def tables(self) -> tuple[str, str]:
        angles = np.tile(np.arange(self.longest)[:, None] * self.frequencies().astype(np.float64), 2)
        places = self.op("Range", self.const(0), self.shape("ids", 1), self.const(1))
        cos, sin = (self.op("Gather", self.const(f(angles)), places) for f in (np.cos, np.sin))
        return cos, sin


class Longer(Turned):
    """Cosines and sines times a number, as YaRN has them."""

    def tables(self) -> tuple[str, str]:
        cos, sin = (self.op("Mul", table, self.const(1.1)) for table in super().tables())
        return cos, sin


class FromOne(Turned):
    """Positions count from 1, which changes nothing, but is not what the engine computes."""

    def angles(self) -> str:
        return self.op("Add", super().angles(), self.const(self.frequencies()))


class Unseen(Turned):
    """Positions are counted over what the mask shows."""

    def angles(self) -> str:
        counted = self.op("CumSum", self.op("Cast", "mask", to=onnx.TensorProto.FLOAT), self.const(1))
        return self.op("Mul", self.axes("Unsqueeze", counted, [1, 3]), self.const(self.frequencies()))


class Swapped(Turned):
    """The halves change places without a change of sign."""

    def halves(self, x: str) -> str:
        made = super().halves(x)
        self.nodes[-2] = onnx.helper.make_node("Identity", [*self.nodes[-2].input], [*self.nodes[-2].output])
        return made


@pytest.mark.parametrize("variant", [Turned, HalvesBySplit, FromTables])
def test_frequencies_are_those_of_the_model(variant, tmp_path):
    finding = judge(variant(), tmp_path)
    (found,) = finding.encoders
    assert not finding.misses
    for block in read_encoder(finding.raised, found).blocks[::2]:
        assert isinstance(block.body.position, Rotary)
        np.testing.assert_allclose(block.body.position.frequencies, variant().frequencies(), rtol=1e-5)
    assert found.longest == (variant.longest if variant is FromTables else 8192)
    assert not any(block.distances.window for layer in found.layers for block in layer.blocks)


@pytest.mark.parametrize("variant", [Longer, FromOne, Unseen, Swapped])
def test_what_is_no_rotation_by_position_is_no_layer(variant, tmp_path):
    finding = judge(variant(), tmp_path)
    assert not finding.encoders
    assert finding.misses
