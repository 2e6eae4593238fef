"""Every rule that applies or refuses leaves a row, a mistake in a rule is an error, and a refusal changes nothing."""

import importlib
from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import zoo

import fusebert
from fusebert.errors import InternalError
from fusebert.match import Finding, Refused, axes, translate
from fusebert.match.lift.state import Lifting
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
    lifted = {node for row in finding.rows if row.stage == "lift" or row.rule == "unround" for node in row.nodes}
    tried = [node for node in finding.translated.nodes if node.op in LIFT._RULES]
    assert {node.name or node.outputs[0] for node in tried} <= lifted
    assert all(row.reason for row in finding.rows if not row.result)
    assert sum(row.result == "block" for row in finding.rows) == 2 * len(finding.encoders[0].layers)
    with pytest.raises(FrozenInstanceError):
        finding.rows[0].result = "other"


def test_a_typo_in_a_translation_is_an_error(monkeypatch):
    monkeypatch.setitem(TRANSLATE._ONNX, "Relu", lambda e, x, **_: e.rellu(x))
    with pytest.raises(AttributeError, match="rellu"):
        translate(graph_of(Node("Relu", ("x",), ("y",))))


def test_a_typo_in_a_lift_is_an_error(monkeypatch):
    monkeypatch.setitem(LIFT._RULES, "relu", lambda lifting, node: lifting.veiw(node.inputs[0]))
    with pytest.raises(InternalError, match="veiw"):
        fusebert.find(graph_of(Node("Relu", ("x",), ("y",))))


def test_a_rule_that_refuses_leaves_nothing_behind(monkeypatch):
    def rule(e, x, **_):
        e.relu(e.add(x, e.constant(1.0, "float32")))
        raise Refused("not this one")

    nodes = (Node("Relu", ("x",), ("y",)), Node("Neg", ("y",), ("z",)))
    monkeypatch.setitem(TRANSLATE._ONNX, "Relu", rule)
    translated = translate(graph_of(*nodes))
    assert [node.op for node in translated.nodes] == ["Relu", "neg"]
    assert not translated.weights


def state(lifting: Lifting) -> dict[str, object]:
    """All that a rule may change, with what is known of every axis."""
    held = {f.name: getattr(lifting, f.name) for f in fields(lifting)}
    copied = {name: value.copy() if hasattr(value, "copy") else value for name, value in held.items()}
    for found in (*lifting.dims.values(), *(view.dims for view in lifting.views.values())):
        for axis in (axis for group in found for axis in group):
            copied[f"axis {id(axis)}"] = axes.atoms([axis])
    return copied


@pytest.mark.parametrize("name", [*MODELS, "refuse-vit", "refuse-t5", "refuse-gpt2", "int8-qdq-bert"])
def test_a_lift_that_is_refused_changes_nothing(name, monkeypatch):
    """The sizes that a reshape asks for are noted, and numbers that were asked for are kept: both are true anyway."""
    before: list[dict[str, object]] = []
    refused: list[str] = []

    def fold(self: Lifting, node: Node) -> bool:
        for tensor in node.inputs:
            self.view(tensor)
        before[:] = [state(self)]
        return fold_(self, node)

    def keep(self: Lifting, node: Node) -> None:
        if node.op in LIFT._RULES and node.op != "quantize":
            refused.append(node.op)
            now = state(self)
            apart = {"fixed_sizes", "arrays", "_kept"}
            assert all(now.get(key) == value for key, value in before[0].items() if key not in apart), node
        keep_(self, node)

    fold_, keep_ = Lifting.fold, Lifting.keep
    monkeypatch.setattr(Lifting, "fold", fold)
    monkeypatch.setattr(Lifting, "keep", keep)
    entry = zoo.get(name)
    fusebert.find(replace(fusebert.read(entry.make()), outputs=tuple(entry.output_tensors.values())))
    assert refused or name in MODELS


def test_axes_that_were_taken_for_each_other_are_not_when_the_rule_refuses():
    first, second = axes.fresh([(3, 5), (7, 11)]), axes.fresh([(6, 10), (7, 11)])

    def rule() -> None:
        assert axes.same(first[1], second[1])
        assert second[0][0].split((3, 5))
        assert axes.atoms(second[1]) == first[1]
        raise Refused("the first dimensions differ")

    with pytest.raises(Refused), axes.undone_if_raised():
        rule()
    assert axes.settled(second) == second
    assert axes.settled(first) == first


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
