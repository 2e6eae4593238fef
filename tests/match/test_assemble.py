"""A stand-alone model makes what its graph makes. The first layers of an encoder whose later layers are not matched do
not pass for the whole; what else is left out is told."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import zoo
from small import POSITIONS, Small

import fusebert
from fusebert.errors import UnsupportedError
from fusebert.measure.compare import compare


class Biased(Small):
    """From the second layer on, the scores get a bias by the key's position."""

    layers = 3

    def mask(self, scores):
        scores = super().mask(scores)
        if self.number == 0:
            return scores
        places = self.op("Range", self.const(0), self.shape("ids", 1), self.const(1))
        bias = self.op("Transpose", self.op("Gather", self.weight(POSITIONS, self.heads, size=1), places), perm=[1, 0])
        return self.op("Add", scores, self.axes("Unsqueeze", bias, [0, 2]))


class BiasedClassifier(Biased):
    def head(self, x):
        self.outputs.append((self.linear(self.op("Gather", x, self.const(0), axis=1), self.hidden, 3), 2))


class Gated(Small):
    """The last layer's feed-forward part has a gate, and both factors are bent."""

    layers = 3

    def feed(self, x):
        if self.number < 2:
            return super().feed(x)
        gate, up = (self.linear(x, self.hidden, self.inner) for _ in range(2))
        return self.linear(self.op("Mul", self.activation(gate), self.activation(up)), self.inner, self.hidden)


class GatedTapped(Gated):
    """What comes out of the matched layers is an output too, but not the last."""

    def layer(self, x):
        self.tapped = x
        return super().layer(x)

    def head(self, x):
        self.outputs += [(self.tapped, 3), (x, 3)]


class Summed(Small):
    """The last layer has sums of positions instead of attention."""

    layers = 3

    def attention(self, x):
        return super().attention(x) if self.number < 2 else self.op("CumSum", x, self.const(1))


class PreNormed(Small):
    """The last layer normalises what goes in, and nothing comes after its sum."""

    layers = 3

    def layer(self, x):
        if self.number < 2:
            return super().layer(x)
        return self.residual(x, self.attention(self.normed(x)))


class Pooled(Small):
    def head(self, x):
        self.outputs.append((self.mean(x, axis=1, keepdims=0), 2))


class RowsAndPooled(Pooled):
    def head(self, x):
        self.outputs.append((x, 3))
        super().head(x)


class Softmaxed(Small):
    def head(self, x):
        first = self.op("Gather", x, self.const(0), axis=1)
        self.outputs.append((self.op("Softmax", self.linear(first, self.hidden, 3), axis=-1), 2))


def saved(variant: type[Small], folder: Path) -> Path:
    onnx.save(variant().build(), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize(
    ("variant", "where"),
    [
        (Biased, r"1 layer\(s\).*numbers are added to the scores"),
        (BiasedClassifier, r"1 layer\(s\).*numbers are added to the scores"),
        (Gated, r"2 layer\(s\).*expected linear as part of post-norm gated feed-forward, found activation"),
        (GatedTapped, r"2 layer\(s\).*expected linear as part of post-norm gated feed-forward, found activation"),
        (Summed, r"2 layer\(s\).*expected linear as part of post-norm attention, found"),
        (PreNormed, r"2 layer\(s\)"),
    ],
)
def test_the_first_layers_do_not_pass_for_the_whole(variant, where, tmp_path):
    path = saved(variant, tmp_path)
    for head in (None, "none"):
        with pytest.raises(UnsupportedError, match=f"only the first part of the model was found.*{where}"):
            fusebert.load(path, head=head)
    with pytest.raises(UnsupportedError, match="only the first part"):
        fusebert.optimize(path, tmp_path / "out", "fp32", "standalone")
    assert not (tmp_path / "out").exists()


def test_the_matched_layer_is_still_replaced_where_the_others_stay(tmp_path):
    path = saved(Biased, tmp_path)
    report = fusebert.optimize(path, tmp_path / "fast.onnx", "fp32", "onnxruntime")
    assert report.data()["encoders"][0]["layers"] == 1
    assert compare(path, tmp_path / "fast.onnx", samples=4, sequence_length=16).same


def test_rows_pass_for_no_other_output_unless_they_are_asked_for(tmp_path):
    path = saved(Pooled, tmp_path)
    with pytest.raises(UnsupportedError, match=r"not made of linear maps of the encoder's rows.*ask for head 'none'"):
        fusebert.load(path)
    model = fusebert.load(path, head="none")
    ids = np.arange(6).reshape(1, 6)
    feeds = {"ids": ids, "mask": np.ones_like(ids), "types": np.zeros_like(ids)}
    from onnxruntime import InferenceSession

    (want,) = InferenceSession(path).run(None, feeds)
    np.testing.assert_allclose(model.run(ids)["last_hidden_state"].mean(1), want, atol=1e-5)


def test_an_output_beside_the_main_one_is_left_out_only_if_that_is_asked_for(tmp_path):
    path = saved(RowsAndPooled, tmp_path)
    told = r"not made of linear maps.*after 2 layer\(s\); ask for head 'none' to get the others without it"
    for make in (fusebert.load, lambda path: fusebert.optimize(path, tmp_path / "out", "fp32", "standalone")):
        with pytest.raises(UnsupportedError, match=told):
            make(path)
    assert not (tmp_path / "out").exists()
    model = fusebert.load(path, head="none")
    assert len(model.left_out) == 1
    assert "is not made of linear maps" in model.left_out[0]


def test_outputs_that_others_contain_are_not_missing():
    for name, told in (
        ("tf-official", ["the same as another one", "rows of layers"]), ("tf-bert-taps", ["rows of layers"]),
        ("tf2onnx-keras", ["the first row of the others"]), ("keras-own", ["another call of the same function"]),
    ):  # fmt: skip
        left_out = fusebert.load(zoo.get(name).make()).left_out
        for words in told:
            assert any(words in one for one in left_out), (name, left_out)


def test_the_first_row_alone_is_not_the_rows():
    with pytest.raises(UnsupportedError, match="ask for head 'none' to get the encoder's rows instead"):
        fusebert.load(zoo.get("onnx-bert-first").make())


def test_a_head_is_compared_with_its_graph_also_before_a_softmax_and_not_if_it_is_not_asked_for(tmp_path):
    path = saved(Softmaxed, tmp_path)
    for head, output in ((None, "logits"), ("none", "encoder")):
        report = fusebert.optimize(path, tmp_path / "out", "fp32", "standalone", head=head, overwrite=True).data()
        (row,) = report["original_graph"]
        assert row["output"] == output
        assert row["worst_error"] < 1e-5
        assert row["judged_as"] == ("vector" if head else "classes")
