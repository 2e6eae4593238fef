"""Every rule that applies or refuses leaves a row, a mistake in a rule is an error, and a refusal changes nothing."""

import importlib
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
import zoo

import fusebert
from fusebert.match import Finding, translate
from fusebert.ops.graph import Graph, Node, TensorType, Weight

TRANSLATE, LIFT = (importlib.import_module(f"fusebert.match.{name}") for name in ("translate", "lift"))
MODELS = ("onnx-bert-14-eager", "onnx-bert-dynamo-sdpa", "tf-bert", "tf1-frozen", "ort-fused-bert", "int8-dynamic-bert")


def graph_of(*nodes: Node) -> Graph:
    weights = {"shape": Weight.of(np.array([0, -1])), "many": Weight.of(np.ones((2, 3, 4, 5), np.float32))}
    types = {"x": TensorType("float32", ("batch", 4))}
    facts = {"format": "onnx", "opsets": {"ai.onnx": 17}}
    return Graph(nodes, ("x",), (nodes[-1].outputs[0],), weights, types, {}, facts)


def outcome(finding: Finding, node: str) -> dict[str, tuple[str, str]]:
    return {row.stage: (row.result, row.reason) for row in finding.rows if node in row.nodes}


def test_what_applies_and_what_is_refused_leaves_a_row():
    finding = fusebert.find(
        graph_of(
            Node("Relu", ("x",), ("a",), {}, "plain"),
            Node("Gelu", ("a",), ("b",), {"approximate": "cubic"}, "unknown form"),
            Node("Strange", ("b",), ("c",), {}, "unknown operator"),
            Node("Transpose", ("x",), ("d",), {"perm": "sideways"}, "wrong type"),
            Node("Reshape", ("x", "c"), ("e",), {}, "unknown shape"),
            Node("Concat", ("d", "e", "c"), ("f",), {"axis": 0}, "joined"),
        )
    )
    assert outcome(finding, "plain") == {
        "translate": ("relu", ""),
        "lift": ("relu", ""),
        "recognise": ("activation", "relu"),
    }
    assert outcome(finding, "unknown form")["translate"] == ("", "Gelu with approximation cubic is not supported")
    assert outcome(finding, "unknown operator")["translate"] == ("", "unsupported operator")
    assert "perm" in outcome(finding, "wrong type")["translate"][1]
    assert outcome(finding, "unknown shape")["lift"] == ("", "the new shape c is not known")
    assert {row.stage for row in finding.rows} == {"translate", "lift", "recognise"}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_shows_every_step(name):
    finding = fusebert.find(fusebert.read(zoo.get(name).make()))
    applied = {row.stage for row in finding.rows if row.result}
    assert applied >= {"translate", "lift", "match"}
    lifted = {node for row in finding.rows if row.stage == "lift" for node in row.nodes}
    tried = [node for node in finding.translated.nodes if node.op in LIFT._RULES]
    assert {node.name or node.outputs[0] for node in tried} <= lifted
    assert all(row.reason for row in finding.rows if not row.result)
    assert sum(row.rule == "layer" and bool(row.result) for row in finding.rows) == len(finding.encoders[0].layers)
    with pytest.raises(FrozenInstanceError):
        finding.rows[0].result = "other"


def test_a_typo_in_a_translation_is_an_error(monkeypatch):
    monkeypatch.setitem(TRANSLATE._ONNX, "Relu", lambda e, x, **_: e.rellu(x))
    with pytest.raises(AttributeError, match="rellu"):
        translate(graph_of(Node("Relu", ("x",), ("y",))))


def test_a_typo_in_a_lift_is_an_error(monkeypatch):
    monkeypatch.setitem(LIFT._RULES, "relu", lambda lifting, node: lifting.veiw(node.inputs[0]))
    with pytest.raises(AttributeError, match="veiw"):
        fusebert.find(graph_of(Node("Relu", ("x",), ("y",))))


def test_a_rule_that_refuses_leaves_nothing_behind(monkeypatch):
    def rule(e, x, **_):
        from fusebert.match import Refused

        e.relu(e.add(x, e.constant(1.0, "float32")))
        raise Refused("not this one")

    nodes = (Node("Relu", ("x",), ("y",)), Node("Neg", ("y",), ("z",)))
    monkeypatch.setitem(TRANSLATE._ONNX, "Relu", rule)
    translated = translate(graph_of(*nodes))
    assert [node.op for node in translated.nodes] == ["Relu", "neg"]
    assert not translated.weights


def test_a_split_that_cannot_be_followed_is_refused_as_a_whole():
    """The second part is empty; the first must not be taken apart either."""
    sizes = Weight.of(np.array([4, 0]))
    split = Node("Split", ("h", "sizes"), ("a", "b"), {"axis": 1}, "split")
    nodes = (
        Node("MatMul", ("x", "matrix"), ("h",), {}, "product"),
        split,
        Node("Concat", ("b", "a"), ("c",), {"axis": 1}),
    )
    graph = graph_of(*nodes)
    graph = Graph(
        graph.nodes, graph.inputs, graph.outputs, {"sizes": sizes, "matrix": Weight.of(np.eye(4, dtype=np.float32))},
        graph.types, {}, graph.facts,
    )  # fmt: skip
    finding = fusebert.find(graph)
    assert outcome(finding, "split")["lift"][0] == ""
    assert sum("a" in node.outputs for node in finding.raised.graph.nodes) == 1
