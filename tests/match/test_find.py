"""The finder on every exporter's output: the right encoders, with reasons for what is refused; what was raised computes
what the framework computes, and the stand-alone model gives the framework's answers."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import zoo

import fusebert
from fusebert.engine.model import Model
from fusebert.errors import UnsupportedError
from fusebert.match import EACH, FIRST, MASKED, SCORE, UNMASKED, Finding, assemble, beyond_bert_layers
from fusebert.ops.graph import Graph, Weight
from fusebert.ops.vocabulary import evaluate
from fusebert.values.plan import make_plan

GOOD = [name for name, entry in zoo.ZOO.items() if not entry.refused]
FORMS = ("pre_norm", "rms_norm", "relative positions")  # beyond BERT's, which stock kernels do not carry
OTHER = [name for name, entry in zoo.ZOO.items() if entry.refused in FORMS and name != "refuse-vit"]
ALONE = [*OTHER, "strange-turned"]  # of which the second layer is pre-norm
REFUSED = [name for name, entry in zoo.ZOO.items() if entry.refused and name not in OTHER]
WHOLE = [n for n in GOOD if len(zoo.ZOO[n].encoders) == 1 and not zoo.ZOO[n].stops and n != "onnx-own-native"]
READERS = {"positions": EACH, "first": FIRST, "masked_mean": MASKED, "mean": UNMASKED}


@cache
def found(name: str) -> Finding:
    entry = zoo.get(name)
    graph = fusebert.read(entry.make())  # a frozen graph does not say what its outputs are
    return fusebert.find(replace(graph, outputs=tuple(entry.output_tensors.values())))


def error(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    return float(np.abs(got.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-9))


@pytest.mark.parametrize("name", GOOD)
def test_finds_exactly_the_right_encoders(name):
    entry, finding = zoo.get(name), found(name)
    assert bool(finding.misses) == bool(entry.stops)
    assert entry.stops in " ".join(map(str, finding.misses))
    assert len(finding.encoders) == len(entry.encoders)
    for have, want in zip(finding.encoders, entry.encoders, strict=True):
        sizes = len(have.layers), have.hidden, have.heads, have.inner, have.activation
        assert sizes == (want.layers, want.hidden, want.heads, want.inner, want.activation)
        assert have.epsilon == pytest.approx(want.epsilon, rel=1e-6)
        assert have.scale == pytest.approx((want.hidden // want.heads) ** -0.5, rel=1e-3)
        assert not have.inner_taps
        for weights in have.weights:
            assert {"attention.query.weight", "feed_forward.down.weight"} <= set(weights)
            assert {name for name in weights if name.startswith("feed_forward.") and name.endswith(".gain")}
            assert all(source.name for source in weights.values())


@pytest.mark.parametrize("name", GOOD)
def test_says_where_the_mask_is(name):
    entry = zoo.get(name)
    masks = {found_.mask.tensor for found_ in found(name).encoders}
    if entry.mask is None:
        assert masks == {""}
    else:
        assert entry.input_tensors.get(entry.mask, entry.mask) in masks


@pytest.mark.parametrize("name", [name for name in GOOD if zoo.ZOO[name].readers])
def test_says_who_reads_the_output(name):
    entry = zoo.get(name)
    wanted = {READERS[kind] for kind in entry.readers}
    if "question" in name:
        wanted = {SCORE}
    for found_ in found(name).encoders:
        assert wanted <= set(found_.readers) | {MASKED}
        skips = found_.may_skip or found_.shows_hidden
        assert skips == (entry.mask is not None and not {SCORE, UNMASKED} & set(found_.readers))
        assert found_.may_skip == (entry.mask is not None and not {EACH, SCORE, UNMASKED} & set(found_.readers))


@pytest.mark.parametrize("name", list(zoo.ZOO))
def test_what_was_raised_computes_what_the_framework_computes(name):
    entry, finding = zoo.get(name), found(name)
    if name == "refuse-vit":
        pytest.skip("a convolution has no meaning in NumPy here")
    for kind in entry.kinds[:1] if entry.refused else entry.kinds:  # who sees nothing differs, docs/masks.md
        feeds = {entry.input_tensors[key]: value for key, value in entry.inputs(kind).items()}
        answers = evaluate(finding.raised.graph, feeds)
        places = list(entry.output_tensors)
        for key, want in entry.outputs(kind).items():
            have = answers[finding.raised.graph.outputs[places.index(key)]]
            assert error(have, want) <= entry.tolerance, (kind, key)


@pytest.mark.parametrize("name", WHOLE)
def test_the_stand_alone_model_gives_the_frameworks_answers(name):
    entry = zoo.get(name)
    whole = assemble(found(name))
    model = Model(whole.network, make_plan("fp32", len(whole.network.encoder.blocks)))
    outputs = list(entry.output_tensors)
    for kind in entry.kinds:
        given = entry.inputs(kind)
        feeds = [given[key] if key else None for key in (entry.ids, entry.mask, entry.types)]
        got = model.run(*feeds, padding="compute", output_hidden_states=True)
        if (hidden := entry.hidden(kind)) is not None:
            assert error(np.stack(got["hidden_states"]), hidden) <= entry.tolerance, kind
        for mine, (place, after) in whole.outputs.items():
            if not after:
                assert error(got[mine], entry.outputs(kind)[outputs[place]]) <= entry.tolerance, (kind, mine)
        assert whole.outputs or hidden is not None or whole.omitted


@pytest.mark.parametrize("name", ALONE)
def test_a_form_beyond_berts_is_found(name):
    entry, finding = zoo.get(name), found(name)
    (encoder,) = finding.encoders
    assert not finding.misses
    assert beyond_bert_layers(encoder)
    if name == "refuse-native-pre-norm":
        with pytest.raises(UnsupportedError, match="embeddings that are not supported"):
            assemble(finding)
        return
    whole = assemble(finding)
    model = Model(whole.network, make_plan("fp32", len(whole.network.encoder.blocks)))
    for kind in entry.kinds:
        given = entry.inputs(kind)
        feeds = [given[key] if key else None for key in (entry.ids, entry.mask, entry.types)]
        got = model.run(*feeds, padding="compute")
        assert whole.outputs
        for mine, (place, _) in whole.outputs.items():
            assert error(got[mine], entry.outputs(kind)[list(entry.output_tensors)[place]]) <= entry.tolerance, kind


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_reason(name):
    entry, finding = zoo.get(name), found(name)
    words = {
        "causal": ("causal",),
        "relative": ("relative keys: products of activations with positions",),
        "disentangled": ("disentangled attention or relative keys: products of activations with positions",),
        "pre_norm": ("unsupported operator",),
        "nothing": ("none in this graph",),
    }[entry.refused]
    assert not finding.encoders
    assert finding.misses
    assert any(word in str(finding.misses[0]) for word in words)
    with pytest.raises(UnsupportedError, match="no encoder was found"):
        assemble(finding)


def test_inner_layers_that_are_read_are_taps():
    assert found("onnx-bert-taps").encoders[0].taps == ("hidden_1", "hidden_2")
    assert len(found("tf-official").encoders[0].taps) == 2


def test_two_calls_of_one_function_are_one_encoder():
    graph = fusebert.read(zoo.get("tf-official-erf").make())
    assert [encoder.calls for encoder in fusebert.find(graph).encoders] == [2]


def test_two_encoders_are_not_one_model():
    with pytest.raises(UnsupportedError, match="2 encoders"):
        assemble(found("onnx-pair"))


def test_an_eight_bit_graph_says_so():
    assert found("int8-dynamic-bert").raised.quantized
    assert any(part.kind == "rounding" for part in assemble(found("int8-qdq-bert")).omitted)


def test_a_size_that_is_baked_in_is_told():
    assert found("onnx-own-native").raised.fixed_sizes == {1: 7}


def test_copies_that_no_signature_reaches_are_found_when_asked_for():
    from fusebert.verbs.inspect import inspect

    path = zoo.get("tf-bert-keras").make()
    assert len(inspect(path).data()["encoders"]) == 1
    copies = inspect(path, everywhere=True).data()["elsewhere"]
    assert len(copies) >= 2
    assert {(copy["layers"], copy["hidden"], copy["mask"]) for copy in copies} == {(3, 24, "rows")}


@pytest.mark.parametrize(
    "name", ["onnx-bert-dynamo-sdpa", "tf-bert", "tf-official", "int8-dynamic-bert", "ort-fused-bert"]
)
def test_weights_are_not_read(name):
    read = []

    def counted(tensor: str, weight: Weight) -> Weight:
        def numbers() -> np.ndarray:
            read.append(tensor)
            return weight.read()

        return replace(weight, read=numbers)

    def watched(graph: Graph) -> Graph:
        functions = {key: watched(body) for key, body in graph.functions.items()}
        return replace(graph, weights={n: counted(n, w) for n, w in graph.weights.items()}, functions=functions)

    entry = zoo.get(name)
    graph = fusebert.read(entry.make())
    finding = fusebert.find(watched(replace(graph, outputs=tuple(entry.output_tensors.values()))))
    assert finding.encoders
    weights = finding.raised.graph.weights
    large = {source.name for layer in finding.encoders[0].weights for source in layer.values()}
    assert not large.intersection(read)
    assert sum(math.prod(weights[tensor].shape) for tensor in set(read) if tensor in weights) < 4096
