"""The ONNX reader: real exporters' files in, nodes and numbers as the onnx library sees them; broken files refused."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
import stock
from damage import damage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import fusebert
from fusebert.errors import FusebertError
from fusebert.formats.onnx import read as reader
from fusebert.formats.onnx.edit import write_repaired
from fusebert.formats.protobuf.wire import CUT, cut
from fusebert.match import translate
from fusebert.ops.graph import Graph, Weight
from fusebert.ops.vocabulary import evaluate


def small(**changes):
    """x @ W + b with W large enough to be cut out of the message."""
    weight = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    graph = helper.make_graph(
        changes.get(
            "nodes",
            [helper.make_node("MatMul", ["x", "W"], ["y"]), helper.make_node("Add", ["y", "b"], ["z"], name="sum")],
        ),
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 40])],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, ["batch", 30])],
        changes.get("weights", [numpy_helper.from_array(weight, "W"), numpy_helper.from_array(weight[0], "b")]),
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", changes.get("opset", 17))], producer_name="test"
    )


def save(model, folder, name="model.onnx", **more):
    onnx.save_model(model, folder / name, **more)
    return folder / name


def assert_same(graph: Graph, model: onnx.ModelProto) -> None:
    constants = {n.output[0]: n.attribute[0].t for n in model.graph.node if n.op_type == "Constant"}
    tensors = {**{t.name: t for t in model.graph.initializer}, **constants}
    assert graph.weights.keys() == tensors.keys()
    for name, tensor in tensors.items():
        want = numpy_helper.to_array(tensor)
        weight = graph.weights[name]
        assert (weight.shape, weight.dtype) == (want.shape, want.dtype.name)
        assert np.array_equal(weight.read(), want)
    nodes = [n for n in model.graph.node if n.op_type != "Constant"]
    assert [(n.name, n.inputs, n.outputs) for n in graph.nodes] == [
        (n.name, tuple(n.input), tuple(n.output)) for n in nodes
    ]
    for ours, theirs in zip(graph.nodes, nodes, strict=True):
        assert ours.op == (f"{theirs.domain}.{theirs.op_type}" if theirs.domain else theirs.op_type)
        for attribute in theirs.attribute:
            value = helper.get_attribute_value(attribute)
            if isinstance(value, (int, float)):
                assert ours.attributes[attribute.name] == value
            elif attribute.type == onnx.AttributeProto.INTS:
                assert ours.attributes[attribute.name] == tuple(value)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A BERT from torch's exporter."""
    import torch

    folder = tmp_path_factory.mktemp("exported")
    model = stock.load(stock.make(folder / "checkpoint", "bert"))

    class Positional(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, ids, mask):
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    ids = torch.ones(2, 7, dtype=torch.long)
    axes = {"input_ids": {0: "batch", 1: "length"}, "attention_mask": {0: "batch", 1: "length"}}
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["hidden"], "dynamic_axes": axes}
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Positional(), (ids, ids), folder / "model.onnx", opset_version=17, dynamo=False, **names)
    return folder / "model.onnx"


def test_an_exported_bert_is_read_as_the_onnx_library_reads_it(exported):
    graph = fusebert.read(exported)
    assert_same(graph, onnx.load(exported))
    assert graph.inputs == ("input_ids", "attention_mask")
    assert graph.types["input_ids"].shape == ("batch", "length")
    assert graph.facts["format"] == "onnx"
    assert graph.facts["producer"].startswith("pytorch")


def test_every_element_type_raw_and_listed(tmp_path):
    kinds = [TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.INT8]
    kinds += [TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.INT32, TensorProto.INT64]
    kinds += [TensorProto.UINT32, TensorProto.UINT64, TensorProto.BOOL]
    weights = []
    for kind in kinds:
        values = np.array([0, 1, 1, 0, 1, 1]).astype(helper.tensor_dtype_to_np_dtype(kind))
        weights.append(helper.make_tensor(f"raw{kind}", kind, (2, 3), values.tobytes(), raw=True))
        weights.append(helper.make_tensor(f"listed{kind}", kind, (6,), [0, 1, 1, 0, 1, 1]))
    model = small(weights=[*weights, *small().graph.initializer])
    assert_same(fusebert.read(save(model, tmp_path)), model)


