"""The TensorFlow readers: SavedModels and frozen graphs in, nodes and numbers as TensorFlow has them; else refused."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from damage import damage, replaced
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fusebert
from fusebert.errors import FusebertError
from fusebert.formats import tensorflow as reader
from fusebert.formats.tf_bundle import Bundle

MAKE = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import numpy as np, tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2
folder = sys.argv[1]
random = np.random.default_rng(0)

class Two(tf.Module):
    def __init__(self):
        self.kernel = tf.Variable(random.normal(size=(40, 30)).astype("f"), name="dense/kernel")
        self.bias = tf.Variable(random.normal(size=30).astype("f"), name="dense/bias")
        self.steps = tf.Variable(7, dtype=tf.int64, name="steps")
    @tf.function(input_signature=[tf.TensorSpec([None, 40], tf.float32, name="x")])
    def __call__(self, x):
        return {"y": self.inner(x) * tf.constant(2.0)}
    @tf.function
    def inner(self, x):
        return tf.nn.relu(tf.matmul(x, self.kernel) + self.bias)

two = Two()
tf.saved_model.save(two, folder + "/saved2", signatures=two.__call__)
frozen = convert_variables_to_constants_v2(two.__call__.get_concrete_function())
graph_def = frozen.graph.as_graph_def()
tf.io.write_graph(graph_def, folder, "frozen.pb", as_text=False)
tf.io.write_graph(graph_def, folder, "frozen.pbtxt", as_text=True)
np.savez(folder + "/two.npz", kernel=two.kernel.numpy(), bias=two.bias.numpy())

v1 = tf.compat.v1
with v1.Graph().as_default(), v1.Session() as session:
    x = v1.placeholder(tf.float32, [None, 40], "x")
    with v1.variable_scope("bert/dense", use_resource=False):
        kernel = v1.get_variable("kernel", [40, 30]); bias = v1.get_variable("bias", [30])
    y = tf.identity(tf.matmul(x, kernel) + bias, "y")
    session.run(v1.global_variables_initializer())
    v1.saved_model.simple_save(session, folder + "/saved1", {"x": x}, {"y": y})
    np.savez(folder + "/one.npz", kernel=session.run(kernel), bias=session.run(bias))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tensorflow")
    subprocess.run([sys.executable, "-c", MAKE, str(folder)], check=True, capture_output=True)
    return folder


def words(graph):
    return [node.word for node in graph.nodes]


def test_a_tensorflow_2_saved_model_with_its_functions_and_variables(made):
    graph, want = fusebert.read(made / "saved2"), np.load(made / "two.npz")
    handles = {n.attributes["shared_name"]: n.outputs[0] for n in graph.nodes if n.word == "VarHandleOp"}
    assert np.array_equal(graph.weights[handles["dense/kernel"]].read(), want["kernel"])
    assert np.array_equal(graph.weights[handles["dense/bias"]].read(), want["bias"])
    assert graph.weights[handles["steps"]].read() == 7
    assert graph.inputs == ("serving_default_x:0",)
    assert graph.types["serving_default_x:0"].shape == (None, 40)
    bodies = [f for f in graph.functions.values() if "MatMul" in words(f)]
    assert bodies
    product = next(n for n in bodies[0].nodes if n.word == "MatMul")
    assert not product.attributes.get("transpose_b", False)
    assert product.outputs == (f"{product.name}:product:0",)
    calls = {
        n.attributes["f"]
        for g in (graph, *graph.functions.values())
        for n in g.nodes
        if n.word.endswith("PartitionedCall")
    }
    assert calls <= graph.functions.keys()
    assert graph.facts["signatures"]


def test_a_tensorflow_1_saved_model(made):
    graph, want = fusebert.read(made / "saved1"), np.load(made / "one.npz")
    assert np.array_equal(graph.weights["bert/dense/kernel:0"].read(), want["kernel"])
    assert graph.inputs == ("x:0",)
    assert graph.outputs == ("y:0",)
    assert any(n.name == "bert/dense/kernel/read" and n.inputs == ("bert/dense/kernel:0",) for n in graph.nodes)


@pytest.mark.parametrize("name", ["frozen.pb", "frozen.pbtxt"])
def test_a_frozen_graph_binary_and_text(made, name):
    graph, want = fusebert.read(made / name), np.load(made / "two.npz")
    found = [w for w in graph.weights.values() if w.shape == (40, 30)]
    assert np.array_equal(found[0].read(), want["kernel"])
    assert graph.inputs == ("x:0",)
    everywhere = [*words(graph), *(w for f in graph.functions.values() for w in words(f))]
    assert "MatMul" in everywhere


def test_constants_of_every_form_and_type(tmp_path):
    code = """
