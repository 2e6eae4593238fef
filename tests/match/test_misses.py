"""What is told where a layer, or a whole graph, does not match: beside encoders that were found too, in words that name
the thing for what it is, at the node where the search stopped."""

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper
from small import Small
from test_assemble import Biased, Gated, PreNormed, Summed, saved

import fusebert
from fusebert.errors import UnsupportedError
from fusebert.verbs.inspect import inspect


@pytest.mark.parametrize(
    ("variant", "layers", "words"),
    [
        (Biased, 1, "numbers are added to the scores that are not a mask"),
        (Gated, 2, "expected linear as part of post-norm gated feed-forward, found activation"),
        (Summed, 2, "expected linear as part of post-norm attention, found"),
        (PreNormed, 2, "expected a feed-forward block that reads this attention"),
    ],
)
def test_what_did_not_match_is_told_beside_what_was_found(variant, layers, words, tmp_path):
    path = saved(variant, tmp_path)
    finding = fusebert.find(fusebert.read(path))
    assert [len(found.layers) for found in finding.encoders] == [layers]
    assert words in " | ".join(map(str, finding.misses))
    names = {node.name for node in onnx.load(path).graph.node}
    told = inspect(path).data()["misses"]
    assert told
    assert {miss["node"] for miss in told} <= names


def test_a_head_that_is_no_layer_is_no_miss():
    finding = fusebert.find(fusebert.read(zoo.get("onnx-bert-masked").make()))
    assert finding.encoders
    assert not finding.misses


class Chosen(Small):
    """An operator chooses while the model runs which context it is."""

    inputs = ("ids", "mask", "types", "flag")

    def attention(self, x):
        query, key, value = self.projections(x)
        context = self.op("MatMul", self.softmax(self.mask(self.scores(query, key))), value)
        kind = [helper.make_tensor_value_info("chosen", TensorProto.FLOAT, None)]
        same = helper.make_graph([helper.make_node("Identity", [context], ["chosen"])], "same", [], kind)
        less = helper.make_graph([helper.make_node("Neg", [context], ["chosen"])], "less", [], kind)
        flag = self.op("Cast", self.op("ReduceMax", "flag", keepdims=0), to=TensorProto.BOOL)
        context = self.op("If", flag, then_branch=same, else_branch=less)
        return self.linear(self.merge(context), self.hidden, self.hidden)


def test_a_branch_is_named(tmp_path):
    path = saved(Chosen, tmp_path)
    with pytest.raises(UnsupportedError, match="If, whose branch is chosen while the model runs"):
        fusebert.load(path)


class Trained(Small):
    """Exported while it was training."""

    def attention(self, x):
        return self.op("Dropout", super().attention(x), self.const(0.1), self.const(True))


def test_a_dropout_that_is_on_is_named(tmp_path):
    with pytest.raises(UnsupportedError, match=r"Dropout, which is on, .* export the model after `model.eval\(\)`"):
        fusebert.load(saved(Trained, tmp_path))


class WrongBias(Small):
    def linear(self, x, inputs, outputs):
        wide = outputs + (1 if (inputs, self.number) == (self.inner, 1) else 0)
        return self.op("Add", self.op("MatMul", x, self.weight(inputs, outputs)), self.weight(wide))


class WrongWeight(Small):
    def feed(self, x):
        return self.linear(self.activation(self.linear(x, self.hidden, self.inner)), self.inner - 1, self.hidden)


class WrongHeads(Small):
    def merge(self, x):
        context = self.op("Transpose", x, perm=[0, 2, 1, 3])
        return self.op("Reshape", context, self.const([0, 0, self.hidden + 1]))


class WrongMask(Small):
    length, mask_shape = 12, ("batch", 11)


@pytest.mark.parametrize("variant", [WrongBias, WrongWeight, WrongHeads, WrongMask])
def test_a_graph_that_contradicts_itself_is_refused_in_those_words(variant, tmp_path):
    path = saved(variant, tmp_path)
    misses = [str(miss) for miss in fusebert.find(fusebert.read(path)).misses]
    assert "the graph contradicts itself" in misses[0]
    assert misses[0].startswith("at node node_")
    with pytest.raises(UnsupportedError, match="contradicts itself"):
        fusebert.load(path)


def test_a_size_that_only_some_inputs_have_is_no_contradiction(tmp_path):
    class Fixed(Small):
        """A table of nine positions is added as it is."""

        def positions(self):
            return self.weight(9, self.hidden)

    path = saved(Fixed, tmp_path)
    finding = fusebert.find(fusebert.read(path))
    assert [len(found.layers) for found in finding.encoders] == [2]
    assert not finding.misses
    assert finding.raised.fixed_sizes == {1: 9}
    model = fusebert.load(path)
    ids = np.arange(9).reshape(1, 9)
    from onnxruntime import InferenceSession

    (want,) = InferenceSession(path).run(None, {"ids": ids, "mask": np.ones_like(ids), "types": np.zeros_like(ids)})
    np.testing.assert_allclose(model.run(ids)["last_hidden_state"], want, atol=1e-5)


@pytest.mark.parametrize("batch", [1, "batch"])
def test_a_fixed_length_of_one_is_the_reason(batch, tmp_path):
    """A softmax over one token is 1 whatever goes in, so nothing shows that it is attention."""

    class OneToken(Small):
        pass

    OneToken.batch, OneToken.length = batch, 1
    path = saved(OneToken, tmp_path)
    (miss,) = fusebert.find(fusebert.read(path)).misses
    assert "a fixed length of 1, where a softmax is always 1 and shows nothing" in str(miss)
    with pytest.raises(UnsupportedError, match="export it with more tokens"):
        fusebert.load(path)
