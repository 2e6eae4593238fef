"""The blocks that a graph is shown in: every node is in its place, whatever exporter wrote the graph."""

from collections import Counter

import pytest
import zoo

from fusebert.explore import Shown

NAMES = ("onnx-bert-14-eager", "onnx-bert-dynamo-sdpa", "onnx-distilbert-sdpa", "tf-bert-sequence", "tf1-frozen")


@pytest.mark.parametrize("name", NAMES)
def test_layers_stand_in_the_encoder_and_their_nodes_in_their_blocks(name):
    data = Shown(zoo.get(name).make()).data
    groups = data["groups"]
    encoders = [i for i, one in enumerate(groups) if one["kind"] == "encoder"]
    layers = [i for i, one in enumerate(groups) if one["kind"] == "layer"]
    assert len(encoders) == 1
    assert len(layers) == data["encoders"][0]["layers"]
    assert {groups[i]["parent"] for i in layers} == {encoders[0]}

    def around(place):
        while place >= 0:
            yield place
            place = groups[place]["parent"]

    inside = Counter(place for node in data["nodes"] for place in around(node["group"]))
    assert all(inside[i] > 5 for i in layers)
    sizes = [inside[i] for i in layers[1:]]
    assert max(sizes) - min(sizes) <= 2  # but for the first, which may hold what all share
    softmaxes = [node for node in data["nodes"] if node["op"] == "Softmax"]
    assert {groups[place]["kind"] for node in softmaxes for place in around(node["group"])} >= {"attention", "layer"}


def test_a_graph_without_an_encoder_is_divided_by_its_names():
    data = Shown(zoo.get("refuse-gpt2").make()).data
    assert not data["encoders"]
    assert {one["kind"] for one in data["groups"]} == {"scope"}
    assert len(data["groups"]) > 3


def test_shapes_have_the_names_of_what_decides_them():
    data = Shown(zoo.get("onnx-bert-14-eager").make()).data
    told = {one["name"]: (one["dtype"], one["shape"]) for one in data["tensors"]}
    assert told["input_ids"] == ("int64", ["batch", "length"])
    assert told[data["encoders"][0]["output"]] == ("float32", ["batch", "length", 24])
