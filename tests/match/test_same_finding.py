"""The finding does not depend on how a graph is written down: names, order of nodes and operands, nodes that do
nothing, copies of constants, and the operation that a product is made with."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import zoo
from rewrites import REWRITES, Values, values_of

import fusebert
from fusebert.match import Assembled, Finding, assemble, translate
from fusebert.ops.graph import Graph
from fusebert.ops.vocabulary import evaluate

MODELS = (
    "onnx-bert-14-eager", "onnx-bert-14-sdpa", "onnx-bert-dynamo-sdpa", "onnx-roberta-sequence", "tf-bert",
    "tf1-frozen",
    "tf-official", "tf2onnx-bert", "keras2onnx-bert", "ort-fused-bert",
)  # fmt: skip
MIXES = (  # everything at once, which is where one rewrite hides what another needs
    ("identities", "transposes", "copied", "swapped", "shuffled", "renamed"),
    ("casts", "reshapes", "products together", "shared", "renamed", "shuffled"),
    ("transposes", "products together", "identities", "reshapes", "swapped"),
)


@cache
def original(name: str) -> tuple[Graph, Values, Values]:
    entry = zoo.get(name)
    graph = fusebert.read(entry.make())
    graph = replace(graph, outputs=tuple(entry.output_tensors.values()))
    feeds = {entry.input_tensors[key]: value for key, value in entry.inputs("holes").items()}
    feeds = {name: feeds[name] for name in graph.inputs}
    return graph, feeds, values_of(graph, feeds)


@cache
def found(name: str) -> tuple[dict, Assembled]:
    graph = original(name)[0]
    finding = fusebert.find(graph)
    return told(finding, graph), assemble(finding)


def told(finding: Finding, graph: Graph) -> dict:
    """What a finding says, without names: inputs are places, and weights are what is in them, in any order."""
    assert not finding.misses
    (one,) = finding.encoders
    places = {name: place for place, name in enumerate(graph.inputs)}
    weights = finding.raised.graph.weights
    return {
        "sizes": [(m.bindings["heads"], m.bindings["activation"], m.bindings["scale"]) for m in one.layers],
        "epsilons": [
            (m.bindings["attention.after.epsilon"], m.bindings["feed_forward.after.epsilon"]) for m in one.layers
        ],
        "hidden": one.hidden,
        "mask": (one.mask.kind, places.get(one.mask.tensor), one.mask.hidden_id),
        "readers": set(one.readers),
        "taps": (len(one.taps), len(one.inner_taps)),
        "calls": one.calls,
        "weights": [
            {n: (s.shape, np.sort(weights[s.name].read(), None).tobytes()) for n, s in w.items()} for w in one.weights
        ],
    }


def check(name: str, rewritten: Graph) -> None:
    graph, feeds, values = original(name)
    inputs = dict(zip(rewritten.inputs, (feeds[n] for n in graph.inputs), strict=True))
    answers = evaluate(translate(rewritten), inputs)
    for before, after in zip(graph.outputs, rewritten.outputs, strict=True):
        assert np.abs(answers[after] - values[before]).max() < 1e-4, "the rewrite itself is wrong"
    wanted, whole = found(name)
    finding = fusebert.find(rewritten)
    assert told(finding, rewritten) == wanted
    again = assemble(finding)
    assert again.outputs == whole.outputs
    assert len(again.omitted) == len(whole.omitted)
    same_input = dict(zip(graph.inputs, rewritten.inputs, strict=True))
    assert again.inputs == {role: same_input[tensor] for role, tensor in whole.inputs.items()}
    assert again.network.embeddings.padding_id == whole.network.embeddings.padding_id
    assert again.network.head.kind == whole.network.head.kind
    theirs = dict(again.network.weights())
    for key, weight in whole.network.weights():
        assert np.array_equal(theirs.pop(key), weight), key
    assert not theirs


@pytest.mark.parametrize("rewrite", REWRITES)
@pytest.mark.parametrize("name", MODELS)
def test_a_rewritten_graph_is_the_same_encoder(name, rewrite):
    graph, _, values = original(name)
    rewritten = REWRITES[rewrite](graph, values, np.random.default_rng(7))
    check(name, rewritten)


@pytest.mark.parametrize("mix", MIXES, ids=" ".join)
@pytest.mark.parametrize("name", MODELS)
def test_rewritten_in_many_ways_it_is_still_the_same(name, mix):
    graph, feeds, _ = original(name)
    random = np.random.default_rng(len(name))
    for rewrite in mix:
        given = dict(zip(graph.inputs, feeds.values(), strict=True))
        graph = REWRITES[rewrite](graph, values_of(graph, given), random)
    check(name, graph)