def test_constants_subgraphs_and_functions(tmp_path):
    then = helper.make_graph(
        [helper.make_node("Neg", ["y"], ["t"])], "then", [], [helper.make_tensor_value_info("t", 1, None)]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.float32(2))),
        helper.make_node("Constant", [], ["k"], value_ints=[1, 2]),
        helper.make_node("MatMul", ["x", "W"], ["y"]),
        helper.make_node("Cast", ["c"], ["truth"], to=TensorProto.BOOL),
        helper.make_node("If", ["truth"], ["i"], then_branch=then, else_branch=then),
        helper.make_node("Twice", ["i"], ["j"], domain="own"),
        helper.make_node("Add", ["j", "b"], ["z"]),
    ]
    model = small(nodes=nodes)
    twice = helper.make_function(
        "own", "Twice", ["a"], ["d"], [helper.make_node("Add", ["a", "a"], ["d"])], model.opset_import
    )
    model.functions.append(twice)
    graph = fusebert.read(save(model, tmp_path))
    assert graph.weights["c"].read() == 2
    assert graph.weights["k"].read().tolist() == [1, 2]
    branch = next(n for n in graph.nodes if n.op == "If").attributes["then_branch"]
    assert branch.nodes[0].inputs == ("y",)
    assert graph.functions["own.Twice"].nodes[0].op == "Add"
    assert any(n.op == "own.Twice" for n in graph.nodes)


def test_nodes_in_any_order_are_read_in_one_that_works(tmp_path):
    """As ONNX Runtime does. Weights inside a node come along, and a branch that reads what a later node makes."""
    inner = [helper.make_node("Add", ["y", "y"], ["h"]), helper.make_node("Neg", ["h"], ["n"])]
    branch = helper.make_graph(inner, "branch", [], [helper.make_tensor_value_info("n", TensorProto.FLOAT, None)])
    table = numpy_helper.from_array(np.random.default_rng(1).normal(size=(30,)).astype(np.float32))
    nodes = [
        helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch),
        helper.make_node("Mul", ["product", "c"], ["y"]),
        helper.make_node("Constant", [], ["c"], value=table),
        helper.make_node("MatMul", ["x", "W"], ["product"]),
    ]
    yes = numpy_helper.from_array(np.array(True), "yes")
    model = small(nodes=nodes, weights=[yes, small().graph.initializer[0]])
    model.ir_version = 8
    graph = fusebert.read(path := save(model, tmp_path))
    assert [node.op for node in graph.nodes] == ["MatMul", "Mul", "If"]
    x = np.random.default_rng(2).normal(size=(2, 40)).astype(np.float32)
    from onnxruntime import InferenceSession

    (want,) = InferenceSession(model.SerializeToString()).run(None, {"x": x})
    write_repaired(reader.parse(path), tmp_path / "sorted.onnx")
    onnx.checker.check_model(tmp_path / "sorted.onnx")
    for got in (
        evaluate(translate(graph), {"x": x})["z"],
        InferenceSession(tmp_path / "sorted.onnx").run(None, {"x": x})[0],
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5)


def test_external_data_comes_from_the_models_folder_only(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    path = save(small(), inside, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert_same(fusebert.read(path), onnx.load(path))
    (tmp_path / "secret").write_bytes(bytes(10000))
    (inside / "link.bin").symlink_to(tmp_path / "secret")
    for location in ("../secret", str(tmp_path / "secret"), "link.bin", "", "missing.bin"):
        model = onnx.load(path, load_external_data=False)
        for tensor in model.graph.initializer:
            next(e for e in tensor.external_data if e.key == "location").value = location
        (inside / "bad.onnx").write_bytes(model.SerializeToString())
        with pytest.raises(FusebertError, match="external data"):
            fusebert.read(inside / "bad.onnx")
    model = onnx.load(path, load_external_data=False)
    for key, value in (("offset", "999999"), ("length", "4"), ("offset", "-8"), ("offset", "x")):
        changed = onnx.ModelProto.FromString(model.SerializeToString())
        entry = changed.graph.initializer[0].external_data.add()
        entry.key, entry.value = key, value
        (inside / "bad.onnx").write_bytes(changed.SerializeToString())
        with pytest.raises(FusebertError, match=r"(initializer|tensor) W"):
            fusebert.read(inside / "bad.onnx")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda m: m.graph.node[1].input.append("nowhere"), "node sum .Add. reads 'nowhere'"),
        (lambda m: m.graph.node[1].output.append("y"), "makes 'y', which is there already"),
        (lambda m: m.graph.node[0].input.append("z"), "MatMul. depends on its own result: the graph has a cycle"),
        (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "twice"),
        (lambda m: m.graph.initializer[0].dims.append(2), "4800 bytes"),
        (lambda m: m.graph.initializer[0].dims.__setitem__(0, -1), "impossible shape"),
        (lambda m: m.graph.initializer[1].dims.__setitem__(0, 1 << 62), "impossible shape"),
        (lambda m: m.graph.initializer[1].__setattr__("data_type", 99), "element type 99"),
        (lambda m: m.opset_import[0].__setattr__("version", 6), "opset 6 is too old"),
        (lambda m: m.ClearField("graph"), "no graph"),
        (lambda m: m.graph.sparse_initializer.add(), "sparse"),
    ],
)
def test_a_broken_model_is_refused_in_a_sentence(tmp_path, change, sentence):
    model = small()
    change(model)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(FusebertError, match=sentence) as refused:
        fusebert.read(tmp_path / "model.onnx")
    assert str(tmp_path / "model.onnx") in str(refused.value)


