"""Variants of what is around the layers: masks, embeddings, readers, several encoders. As in variants.py."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto
from small import LOWEST, POSITIONS, VOCABULARY, Small
from variants import bad, good

FLOAT = TensorProto.FLOAT

# Masks


@good(mask="rows")
class MaskBool(Small):
    mask_type = TensorProto.BOOL


@good(mask="rows")
class MaskFloat(Small):
    mask_type = FLOAT


@good(mask="rows")
class MaskInt32(Small):
    mask_type = TensorProto.INT32


@good(mask="rows")
class MaskWhere(Small):
    """The scores' place is taken by -inf."""

    fill = float("-inf")

    def mask(self, scores):
        hidden = self.op("Equal", self.axes("Unsqueeze", "mask", [1, 2]), self.const(0))
        return self.op("Where", hidden, self.const(self.fill), scores)


@good(mask="rows")
class MaskWhereFinite(MaskWhere):
    fill = -1e4


@good(mask="rows")
class MaskWhereExpanded(Small):
    """As DistilBERT: the mask is spread to the shape of the scores."""

    def mask(self, scores):
        seen = self.op("Expand", self.axes("Unsqueeze", "mask", [1, 2]), self.op("Shape", scores))
        return self.op("Where", self.op("Cast", seen, to=TensorProto.BOOL), scores, self.const(LOWEST))


@good(mask="rows")
class MaskOuter(Small):
    """As google-research: ones times the mask, [B, S, S]."""

    def additive(self):
        if self.masked is None:
            seen = self.op("Cast", self.axes("Unsqueeze", "mask", [1]), to=FLOAT)
            ones = self.op("ConstantOfShape", self.op("Shape", self.axes("Unsqueeze", "ids", [2])))
            ones = self.op("Add", ones, self.const(1.0))
            hidden = self.op("Sub", self.const(1.0), self.op("Mul", ones, seen))
            self.masked = self.axes("Unsqueeze", self.op("Mul", hidden, self.const(-10000.0)), [1])
        return self.masked


@good(mask="padding")
class MaskOfPadding(Small):
    """As torch.nn.TransformerEncoder has it: true where a position is hidden."""

    mask_type = TensorProto.BOOL

    def mask(self, scores):
        return self.op("Where", self.axes("Unsqueeze", "mask", [1, 2]), self.const(float("-inf")), scores)

    def given_mask(self, seen):
        return seen == 0


@good(mask="padding")
class MaskOfPaddingNumbers(Small):
    """The same in numbers."""

    def additive(self):
        if self.masked is None:
            hidden = self.op("Cast", self.axes("Unsqueeze", "mask", [1, 2]), to=FLOAT)
            self.masked = self.op("Mul", hidden, self.const(-10000.0))
        return self.masked

    def given_mask(self, seen):
        return 1 - seen


@good(mask="ids")
class MaskOfIds(Small):
    inputs = ("ids", "types")

    def additive(self):
        if self.masked is None:
            hidden = self.op("Cast", self.op("Equal", "ids", self.const(0)), to=FLOAT)
            self.masked = self.op("Mul", self.axes("Unsqueeze", hidden, [1, 2]), self.const(-10000.0))
        return self.masked


@bad("mask")
class MaskOfIdOne(MaskOfIds):
    """Only token 1 is seen, which no padding can be: every other id is hidden."""

    inputs = ("ids", "types")

    def additive(self):
        if self.masked is None:
            seen = self.op("Cast", self.op("Equal", "ids", self.const(1)), to=FLOAT)
            hidden = self.op("Sub", self.const(1.0), seen)
            self.masked = self.op("Mul", self.axes("Unsqueeze", hidden, [1, 2]), self.const(-200.0))
        return self.masked


@good(mask="none")
class MaskNone(Small):
    inputs = ("ids", "types")


@good(mask="additive")
class MaskAdditive(Small):
    mask_type, mask_shape = FLOAT, ("batch", 1, 1, "length")

    def additive(self):
        return "mask"

    def given_mask(self, seen):
        return np.where(seen, 0, LOWEST)[:, None, None].astype(np.float32)


@good(mask="additive")
class MaskAdditivePerQuery(MaskAdditive):
    mask_shape = ("batch", 1, "length", "length")

    def given_mask(self, seen):
        return np.broadcast_to(super().given_mask(seen), (len(seen), 1, seen.shape[1], seen.shape[1])).copy()


