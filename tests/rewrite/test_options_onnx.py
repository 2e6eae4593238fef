"""The options of optimize for ONNX models: halves, a settled length, what tools see of the result, and what is told."""

import json

import numpy as np
import onnx
import pytest
import zoo
from onnx import TensorProto, helper, numpy_helper

import fusebert
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.onnxruntime import session
from fusebert.source import OnnxFile
from fusebert.values.target import TARGETS as KINDS
from fusebert.verbs import fused

TARGETS = ("onnxruntime", "stock-onnxruntime")
EAGER = "onnx-bert-14-eager"


def declared(path, part: str) -> dict:
    """Element type and sizes of what a file declares."""
    values = getattr(onnx.load(path).graph, part)
    return {
        v.name: (v.type.tensor_type.elem_type, [d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim])
        for v in values
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "name", [EAGER, "onnx-bert-dynamo-sdpa", "onnx-roberta-sequence", "onnx-distilbert", "tf2onnx-bert",
             "tf2onnx-tf1-one-hot", "ort-fused-bert", "onnx-pair"],
)  # fmt: skip
def test_halves_for_any_exporter(name, target, tmp_path):
    """ONNX Runtime loads and runs it, answers are within the tolerance of 16 bits, and nothing changes for callers."""
    path = zoo.get(name).make()
    report = fusebert.optimize(path, tmp_path / "out.onnx", "fp32", target, float16=True)
    assert report.facts["verdict"] == "same answers within tolerance"
    assert max(row["worst_error"] for row in report.data()["differences"]) < 0.01
    for part in ("input", "output"):
        before, after = (declared(p, part) for p in (path, tmp_path / "out.onnx"))
        assert {n: kind for n, (kind, _) in after.items()} == {n: before[n][0] for n in after}
    weights = fusebert.read(tmp_path / "out.onnx").weights.values()
    assert not [w for w in weights if w.dtype == "float32" and len(w.shape) > 1]
    assert report.facts["bytes_after"] < 0.75 * report.facts["bytes_before"]


def test_halves_around_int8(tmp_path):
    report = fusebert.optimize(zoo.get(EAGER).make(), tmp_path / "out.onnx", "int8", float16=True)
    assert report.facts["verdict"] == "same answers within tolerance"


def test_softmax_stays_in_floats(tmp_path):
    fusebert.optimize(zoo.get("tf2onnx-tf1-one-hot").make(), tmp_path / "out.onnx", "fp32", float16=True)
    graph = fusebert.read(tmp_path / "out.onnx")
    softmax = next(node for node in graph.nodes if node.op == "Softmax")
    maker = next(node for node in graph.nodes if softmax.inputs[0] in node.outputs)
    assert (maker.op, maker.attributes) == ("Cast", {"to": TensorProto.FLOAT})


def test_what_is_too_large_for_a_half_is_clamped_and_counted(tmp_path):
    model = onnx.load(zoo.get(EAGER).make())
    bias = next(t for t in model.graph.initializer if t.name.endswith("pooler.dense.bias"))
    numbers = numpy_helper.to_array(bias).copy()
    numbers[:3] = 1e6, -1e6, 1e-20
    bias.CopyFrom(numpy_helper.from_array(numbers, bias.name))
    onnx.save(model, tmp_path / "large.onnx")
    report = fusebert.optimize(tmp_path / "large.onnx", tmp_path / "out.onnx", "fp32", float16=True)
    assert "2 numbers were too large for 16 bits and became the largest that fits." in report.notes
    stored = fusebert.read(tmp_path / "out.onnx").weights[bias.name].read()
    assert stored[:3].tolist() == [65504, -65504, 0]


def test_halves_are_refused_where_a_node_has_a_graph_of_its_own(tmp_path):
    model = onnx.load(zoo.get(EAGER).make())
    output = model.graph.output[0]
    node = next(node for node in model.graph.node if output.name in node.output)
    node.output[0] = "before"
    branch = helper.make_graph([helper.make_node("Identity", ["before"], ["inside"])], "branch", [], [
        helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)
    ])  # fmt: skip
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    place = list(model.graph.node).index(node)
    model.graph.node.insert(
        place + 1, helper.make_node("If", ["yes"], [output.name], "branching", then_branch=branch, else_branch=branch)
    )
    onnx.save(model, tmp_path / "if.onnx")
    fusebert.optimize(tmp_path / "if.onnx", tmp_path / "out.onnx", "fp32")
    with pytest.raises(UnsupportedError, match="branching has a graph of its own"):
        fusebert.optimize(tmp_path / "if.onnx", tmp_path / "halves.onnx", "fp32", float16=True)
    assert not (tmp_path / "halves.onnx").exists()


