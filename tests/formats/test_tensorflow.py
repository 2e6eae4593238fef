"""The TensorFlow readers: SavedModels and frozen graphs in, nodes and numbers as TensorFlow has them; else refused."""

import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import zoo
from damage import damage, replaced
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fusebert
from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.bundle import Bundle
from fusebert.formats.tensorflow.messages import message
from fusebert.match import translate
from fusebert.ops.graph import TensorType
from fusebert.ops.vocabulary import evaluate
from fusebert.values import limits

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

class Same(tf.Module):  # two variables of one name, a captured constant, and an entry point that no signature has
    def __init__(self):
        self.first = tf.Variable(random.normal(size=(40, 30)).astype("f"), name="kernel")
        self.second = tf.Variable(random.normal(size=(40, 30)).astype("f"), name="kernel")
        self.shift = tf.constant(random.normal(size=30).astype("f"))
    @tf.function(input_signature=[tf.TensorSpec([None, 40], tf.float32, name="x")])
    def serve(self, x):
        return {"last": tf.matmul(x, self.second), "first": tf.matmul(x, self.first)}
    @tf.function(input_signature=[tf.TensorSpec([None, 40], tf.float32, name="x")])
    def apart(self, x):
        return tf.matmul(x, self.second) + self.shift

same = Same()
tf.saved_model.save(same, folder + "/same", signatures=same.serve)
x = random.normal(size=(2, 40)).astype("f")
values = {"first": same.first, "second": same.second, "shift": same.shift, "x": x, "apart": same.apart(x)}
np.savez(folder + "/same.npz", **values)
from google.protobuf import text_format
from tensorflow.core.protobuf import saved_model_pb2
import shutil
model = saved_model_pb2.SavedModel.FromString(open(folder + "/same/saved_model.pb", "rb").read())
shutil.copytree(folder + "/same/variables", folder + "/same_text/variables")
open(folder + "/same_text/saved_model.pbtxt", "w").write(text_format.MessageToString(model))

with v1.Graph().as_default(), v1.Session() as session:  # partitioned variables, two meta graphs, another checkpoint
    x = v1.placeholder(tf.float32, [None, 300], "x")
    parts, wanted = [], {}
    for name, axis, resource in (("a", 0, False), ("b", 1, True)):
        with v1.variable_scope(name, use_resource=resource):
            kernel = v1.get_variable("kernel", [300, 300], partitioner=v1.fixed_size_partitioner(3, axis))
        parts.append(tf.matmul(x, tf.convert_to_tensor(kernel)))
        wanted[name] = tf.convert_to_tensor(kernel)
    bias = v1.get_variable("bias", [300], use_resource=False)
    elsewhere = tf.raw_ops.RestoreV2(
        prefix="elsewhere", tensor_names=["a/kernel"], shape_and_slices=[""], dtypes=[tf.float32])[0]
    v1.assign(bias, elsewhere, validate_shape=False)
    y, loss = tf.identity(parts[0] + parts[1] + bias, "y"), tf.reduce_sum(parts[0], name="loss")
    session.run(v1.global_variables_initializer())
    builder = v1.saved_model.Builder(folder + "/parts")
    sign = v1.saved_model.signature_def_utils.predict_signature_def
    builder.add_meta_graph_and_variables(session, ["train"], {"fit": sign({"x": x}, {"loss": loss})})
    builder.add_meta_graph(["serve", "small"], {"serving_default": sign({"x": x}, {"y": y})})
    builder.save()
    np.savez(folder + "/parts.npz", **session.run(wanted))