@bad("mask")
class MaskAdditiveHalved(MaskAdditive):
    def additive(self):
        if self.masked is None:
            self.masked = self.op("Mul", "mask", self.const(0.5))
        return self.masked


@bad("mask")
class MaskPerQuery(Small):
    """[B, S, S], given from outside as 0 and 1."""

    mask_shape = ("batch", "length", "length")

    def additive(self):
        if self.masked is None:
            seen = self.op("Cast", self.axes("Unsqueeze", "mask", [1]), to=FLOAT)
            self.masked = self.op("Mul", self.op("Sub", self.const(1.0), seen), self.const(-10000.0))
        return self.masked

    def given_mask(self, seen):
        return np.broadcast_to(seen[:, None], (*seen.shape, seen.shape[1])).copy()


@bad("mask")
class MaskSoft(Small):
    """Hidden positions are only seen less."""

    def additive(self):
        if self.masked is None:
            hidden = self.op("Sub", self.const(1.0), self.op("Cast", "mask", to=FLOAT))
            self.masked = self.op("Mul", self.axes("Unsqueeze", hidden, [1, 2]), self.const(-2.0))
        return self.masked


@bad("mask")
class MaskOfQueries(Small):
    """[B, 1, S, 1] hides queries, not keys."""

    def additive(self):
        if self.masked is None:
            hidden = self.op("Sub", self.const(1.0), self.op("Cast", "mask", to=FLOAT))
            self.masked = self.op("Mul", self.axes("Unsqueeze", hidden, [1, 3]), self.const(-10000.0))
        return self.masked


@bad("query to query")
class MaskBoth(Small):
    """What is hidden sees nothing, so its rows differ."""

    def additive(self):
        if self.masked is None:
            seen = self.op("Cast", "mask", to=FLOAT)
            both = self.op("Mul", self.axes("Unsqueeze", seen, [1, 2]), self.axes("Unsqueeze", seen, [1, 3]))
            self.masked = self.op("Mul", self.op("Sub", self.const(1.0), both), self.const(-10000.0))
        return self.masked


def _places(self: Small) -> tuple[str, str]:
    places = self.op("Range", self.const(0), self.shape("ids", 1), self.const(1))
    return self.axes("Unsqueeze", places, [0]), self.axes("Unsqueeze", places, [1])


@good(mask="rows")
class MaskWindow(Small):
    """Local attention: 40 positions either way. Short texts do not show it."""

    def additive(self):
        if self.masked is None:
            keys, queries = _places(self)
            far = self.op("Greater", self.op("Abs", self.op("Sub", keys, queries)), self.const(40))
            unseen = self.op("Equal", self.axes("Unsqueeze", "mask", [1, 2]), self.const(0))
            hidden = self.op("Cast", self.op("Or", unseen, far), to=FLOAT)
            self.masked = self.op("Mul", hidden, self.const(-10000.0))
        return self.masked


@good(mask="none")
class MaskWindowOnly(Small):
    """The same without a mask of padding."""

    inputs = ("ids", "types")

    def additive(self):
        if self.masked is None:
            keys, queries = _places(self)
            far = self.op("Greater", self.op("Abs", self.op("Sub", keys, queries)), self.const(40))
            self.masked = self.op("Mul", self.op("Cast", far, to=FLOAT), self.const(-10000.0))
        return self.masked


@bad("causal")
class MaskCausal(Small):
    def additive(self):
        if self.masked is None:
            keys, queries = _places(self)
            unseen = self.op("Equal", self.axes("Unsqueeze", "mask", [1, 2]), self.const(0))
            hidden = self.op("Cast", self.op("Or", unseen, self.op("Greater", keys, queries)), to=FLOAT)
            self.masked = self.op("Mul", hidden, self.const(-10000.0))
        return self.masked


@good(mask="none")
class MaskRelative(Small):
    """A bias of distances (ALiBi) and no mask."""

    inputs = ("ids", "types")

    def additive(self):
        if self.masked is None:
            keys, queries = _places(self)
            far = self.op("Cast", self.op("Abs", self.op("Sub", keys, queries)), to=FLOAT)
            self.masked = self.op("Mul", far, self.const(-0.5))
        return self.masked


@bad("numbers are added to the scores that are not a mask of zeros and large negative numbers")
class MaskRelativeConstant(Small):
    length = 6

    def mask(self, scores):
        return super().mask(self.op("Add", scores, self.const(np.random.default_rng(0).normal(size=(3, 6, 6)))))


