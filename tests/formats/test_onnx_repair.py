"""Models that were valid once are read, run, compared and optimised as if they still were; what is unsure stays."""

import numpy as np
import onnx
import onnxruntime
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper

import fusebert
from fusebert.measure.bench import bench
from fusebert.measure.compare import compare


def age(source, out):
    """The model as exporters wrote it years ago: scalars in Concat, int32 among the int64 of Slice."""
    model = onnx.load(source)
    graph, stored = model.graph, {tensor.name: tensor for tensor in model.graph.initializer}
    stored |= {node.output[0]: node.attribute[0].t for node in graph.node if node.op_type == "Constant"}
    maker = {name: node for node in graph.node for name in node.output}
    aged = {"Concat": 0, "Slice": 0}
    constant = 0
    for node in list(graph.node):
        if node.op_type == "Concat":
            for i, name in enumerate(node.input):
                made = maker.get(name)
                if made is not None and made.op_type == "Unsqueeze":
                    node.input[i] = made.input[0]
                    aged["Concat"] += 1
                elif name in stored and list(stored[name].dims) == [1]:
                    scalar = numpy_helper.from_array(numpy_helper.to_array(stored[name])[0], f"scalar_{constant}")
                    constant += 1
                    graph.initializer.append(scalar)
                    node.input[i] = scalar.name
        if node.op_type == "Slice" and node.input[1] in stored:
            small = numpy_helper.from_array(
                numpy_helper.to_array(stored[node.input[1]]).astype(np.int32), f"{node.name}.int32"
            )
            graph.initializer.append(small)
            node.input[1] = small.name
            aged["Slice"] += 1
    onnx.save(model, out)
    assert min(constant, *aged.values())
    with pytest.raises(Exception, match=r"Concat|Slice"):
        onnxruntime.InferenceSession(out)
    return out


@pytest.fixture
def aged(tmp_path):
    return age(zoo.get("onnx4-bert-11-eager").make(), tmp_path / "aged.onnx")


def test_the_graph_is_read_as_it_was_meant(aged):
    graph = fusebert.read(aged)
    assert [sentence.split(" (")[0] for sentence in graph.facts["repairs"]] == [
        "Repaired, since ONNX Runtime would not load it: scalars that are joined became rows of one number",
        "Repaired, since ONNX Runtime would not load it: int32 became int64, as beside",
    ]
    assert len(fusebert.find(graph).encoders) == 1


@pytest.mark.parametrize("target", ["onnxruntime", "stock-onnxruntime"])
def test_it_is_optimised_and_proven(aged, target, tmp_path):
    report = fusebert.optimize(aged, tmp_path / "out.onnx", "fp32", target)
    assert report.facts["verdict"] == "same answers within tolerance"
    assert any("Slice" in note for note in report.notes)
    assert compare(zoo.get("onnx4-bert-11-eager").make(), tmp_path / "out.onnx").same


def test_it_can_be_compared_and_timed(aged):
    found = compare(aged, zoo.get("onnx4-bert-11-eager").make(), samples=4)
    assert found.same
    assert any("Concat" in note for note in found.notes)
    report = bench([aged], (1,), (8,), samples=1, test_times=1)
    assert any("Concat" in note for note in report.notes)
    assert [path.name for path in aged.parent.iterdir() if path.suffix == ".onnx"] == ["aged.onnx"]


def test_nothing_else_is_touched():
    for name in ("onnx-bert-11-eager", "onnx-bert-dynamo-sdpa", "tf2onnx-bert", "keras2onnx-bert"):
        assert "repairs" not in fusebert.read(zoo.get(name).make()).facts


def test_what_could_mean_two_things_stays(tmp_path):
    """A Concat of an input whose rank is not declared, and a Slice by int32 only, which is valid."""
    nodes = [
        helper.make_node("Concat", ["x", "one"], ["joined"], axis=0),
        helper.make_node("Slice", ["joined", "start", "end"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.INT64, None)
    stored = [
        numpy_helper.from_array(np.array(value, kind), name)
        for name, value, kind in (("one", [1], "int64"), ("start", [0], "int32"), ("end", [1], "int32"))
    ]
    made = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    model = helper.make_model(
        helper.make_graph(nodes, "g", [given], [made], stored), opset_imports=[helper.make_opsetid("", 11)]
    )
    onnx.save(model, tmp_path / "model.onnx")
    graph = fusebert.read(tmp_path / "model.onnx")
    assert "repairs" not in graph.facts
    assert [node.op for node in graph.nodes] == ["Concat", "Slice"]