import sys, tensorflow as tf, numpy as np
graph = tf.compat.v1.GraphDef()
wanted = {}
for kind in "float32 float64 float16 bfloat16 int8 uint8 int16 uint16 int32 int64 uint32 uint64 bool".split():
    dtype = getattr(tf, kind)
    for form, values in (("one", [[1]]), ("same", [[1, 1], [1, 1]]), ("many", [[0, 1, 1], [1, 0, 1]])):
        node = graph.node.add(name=f"{kind}_{form}", op="Const")
        array = np.array(values).astype(dtype.as_numpy_dtype)
        node.attr["dtype"].type = dtype.as_datatype_enum
        node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(array, dtype))
        wanted[node.name] = array.astype(np.float64)
node = graph.node.add(name="filled", op="Const")
node.attr["value"].tensor.dtype = 1
for size in (3, 4):
    node.attr["value"].tensor.tensor_shape.dim.add(size=size)
node.attr["value"].tensor.float_val.extend([5.0, 6.0])
wanted["filled"] = np.array([5.0] + [6.0] * 11).reshape(3, 4)
open(sys.argv[1] + "/consts.pb", "wb").write(graph.SerializeToString())
np.savez(sys.argv[1] + "/consts.npz", **wanted)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, capture_output=True)
    graph, want = fusebert.read(tmp_path / "consts.pb"), np.load(tmp_path / "consts.npz")
    for name in want.files:
        weight = graph.weights[f"{name}:0"]
        assert weight.shape == want[name].shape
        assert np.array_equal(weight.read().astype(np.float64), want[name]), name


def frozen_message(made):
    return reader._messages()["GraphDef"].FromString((made / "frozen.pb").read_bytes())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda g: g.node.add(name="late", op="Neg", input=["nowhere"]), "late .Neg. reads 'nowhere'"),
        (lambda g: g.node.append(g.node[0]), "same name"),
        (lambda g: g.node.add(name="empty", op="Const"), "empty .Const. has no value"),
        (lambda g: g.library.function.extend([g.library.function.add(), g.library.function[0]]), "twice"),
    ],
)
def test_a_broken_graph_is_refused_in_a_sentence(made, tmp_path, change, sentence):
    graph = frozen_message(made)
    change(graph)
    (tmp_path / "broken.pb").write_bytes(graph.SerializeToString())
    with pytest.raises(FusebertError, match=sentence):
        fusebert.read(tmp_path / "broken.pb")


def test_a_huge_shape_with_tiny_content_costs_nothing(made, tmp_path):
    for sizes, refused in (((1 << 30, 1 << 9), False), ((1 << 40, 1 << 20), True), ((-1, 3), True)):
        graph = reader._messages()["GraphDef"]()
        tensor = graph.node.add(name="huge", op="Const").attr.add(key="value").value.tensor
        tensor.dtype = 1
        tensor.float_val.append(1)
        for size in sizes:
            tensor.tensor_shape.dim.add(size=size)
        (tmp_path / "huge.pb").write_bytes(graph.SerializeToString())
        if refused:
            with pytest.raises(FusebertError, match="impossible shape"):
                fusebert.read(tmp_path / "huge.pb")
        else:
            assert fusebert.read(tmp_path / "huge.pb").weights["huge:0"].read().shape == sizes


@pytest.mark.parametrize("name", ["frozen.pb", "saved2/saved_model.pb", "saved2/variables/variables.index"])
@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(made, name, data):
    with replaced(made / name, data.draw(damage((made / name).read_bytes()))):
        try:
            graph = fusebert.read(made / name.split("/")[0])
            for weight in graph.weights.values():
                if weight.dtype != "string" and np.prod(weight.shape, dtype=float) < 1e7:
                    assert weight.read().shape == weight.shape
        except FusebertError:
            pass


def test_a_bundle_with_a_missing_or_short_data_file_is_refused(made, tmp_path):
    shutil.copytree(made / "saved2" / "variables", tmp_path / "variables")
    data = tmp_path / "variables" / "variables.data-00000-of-00001"
    whole = data.read_bytes()
    for content in (b"x", whole[:100], None):
        data.unlink() if content is None else data.write_bytes(content)
        with pytest.raises(FusebertError, match="variables"):
            [w.read() for w in Bundle(tmp_path / "variables" / "variables").by_variable().values()]


def test_what_is_not_described_is_kept_beside_tensorflow(made):
    code = f"""
import fusebert, tensorflow as tf
from fusebert.formats import tensorflow as reader
raw = open({str(made / "saved2" / "saved_model.pb")!r}, "rb").read()
from tensorflow.core.protobuf import saved_model_pb2
again = reader._messages()["SavedModel"].FromString(raw).SerializeToString()
assert saved_model_pb2.SavedModel.FromString(again) == saved_model_pb2.SavedModel.FromString(raw)
print(len(fusebert.read({str(made / "saved2")!r}).functions) > 0)
"""
    for order in ("", "import tensorflow, onnx\n"):
        out = subprocess.run([sys.executable, "-c", order + code], capture_output=True, text=True, check=True).stdout
        assert out.strip() == "True"


def test_inspect_shows_a_saved_model(made):
    from fusebert.inspect import inspect

    report = inspect(made / "saved2").data()
    assert report["format"] == "tensorflow SavedModel"
    assert report["functions"] > 0
    assert {"operation": "VarHandleOp", "nodes": 3} in report["operations"]
