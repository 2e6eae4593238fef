"""A block form is an entry in a list: what is found of it, and the form that came nearest where nothing is."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
import zoo
from small import Small, judge

import fusebert
from fusebert.match import Finding, read_encoder
from fusebert.match.patterns import FORMS, patterns
from fusebert.ops.vocabulary import evaluate
from fusebert.values.blocks import Attention, FeedForward, Norm
from fusebert.values.forms import reference


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


def pre_norm() -> dict:
    attention, feed_forward = FORMS["post-norm attention"], FORMS["post-norm feed-forward"]
    return {
        "pre_attention": replace(attention, before=norm("attention.before"), after=None),
        "pre_feed_forward": replace(feed_forward, before=norm("feed_forward.before"), after=None),
    }


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


def test_a_form_more_is_an_entry_more(forms):
    """Blocks with a norm before them, and none after: with their forms in the list, they are found and read."""
    name = "refuse-own-pre-norm"
    assert not found(name).encoders
    forms(**pre_norm())
    finding, entry = found(name), zoo.get(name)
    (encoder,) = finding.encoders
    read = read_encoder(finding.raised, encoder)
    assert [type(block.body) for block in read.blocks] == [Attention, FeedForward] * len(encoder.layers)
    assert all(block.before is not None and block.after is None for block in read.blocks)
    feeds = {entry.input_tensors[key]: value for key, value in entry.inputs("full").items()}
    graph = replace(finding.raised.graph, outputs=(encoder.input, encoder.output))
    values = evaluate(graph, feeds)
    assert np.abs(reference(read, values[encoder.input]) - values[encoder.output]).max() < 1e-5


class Gated(Small):
    """activation(gate x) * up x"""

    def feed(self, x: str) -> str:
        gate = self.activation(self.linear(x, self.hidden, self.inner))
        return self.linear(self.op("Mul", gate, self.linear(x, self.hidden, self.inner)), self.inner, self.hidden)


class GatedRight(Gated):
    """The same with the factors the other way round."""

    def op(self, word: str, *inputs: str, **attributes) -> str:
        return super().op(word, *(inputs[::-1] if word == "Mul" else inputs), **attributes)


@pytest.mark.parametrize("variant", [Gated, GatedRight])
def test_a_gated_form_is_found_whatever_the_order_of_its_factors(variant, forms, tmp_path):
    post = FORMS["post-norm feed-forward"]
    gate = type(post.body.up)("feed_forward.gate.weight", "feed_forward.gate.bias")
    forms(gated=replace(post, body=replace(post.body, gate=gate)))
    onnx.save(variant().build(), tmp_path / "gated.onnx")
    finding = fusebert.find(fusebert.read(tmp_path / "gated.onnx"))
    (encoder,) = finding.encoders
    assert [layer.blocks[1].form for layer in encoder.layers] == ["gated"] * Small.layers


def test_a_miss_names_the_form_that_came_nearest(tmp_path):
    finding = judge(Gated(), tmp_path)
    assert {miss.form for miss in finding.misses} == {"post-norm feed-forward"}
    assert "expected activation as part of post-norm feed-forward, found mul" in str(finding.misses[0])
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
    assert finding.unmatched[finding.raised.graph.outputs[0]].expected == "post-norm feed-forward"