@bad("mask")
class MaskFirstHeadOnly(Small):
    def additive(self):
        if self.masked is None:
            heads = self.const(np.array([1, 0, 0]).reshape(3, 1, 1) * -1e4)
            hidden = self.op("Sub", self.const(1.0), self.op("Cast", "mask", to=FLOAT))
            self.masked = self.op("Mul", self.axes("Unsqueeze", hidden, [1, 2]), heads)
        return self.masked


@bad("mask")
class MaskShifted(Small):
    """The mask of the position before."""

    def additive(self):
        if self.masked is None:
            first = self.op("Slice", "mask", self.const([-1]), self.const([1 << 40]), self.const([1]))
            rest = self.op("Slice", "mask", self.const([0]), self.const([-1]), self.const([1]))
            seen = self.op("Cast", self.op("Concat", first, rest, axis=1), to=FLOAT)
            hidden = self.axes("Unsqueeze", self.op("Sub", self.const(1.0), seen), [1, 2])
            self.masked = self.op("Mul", hidden, self.const(-10000.0))
        return self.masked


@good(mask="rows")
class MaskOneByTwo(Small):
    """So small that ids, mask and types could be mistaken for each other."""

    batch, length = 1, 2


# Embeddings


@good()
class EmbeddingsOtherOrder(Small):
    inputs = ("types", "mask", "ids")

    def embeddings(self):
        kinds = self.op("Gather", self.weight(2, self.hidden), "types")
        x = self.op("Add", kinds, self.positions())
        return self.normed(self.op("Add", x, self.op("Gather", self.weight(VOCABULARY, self.hidden), "ids")))


@good()
class PositionsCounted(Small):
    """By CumSum over ones, less one."""

    def positions(self):
        ones = self.op("Add", self.op("Mul", "ids", self.const(0)), self.const(1))
        places = self.op("Sub", self.op("CumSum", ones, self.const(1)), self.const(1))
        return self.op("Gather", self.weight(POSITIONS, self.hidden), places)


@good()
class PositionsSliced(Small):
    """The first rows of the table."""

    def positions(self):
        end = self.axes("Unsqueeze", self.shape("ids", 1), [0])
        return self.op("Slice", self.weight(POSITIONS, self.hidden), self.const([0]), end)


@good()
class PositionsFew(Small):
    """Fewer positions than the finder would look at, counted beforehand as torch does."""

    hidden, heads, inner, longest = 60, 5, 42, 10

    def places(self, table):
        ends = self.axes("Unsqueeze", self.shape("ids", 1), [0])
        return self.op("Slice", table, self.const([0]), ends, self.const([0]))

    def positions(self):
        return self.op("Gather", self.weight(self.longest, self.hidden), self.places(self.const(np.arange(10))))


@good()
class PositionsFewSliced(PositionsFew):
    longest = 7

    def positions(self):
        return self.places(self.weight(self.longest, self.hidden))


@good()
class PositionsFewCounted(PositionsFew):
    """As RoBERTa: positions count the ids that are not padding, from 2 on."""

    inputs = ("ids", "mask")
    longest = 14

    def positions(self):
        real = self.op("Cast", self.op("Not", self.op("Equal", "ids", self.const(1))), to=TensorProto.INT64)
        places = self.op("Mul", self.op("CumSum", real, self.const(1)), real)
        return self.op("Gather", self.weight(16, self.hidden), self.op("Add", places, self.const(1)))


@good()
class PositionsFromBuffer(Small):
    """Slices of a constant [1, 96], as torch keeps them."""

    def positions(self):
        end = self.axes("Unsqueeze", self.shape("ids", 1), [0])
        places = self.op("Slice", self.const(np.arange(POSITIONS)[None]), self.const([0]), end, self.const([1]))
        return self.op("Gather", self.weight(POSITIONS, self.hidden), places)


@good()
class PositionsConstant(Small):
    """Static length: rows of numbers."""

    length = 6

    def positions(self):
        return self.weight(1, 6, self.hidden)


@good(whole=False)
class PositionsClipped(Small):
    """Those after the 50th all count as the 50th."""

    def positions(self):
        places = self.op("Range", self.const(0), self.shape("ids", 1), self.const(1))
        return self.op("Gather", self.weight(POSITIONS, self.hidden), self.op("Min", places, self.const(50)))