def test_other_files_are_refused(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"")
    (tmp_path / "text.onnx").write_text("hello")
    for path in (tmp_path, tmp_path / "nothing", tmp_path / "model.onnx", tmp_path / "text.onnx"):
        with pytest.raises(FusebertError):
            fusebert.read(path)


@settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(tmp_path, data):
    path = tmp_path / "damaged.onnx"
    path.unlink(missing_ok=True)  # a new file each time: the old one may still be mapped
    path.write_bytes(data.draw(damage(small().SerializeToString())))
    try:
        graph = fusebert.read(path)
    except FusebertError:
        return
    for weight in graph.weights.values():
        assert weight.read().shape == weight.shape


def test_deeply_nested_messages_are_refused():
    grammar = {"A": {1: "A", 2: CUT}}
    data = b"\x12\x00" * 600
    for _ in range(150):
        length = len(data)
        prefix = b"\x0a" + bytes([length & 127 | 128, length >> 7 & 127 | 128, length >> 14])
        data = prefix + data
    with pytest.raises(FusebertError, match="deep"):
        cut(memoryview(data), grammar, "A")


def test_what_is_not_described_is_kept():
    model = small()
    model.doc_string, model.model_version = "kept", 7
    model.graph.node[0].doc_string = "kept too"
    model.graph.node[0].attribute.append(helper.make_attribute("zero", 0))
    ours = reader._messages()["Model"].FromString(model.SerializeToString())
    again = onnx.ModelProto.FromString(ours.SerializeToString())
    assert again == model


@pytest.mark.parametrize("order", ["import onnx, fusebert", "import fusebert, onnx"])
def test_it_lives_beside_the_onnx_library(tmp_path, order):
    path = save(small(), tmp_path)
    code = f"{order}; print(len(fusebert.read({str(path)!r}).nodes), onnx.load({str(path)!r}).graph.node[0].op_type)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "2 MatMul"
    )


def test_reading_leaves_the_weights_in_the_file(tmp_path):
    weight = np.zeros((4096, 8192), np.float32)  # 128 MB
    model = small(weights=[numpy_helper.from_array(weight, "W"), numpy_helper.from_array(weight[0], "b")])
    path = save(model, tmp_path)
    code = (
        "import resource, fusebert, google.protobuf.message_factory\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"graph = fusebert.read({str(path)!r})\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, graph.weights['W'].shape)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split(
        maxsplit=1
    )
    assert int(out[0]) < 30  # megabytes
    assert out[1].strip() == "(4096, 8192)"


def test_inspect_shows_a_graph(exported):
    from fusebert.verbs.inspect import inspect

    report = inspect(exported).data()
    assert report["format"] == "onnx"
    assert report["inputs"] == ["input_ids int64[batchxlength]", "attention_mask int64[batchxlength]"]
    assert [(e["layers"], e["mask"], e["where"]) for e in report["encoders"]] == [(3, "rows", "main graph")]
    assert report["misses"] == []
    assert {part["part"] for part in report["rest"]} >= {"before the encoder", "mask"}


def test_a_weight_can_be_made_from_an_array():
    weight = Weight.of(np.ones((2, 3), np.float16))
    assert (weight.shape, weight.dtype) == ((2, 3), "float16")
    assert weight.read().all()


def test_large_weights_are_there_though_the_file_is_gone(tmp_path):
    """They are mapped when they are asked for, each by itself; what was read is what was there then."""
    array = np.arange(1 << 19, dtype=np.float32)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")
    stored = [numpy_helper.from_array(array, "w")]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], stored)
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    weight = fusebert.read(tmp_path / "model.onnx").weights["w"]
    assert np.array_equal(weight.read(), array)
    assert not weight.read().flags.writeable  # so it is the file, not a copy
    (tmp_path / "other").write_bytes(bytes(1 << 22))
    (tmp_path / "other").rename(tmp_path / "model.onnx")
    assert np.array_equal(weight.read(), array)
    (tmp_path / "model.onnx").unlink()
    assert np.array_equal(weight.read(), array)