"""


def words(graph):
    return [node.op for node in graph.nodes]


def test_a_tensorflow_2_saved_model_with_its_functions_and_variables(made):
    graph, want = fusebert.read(made / "saved2"), np.load(made / "two.npz")
    handles = {n.attributes["shared_name"]: n.outputs[0] for n in graph.nodes if n.op == "VarHandleOp"}
    assert np.array_equal(graph.weights[handles["dense/kernel"]].read(), want["kernel"])
    assert np.array_equal(graph.weights[handles["dense/bias"]].read(), want["bias"])
    assert graph.weights[handles["steps"]].read() == 7
    assert graph.inputs == ("serving_default_x:0",)
    assert graph.types["serving_default_x:0"].shape == (None, 40)
    bodies = [f for f in graph.functions.values() if "MatMul" in words(f)]
    assert bodies
    product = next(n for n in bodies[0].nodes if n.op == "MatMul")
    assert not product.attributes.get("transpose_b", False)
    assert product.outputs == (f"{product.name}:product:0",)
    calls = {
        n.attributes["f"]
        for g in (graph, *graph.functions.values())
        for n in g.nodes
        if n.op.endswith("PartitionedCall")
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


def test_variables_of_one_name_are_told_apart_by_what_the_graph_restores(made):
    want = np.load(made / "same.npz")
    for folder in ("same", "same_text"):
        graph = fusebert.read(made / folder)
        call = next(n for n in graph.nodes if graph.facts["names"].get(n.outputs[0]) == "first")
        body = graph.functions[call.attributes["f"]]
        for name in ("first", "second"):
            found = [
                t for t in call.inputs if t in graph.weights and np.array_equal(graph.weights[t].read(), want[name])
            ]
            assert len(found) == 1
            assert np.array_equal(body.weights[body.inputs[call.inputs.index(found[0])]].read(), want[name])
        assert graph.facts["names"] == {
            "serving_default_x:0": "x",
            "StatefulPartitionedCall:0": "first",
            "StatefulPartitionedCall:1": "last",
        }
        assert graph.outputs == ("StatefulPartitionedCall:0", "StatefulPartitionedCall:1")


def test_a_function_that_no_signature_reaches_can_be_looked_at_by_itself(made):
    graph, want = fusebert.read(made / "same"), np.load(made / "same.npz")
    name = next(name for name in graph.functions if "apart" in name)
    root = replace(graph.functions[name], functions=graph.functions, facts=graph.facts)
    assert [root.weights[t].shape for t in root.inputs[1:]] == [(40, 30), (30,)]
    assert root.types["x"] == TensorType("float32", (None, 40))
    flat = translate(root)
    assert flat.inputs == ("x",)
    assert np.allclose(evaluate(flat, {"x": want["x"]})[flat.outputs[0]], want["apart"], atol=1e-5)


def test_a_caller_decides_what_the_arguments_of_a_function_are(made):
    graph = fusebert.read(made / "same")
    call = next(n for n in graph.nodes if graph.facts["names"].get(n.outputs[0]) == "first")
    swapped = replace(call, inputs=(call.inputs[0], *reversed(call.inputs[1:])))
    other = replace(graph, nodes=tuple(swapped if n is call else n for n in graph.nodes))
    x = {"serving_default_x:0": np.load(made / "same.npz")["x"]}
    straight, crossed = (evaluate(translate(g), x) for g in (graph, other))
    assert np.allclose(straight[graph.outputs[0]], crossed[graph.outputs[1]])
    assert np.allclose(straight[graph.outputs[1]], crossed[graph.outputs[0]])


def test_what_is_returned_and_not_read_is_an_output_of_its_node(made):
    for folder in ("saved1", "saved2", "same", "parts"):
        graph = fusebert.read(made / folder)
        for g in (graph, *graph.functions.values()):
            known = {*g.inputs, *g.weights, *(t for node in g.nodes for t in node.outputs)}
            assert known.issuperset(g.outputs)


def test_every_meta_graph_can_be_read(made):
    assert fusebert.read(made / "parts").facts["tags"] == [["train"], ["serve", "small"]]
    assert fusebert.read(made / "parts").outputs == ("y:0",)
    assert fusebert.read(made / "parts", tags=["small", "serve"]).outputs == ("y:0",)
    assert fusebert.read(made / "parts", tags=["train"]).facts["names"] == {"x:0": "x", "loss:0": "loss"}
    with pytest.raises(FusebertError, match=r"no graph has the tags gpu; use train or serve\+small"):
        fusebert.read(made / "parts", tags=["gpu"])
    with pytest.raises(FusebertError, match="not a SavedModel"):
        fusebert.read(made / "frozen.pb", tags=["train"])


def test_partitioned_variables_are_read_in_parts_and_whole(made):
    graph, want = fusebert.read(made / "parts"), np.load(made / "parts.npz")
    bundle = Bundle(made / "parts" / "variables" / "variables")
    assert sorted(bundle) == ["a/kernel", "b/kernel", "bias"]
    for name, axis in (("a", 0), ("b", 1)):
        assert np.array_equal(bundle[f"{name}/kernel"].read(), want[name])
        parts = [graph.weights[f"{name}/kernel/part_{i}:0"] for i in range(3)]
        assert np.array_equal(np.concatenate([part.read() for part in parts], axis), want[name])
    assert graph.weights["bias:0"].shape == (300,)  # not a/kernel of another checkpoint
    assert np.array_equal(bundle.part("a/kernel", "300 300 7,150:-").read(), want["a"][7:157])
    for spec in ("300 300 0,301:-", "300 300 -1,3:-", "300 300 -", "nonsense", "300 300 1,x:-", "1 0," + "9" * 30):
        with pytest.raises(FusebertError, match="slice"):
            bundle.part("a/kernel", spec)


def test_a_variable_of_another_shape_than_the_checkpoint_has_is_refused(made, tmp_path):
    folder = shutil.copytree(made / "same", tmp_path / "same")
    model = message("SavedModel").FromString((folder / "saved_model.pb").read_bytes())
    node = next(n for n in model.meta_graphs[0].graph_def.node if n.op == "VarHandleOp")
    next(e for e in node.attr if e.key == "shape").value.shape.dim[0].size = 41
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())
    with pytest.raises(FusebertError, match=r"variable kernel\w* is float32 .41, 30., but the checkpoint has"):
        fusebert.read(folder)


def change_objects(folder, change):
    model = message("SavedModel").FromString((folder / "saved_model.pb").read_bytes())
    change(model.meta_graphs[0].object_graph_def)
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda o: [e.value.bound_inputs.extend([1] * 9) for e in o.concrete_functions],
            "arguments, 1\\d of them bound",
        ),
        (lambda o: [setattr(c, "node_id", 10**6) for c in o.nodes[0].children], "none of the objects"),
        (lambda o: [setattr(c, "node_id", -1) for c in o.nodes[0].children], "none of the objects"),
    ],
)
def test_a_broken_object_graph_is_refused_in_a_sentence(made, tmp_path, change, sentence):
    folder = shutil.copytree(made / "same", tmp_path / "same")
    change_objects(folder, change)
    with pytest.raises(FusebertError, match=sentence):
        fusebert.read(folder)


def test_objects_in_a_circle_and_unknown_ids_are_no_trouble(made, tmp_path):
    folder = shutil.copytree(made / "same", tmp_path / "same")

    def change(objects):
        for node in objects.nodes:
            node.children.add(node_id=0, local_name="parent")
        for entry in objects.concrete_functions:
            entry.value.bound_inputs[:] = [10**6] * len(entry.value.bound_inputs)

    change_objects(folder, change)
    graph = fusebert.read(folder)
    assert not any({*f.inputs} & {*f.weights} for f in graph.functions.values())


@pytest.mark.parametrize("name", ["keras-own", "tf-bert-keras", "tf1-saved-resource"])
def test_real_models_have_a_weight_for_every_variable_that_is_read(name):
    graph = fusebert.read(zoo.get(name).make())
    needed = {t for n in graph.nodes if graph.facts["names"].keys() & {*n.outputs} for t in n.inputs}
    handles = {t for n in graph.nodes if n.op in ("VarHandleOp", "VariableV2") for t in n.outputs}
    assert graph.weights.keys() >= needed & handles
    assert len({id(w) for w in graph.weights.values()}) > 50
    for node in graph.nodes:
        body = graph.functions.get(node.attributes.get("f", ""))
        for argument, tensor in zip(body.inputs, node.inputs, strict=True) if body else ():
            if argument in body.weights:
                assert np.array_equal(body.weights[argument].read(), graph.weights[tensor].read())


def test_functions_that_call_themselves_and_cycles_are_refused(made, tmp_path):
    for inside in (True, False):
        graph = message("GraphDef")
        nodes = graph.node
        if inside:
            add_function(graph, ["x"], returned={"y": "again:output:0"})
            nodes.add(name="call", op="PartitionedCall").attr.add(key="f").value.func.name = "added"
            nodes = graph.library.function[0].node_def
        node = nodes.add(name="again", op="PartitionedCall" if inside else "Neg", input=["x" if inside else "other"])
        node.attr.add(key="f").value.func.name = "added"
        if not inside:
            nodes.add(name="other", op="Neg", input=["again"])
            nodes.add(name="end", op="Neg", input=["other"])
        (tmp_path / "round.pb").write_bytes(graph.SerializeToString())
        with pytest.raises(FusebertError, match="calls itself" if inside else "cycle"):
            translate(fusebert.read(tmp_path / "round.pb"))


def test_millions_of_nodes_are_refused(tmp_path, monkeypatch):
    graph = message("GraphDef")
    for i in range(2000):
        graph.node.add(name=f"n{i}", op="NoOp")
    (tmp_path / "many.pb").write_bytes(graph.SerializeToString())
    assert len(fusebert.read(tmp_path / "many.pb").nodes) == 2000
    monkeypatch.setattr(limits, "NODES", 1000)
    with pytest.raises(FusebertError, match="more than 1000 nodes"):
        fusebert.read(tmp_path / "many.pb")
    monkeypatch.setattr(limits, "MESSAGE_FIELDS", 1000)
    with pytest.raises(FusebertError, match="more than 1000 nodes and weights"):
        fusebert.read(tmp_path / "many.pb")


def add_function(graph, arguments=(), nodes=(), returned=()):
    function = graph.library.function.add()
    function.signature.name = "added"
    for name in arguments:
        function.signature.input_arg.add(name=name)
    for name in nodes:
        function.node_def.add(name=name, op="NoOp")
    for name in returned:
        function.signature.output_arg.add(name=name)
        function.ret.add(key=name, value=returned[name])


def frozen_message(made):
    return message("GraphDef").FromString((made / "frozen.pb").read_bytes())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda g: g.node.add(name="late", op="Neg", input=["nowhere"]), "late .Neg. reads 'nowhere'"),
        (lambda g: g.node.append(g.node[0]), "same name, 'x'"),
        (lambda g: g.node.add(name="empty", op="Const"), "empty .Const. has no value"),
        (lambda g: g.library.function.extend([g.library.function.add(), g.library.function[0]]), "twice"),
        (lambda g: add_function(g, arguments=["a", "a"]), "two arguments of the same name"),
        (lambda g: add_function(g, arguments=["a"], nodes=["a"]), "a node and an argument have the same name, 'a'"),
        (lambda g: add_function(g, returned={"y": "n:z:0"}), "'n:z:0' goes in or comes out, but nothing makes it"),
        (lambda g: g.library.function.add().signature.output_arg.add(name="y"), "does not say what its output y is"),
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
        graph = message("GraphDef")
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
            tensor.float_val.append(2)  # only a single number is repeated for nothing
            (tmp_path / "huge.pb").write_bytes(graph.SerializeToString())
            with pytest.raises(FusebertError, match="2 elements, but its shape needs 549755813888"):
                fusebert.read(tmp_path / "huge.pb")


@pytest.mark.parametrize(
    "name",
    [
        "frozen.pb",
        "saved2/saved_model.pb",
        "saved2/variables/variables.index",
        "same/saved_model.pb",
        "same/variables/variables.data-00000-of-00001",
        "same_text/saved_model.pbtxt",
        "parts/variables/variables.index",
    ],
)
@settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damaged_files_are_read_or_refused(made, name, data):
    with replaced(made / name, data.draw(damage((made / name).read_bytes()))):
        try:
            graph = fusebert.read(made / name.split("/")[0])
            weights = [w for g in (graph, *graph.functions.values()) for w in g.weights.values()]
            for weight in weights:
                if weight.dtype != "string" and np.prod(weight.shape, dtype=float) < 1e7:
                    assert weight.read().shape == weight.shape
        except FusebertError:
            pass


def read_all(bundle):
    return [bundle[key].read() for key in bundle.names().values()]


def test_a_bundle_with_a_missing_or_short_data_file_is_refused(made, tmp_path):
    shutil.copytree(made / "saved2" / "variables", tmp_path / "variables")
    data = tmp_path / "variables" / "variables.data-00000-of-00001"
    whole = data.read_bytes()
    for content in (b"x", whole[:100], None):
        data.unlink() if content is None else data.write_bytes(content)
        with pytest.raises(FusebertError, match="variables"):
            read_all(Bundle(tmp_path / "variables" / "variables"))


def test_what_is_not_described_is_kept_beside_tensorflow(made):
    code = f"""
import fusebert, tensorflow as tf
from fusebert.formats.tensorflow.messages import message
raw = open({str(made / "saved2" / "saved_model.pb")!r}, "rb").read()
from tensorflow.core.protobuf import saved_model_pb2
again = message("SavedModel").FromString(raw).SerializeToString()
assert saved_model_pb2.SavedModel.FromString(again) == saved_model_pb2.SavedModel.FromString(raw)
print(len(fusebert.read({str(made / "saved2")!r}).functions) > 0)
"""
    for order in ("", "import tensorflow, onnx\n"):
        out = subprocess.run([sys.executable, "-c", order + code], capture_output=True, text=True, check=True).stdout
        assert out.strip() == "True"


def test_inspect_shows_a_saved_model(made):
    from fusebert.verbs.inspect import inspect

    report = inspect(made / "saved2").data()
    assert report["format"] == "tensorflow SavedModel"
    assert report["functions"] > 0
    assert report["encoders"] == []
    assert report["misses"]