@good(whole=False)
class PositionsOfMask(Small):
    """Counted over what is seen, as decoders do; no rule of ids can say that."""

    def positions(self):
        places = self.op("Mul", self.op("CumSum", "mask", self.const(1)), "mask")
        return self.op("Gather", self.weight(POSITIONS, self.hidden), places)


@good(whole=False)
class IdsFolded(Small):
    """Ids beyond half of the table count as others."""

    def embeddings(self):
        ids = self.op("Mod", "ids", self.const(25))
        x = self.op("Gather", self.weight(VOCABULARY, self.hidden, size=1), ids)
        return self.normed(self.op("Add", x, self.positions()))

    inputs = ("ids", "mask")


@good(whole=False)
class EmbeddingsScaled(Small):
    def embeddings(self):
        x = self.op("Gather", self.weight(VOCABULARY, self.hidden), "ids")
        return self.normed(self.op("Add", self.op("Mul", x, self.const(24**0.5)), self.positions()))

    inputs = ("ids", "mask")


@good(whole=False)
class EmbeddingsMasked(Small):
    """Rows that are hidden are made zero before the first layer, as nested tensors and some old models do."""

    def embeddings(self):
        seen = self.op("Cast", self.axes("Unsqueeze", "mask", [2]), to=FLOAT)
        return self.op("Mul", super().embeddings(), seen)


# Readers and several encoders


@good(readers={"unmasked reduction"})
class ReadMean(Small):
    def head(self, x):
        self.outputs.append((self.mean(x, axis=1, keepdims=0), 2))


@good(readers={"unmasked reduction"})
class ReadMax(Small):
    def head(self, x):
        self.outputs.append((self.mean(x, "ReduceMax", axis=1, keepdims=0), 2))


@good(readers={"masked mean"})
class ReadMaskedMax(Small):
    """Where hidden, a number that no maximum takes."""

    def head(self, x):
        hidden = self.op("Equal", self.axes("Unsqueeze", "mask", [2]), self.const(0))
        self.outputs.append(
            (self.mean(self.op("Where", hidden, self.const(-1e9), x), "ReduceMax", axis=1, keepdims=0), 2)
        )


@good(readers={"unmasked reduction"})
class ReadHiddenMax(Small):
    """Where seen, a number that no maximum takes: only hidden rows are read."""

    def head(self, x):
        hidden = self.op("Equal", self.axes("Unsqueeze", "mask", [2]), self.const(0))
        self.outputs.append(
            (self.mean(self.op("Where", hidden, x, self.const(-1e9)), "ReduceMax", axis=1, keepdims=0), 2)
        )


@good(readers={"unmasked reduction"})
class ReadHiddenSum(Small):
    def head(self, x):
        seen = self.op("Cast", self.axes("Unsqueeze", "mask", [2]), to=TensorProto.BOOL)
        self.outputs.append((self.mean(self.op("Where", seen, self.const(0.0), x), "ReduceSum", axis=1, keepdims=0), 2))


@good(readers={"unmasked reduction"})
class ReadByTypes(Small):
    """The mean of the tokens of type 1 is not that of the tokens that are seen."""

    def head(self, x):
        kind = self.op("Cast", self.axes("Unsqueeze", "types", [2]), to=FLOAT)
        self.outputs.append((self.mean(self.op("Mul", x, kind), "ReduceSum", axis=1, keepdims=0), 2))


@good(skip=False)
class ReadAttention(Small):
    """Attention pooling without a mask."""

    def head(self, x):
        shares = self.op("Softmax", self.linear(x, self.hidden, 1), axis=1)
        self.outputs.append((self.mean(self.op("Mul", x, shares), "ReduceSum", axis=1, keepdims=0), 2))


@good(skip=False)
class ReadLast(Small):
    def head(self, x):
        self.outputs.append((self.op("Gather", x, self.const(-1), axis=1), 2))


@good(skip=False, outputs=0)
class ReadFirstSequence(Small):
    """The first of the batch, not the first of each."""

    def head(self, x):
        row = self.op("Gather", x, self.const(0), axis=0)
        self.outputs.append((self.op("Tanh", self.linear(row, self.hidden, self.hidden)), 2))


@good(skip=False, outputs=0)
class ReadFirstColumn(Small):
    def head(self, x):
        self.outputs.append((self.op("Gather", x, self.const(0), axis=2), 2))


@good(skip=False)
class ReadNeighbours(Small):
    """Every position with the next one."""

    def head(self, x):
        later = self.op("Slice", x, self.const([1]), self.const([1 << 40]), self.const([1]))
        earlier = self.op("Slice", x, self.const([0]), self.const([-1]), self.const([1]))
        self.outputs.append((self.op("Add", later, earlier), 3))