@pytest.mark.parametrize("target", TARGETS)
def test_a_length_is_settled_and_checked(target, tmp_path):
    path = zoo.get(EAGER).make()
    report = fusebert.optimize(path, tmp_path / "out.onnx", "fp32", target, length=8)
    assert "The sequence length is 8, which a model insists on." in report.notes
    assert {tuple(sizes) for _, sizes in declared(tmp_path / "out.onnx", "input").values()} == {("batch", 8)}
    assert declared(tmp_path / "out.onnx", "output")["last_hidden_state"][1] == ["batch", 8, 24]
    running = session(tmp_path / "out.onnx")
    feeds = {given.name: np.ones((2, 9), np.int64) for given in running.get_inputs()}
    with pytest.raises(Exception, match="Got: 9 Expected: 8"):
        running.run(None, feeds)
    with pytest.raises(FusebertError, match="up to 40 tokens, not 41"):
        fusebert.optimize(path, tmp_path / "no.onnx", "fp32", target, length=41)
    with pytest.raises(FusebertError, match="has 6 tokens, not 8"):
        fusebert.optimize(zoo.get("onnx-bert-17-static").make(), tmp_path / "no.onnx", "fp32", target, length=8)
    assert [file.name for file in tmp_path.iterdir()] == ["out.onnx"]


def test_options_of_onnx_are_refused_elsewhere(tmp_path):
    with pytest.raises(FusebertError, match="'float16' is for onnxruntime and stock-onnxruntime, not for standalone"):
        fusebert.optimize(zoo.get(EAGER).make(), tmp_path / "out", "fp32", "standalone", float16=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [("onnx-bert-sequence", ["batch", "length", 24]), ("onnx-bert-17-static", [2, 6, 24]),
     ("onnx-bert-1-input", ["batch", "length", 24]), ("tf2onnx-tf1", [0, 24])],
)  # fmt: skip
def test_tools_see_the_shape_of_what_encoders_make(name, sizes, target, tmp_path):
    """They cannot infer it for operators that they do not know."""
    kind = KINDS[target]
    rewritten = fused.REWRITERS[kind](OnnxFile(zoo.get(name).make()), tmp_path / "out.onnx", kind())
    types = declared(tmp_path / "out.onnx", "value_info") | declared(tmp_path / "out.onnx", "output")
    assert types[rewritten.cuts[0].outputs[0]] == (TensorProto.FLOAT, sizes)
    onnx.shape_inference.infer_shapes(onnx.load(tmp_path / "out.onnx"), strict_mode=True)


def test_verbose_tells_where_encoders_are_and_what_became_of_the_nodes(run, tmp_path):
    path = zoo.get(EAGER).make()
    words = ("optimize", path, "-o", tmp_path / "out.onnx", "--precision", "fp32", "--json")
    plain, full = json.loads(run(*words)), json.loads(run(*words, "--overwrite", "--verbose"))
    assert set(full) - set(plain) == {"places", "nodes"}
    assert full["places"][0]["activation"] == "gelu_erf"
    assert {row["operation"]: (row["before"], row["after"]) for row in full["nodes"]}["fusebert.Encoder"] == (0, 1)
    assert json.loads(run(*words, "--overwrite", "--float16", "--sequence-length", 8))["notes"]
    planned = json.loads(run(*words, "--dry-run", "--verbose", "--overwrite"))
    assert "places" in planned
    assert "nodes" not in planned


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("target", TARGETS)
def test_an_invalid_result_is_never_put_in_place(target, verify, tmp_path, monkeypatch):
    """ONNX's checker, and where nothing is compared ONNX Runtime, see the file before anybody else does."""
    rewriter = fused.REWRITERS[KINDS[target]]

    def wrong(source, out, wanted):
        rewritten = rewriter(source, out, wanted)
        model = onnx.load(out)
        model.graph.node[-1].input[0] = "nobody makes this"
        onnx.save(model, out)
        return rewritten

    monkeypatch.setitem(fused.REWRITERS, KINDS[target], wrong)
    with pytest.raises(FusebertError, match="not a valid ONNX model"):
        fusebert.optimize(zoo.get(EAGER).make(), tmp_path / "out.onnx", "fp32", target, verify=verify)
    assert not list(tmp_path.iterdir())


def test_without_comparing_it_is_loaded_all_the_same(tmp_path, monkeypatch):
    def wrong(source, out, wanted):
        rewritten = fused.rewrite_onnx(source, out, wanted)
        model = onnx.load(out)
        encoder = next(node for node in model.graph.node if node.op_type == "Encoder")
        next(a for a in encoder.attribute if a.name == "activation").s = b"nonsense"
        onnx.save(model, out)
        return rewritten

    monkeypatch.setitem(fused.REWRITERS, KINDS["onnxruntime"], wrong)
    with pytest.raises(FusebertError, match="nonsense"):
        fusebert.optimize(zoo.get(EAGER).make(), tmp_path / "out.onnx", "fp32", verify=False)
    assert not list(tmp_path.iterdir())
