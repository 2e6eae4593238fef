"""A block form is an entry in a list: what is found of it, and the form that came nearest where nothing is."""

from collections import Counter
from dataclasses import replace

import pytest
import zoo
from small import Small, judge

import fusebert
from fusebert.match import Finding, read_encoder
from fusebert.match.patterns import FORMS, patterns
from fusebert.values.blocks import Attention, FeedForward, Norm


def found(name: str) -> Finding:
    entry = zoo.get(name)
    return fusebert.find(replace(fusebert.read(entry.make()), outputs=tuple(entry.output_tensors.values())))


@pytest.fixture
def forms(monkeypatch):
    """Gives more forms to the finder, for one test."""

    def add(**more):
        for name, block in more.items():
            monkeypatch.setitem(FORMS, name.replace("_", " "), block)
        patterns.cache_clear()

    yield add
    monkeypatch.undo()
    patterns.cache_clear()


def norm(path: str) -> Norm:
    return Norm(f"{path}.gain", f"{path}.bias", f"{path}.epsilon")


def branch_norm() -> dict:
    attention, feed_forward = FORMS["post-norm attention"], FORMS["post-norm feed-forward"]
    return {
        "branch_attention": replace(attention, branch=norm("attention.branch"), after=None),
        "branch_feed_forward": replace(feed_forward, branch=norm("feed_forward.branch"), after=None),
    }


class BranchNormed(Small):
    """What is added to the residual is normalised, and nothing else."""

    def layer(self, x: str) -> str:
        x = self.residual(x, self.normed(self.attention(x)))
        return self.residual(x, self.normed(self.feed(x)))


def test_every_block_of_a_layer_has_its_form():
    (encoder,) = found("onnx-bert-14-eager").encoders
    assert {tuple(block.form for block in layer.blocks) for layer in encoder.layers} == {
        ("post-norm attention", "post-norm feed-forward")
    }
    for layer in encoder.layers:
        attention, feed_forward = layer.blocks
        assert feed_forward.bindings["x"] == attention.output
        assert layer.bindings["x"] == attention.bindings["x"]
        assert "attention.query.weight" in attention.bindings
        assert "attention.query.weight" not in feed_forward.bindings


def test_each_block_is_matched_once():
    finding = found("onnx-bert-14-eager")
    layers = len(finding.encoders[0].layers)
    rows = Counter(row.rule for row in finding.rows if row.stage == "match" and row.result == "block")
    assert rows == {"post-norm attention": layers, "post-norm feed-forward": layers}


def test_a_form_more_is_an_entry_more(forms, tmp_path):
    """Blocks with a norm of what they add: with their forms in the list, they are found and read."""
    assert not judge(BranchNormed(), tmp_path).encoders
    forms(**branch_norm())
    finding = judge(BranchNormed(), tmp_path)
    (encoder,) = finding.encoders
    read = read_encoder(finding.raised, encoder)
    assert [type(block.body) for block in read.blocks] == [Attention, FeedForward] * len(encoder.layers)
    assert all(block.branch is not None and block.after is None for block in read.blocks)


class Gated(Small):
    """activation(gate x) * up x"""

    def feed(self, x: str) -> str:
        gate = self.activation(self.linear(x, self.hidden, self.inner))
        return self.linear(self.op("Mul", gate, self.linear(x, self.hidden, self.inner)), self.inner, self.hidden)


class GatedRight(Gated):
    """The same with the factors the other way round."""

    def op(self, word: str, *inputs: str, **attributes) -> str:
        return super().op(word, *(inputs[::-1] if word == "Mul" else inputs), **attributes)


class GatedTwice(Gated):
    """Both factors are bent."""

    def feed(self, x: str) -> str:
        gate, up = (self.activation(self.linear(x, self.hidden, self.inner)) for _ in range(2))
        return self.linear(self.op("Mul", gate, up), self.inner, self.hidden)


@pytest.mark.parametrize("variant", [Gated, GatedRight])
def test_a_gated_form_is_found_whatever_the_order_of_its_factors(variant, tmp_path):
    (encoder,) = judge(variant(), tmp_path).encoders
    assert [layer.blocks[1].form for layer in encoder.layers] == ["post-norm gated feed-forward"] * Small.layers


def test_a_miss_names_the_form_that_came_nearest(tmp_path):
    finding = judge(GatedTwice(), tmp_path)
    assert {miss.form for miss in finding.misses} == {"post-norm gated feed-forward"}
    assert "expected linear as part of post-norm gated feed-forward, found activation" in str(finding.misses[0])
    assert {miss.form for miss in found("refuse-bert-relative").misses} == {"post-norm attention"}


class LoneAttention(Small):
    """A block of attention follows the last layer."""

    def stack(self, x: str) -> str:
        x = super().stack(x)
        return self.normed(self.residual(x, self.attention(x)))


def test_an_attention_without_feed_forward_is_no_layer(tmp_path):
    finding = judge(LoneAttention(), tmp_path)
    (encoder,) = finding.encoders
    assert len(encoder.layers) == Small.layers
    assert (
        finding.unmatched[finding.raised.graph.outputs[0]].expected == "a feed-forward block that reads this attention"
    )