@good(skip=False, mask="lengths")
class ReadLengths(Small):
    """The mask only counts: what is seen are the first so many; the mean is over the mask's own ones."""

    def additive(self):
        if self.masked is None:
            count = self.mean("mask", "ReduceSum", axis=1, keepdims=1)
            places = self.op("Range", self.const(0), self.shape("ids", 1), self.const(1))
            hidden = self.op("Cast", self.op("GreaterOrEqual", places, count), to=FLOAT)
            self.masked = self.op("Mul", self.axes("Unsqueeze", hidden, [1, 2]), self.const(-10000.0))
        return self.masked

    def head(self, x):
        seen = self.op("Cast", self.axes("Unsqueeze", "mask", [2]), to=FLOAT)
        self.outputs.append((self.mean(self.op("Mul", x, seen), "ReduceSum", axis=1, keepdims=0), 2))


@good(layers=2, skip=False, inner_taps=1)
class TapInside(Small):
    """Someone reads what comes out of an attention."""

    def attention(self, x):
        y = super().attention(x)
        if self.number == 1:
            self.tapped = y
        return y

    def head(self, x):
        self.outputs += [(x, 3), (self.tapped, 3)]


@good(layers=2, taps=1)
class TapBetween(Small):
    def layer(self, x):
        if self.number == 1:
            self.tapped = x
        return super().layer(x)

    def head(self, x):
        self.outputs += [(x, 3), (self.tapped, 3)]


@good(encoders=2)
class TwoInSequence(Small):
    """Another encoder of another width reads the first one's rows."""

    def stack(self, x):
        x = super().stack(x)
        x = self.linear(x, 24, 16)
        self.hidden, self.heads, self.inner = 16, 2, 20
        return super().stack(self.normed(x))


@good(encoders=1, whole=False, skip=False)
class OneOfTwo(Small):
    """The second layer is none: its values are made of something else."""

    def layer(self, x):
        self.before = getattr(self, "before", None)
        y = super().layer(x)
        self.before = x
        return y

    def projections(self, x):
        query, key, value = super().projections(x)
        if self.number == 1:
            _, _, value = super().projections(self.before)
        return query, key, value


@good(encoders=2)
class OtherMaskBetween(Small):
    """The second layer hides nothing."""

    def mask(self, scores):
        return super().mask(scores) if self.number == 0 else scores


@good(encoders=2)
class TwoBranches(Small):
    """Two layers read the same rows."""

    def stack(self, x):
        self.number = 0
        return self.op("Concat", self.layer(x), self.layer(x), axis=-1)

    def head(self, x):
        self.outputs.append((x, 3))


@bad("mask")
class Truncated(Small):
    """What enters the first layer are the first 40 positions; short texts do not show it."""

    def embeddings(self):
        x = super().embeddings()
        return self.op("Slice", x, self.const([0]), self.const([40]), self.const([1]))

    def additive(self):
        if self.masked is None:
            cut = self.op("Slice", "mask", self.const([0]), self.const([40]), self.const([1]))
            hidden = self.op("Sub", self.const(1.0), self.op("Cast", cut, to=FLOAT))
            self.masked = self.op("Mul", self.axes("Unsqueeze", hidden, [1, 2]), self.const(-10000.0))
        return self.masked


@good(whole=False)
class Reversed(Small):
    """The rows enter the first layer last one first, in a slice that keeps the shape; the mask does not."""

    def embeddings(self):
        steps = (self.const([-1]), self.const([-(1 << 40)]), self.const([1]), self.const([-1]))
        return self.op("Slice", super().embeddings(), *steps)


@bad("")
class ReversedInside(Small):
    """Values are turned round before they are averaged."""

    def projections(self, x):
        query, key, value = super().projections(x)
        steps = (self.const([-1]), self.const([-(1 << 40)]), self.const([2]), self.const([-1]))
        return query, key, self.op("Slice", value, *steps)


@good(skip=False, whole=False)
class ReadNormAlong(Small):
    """A LayerNorm along the positions, of which there are as many as the model says."""

    length = 9

    def head(self, x):
        turned = self.op("Transpose", x, perm=[0, 2, 1])
        self.outputs.append((self.op("Transpose", self.normed(turned, 9), perm=[0, 2, 1]), 3))
