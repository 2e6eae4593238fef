"""Compact models of TensorFlow: int8 weights are stored as int8, and of a SavedModel what its signatures need is all
that is left. They answer as the model in int8 does, and are models like any other."""

import os
from pathlib import Path

import numpy as np
import pytest
import zoo

import fusebert
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.tensorflow.serving import only_serving
from fusebert.source import open_graph, open_tensorflow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
import fusebert.tensorflow  # noqa: E402

# functions in functions, a hidden state of every layer, ResourceGather, resource and reference variables, none at all
NAMES = ["tf-bert-keras", "tf-bert-taps", "tf-official-erf", "tf1-saved-resource", "tf1-saved-classifier", "tf1-frozen"]
TAPPED = ("tf-bert-taps", "tf-official-erf")


def compact(name: str, folder: Path, precision: str = "int8", **options: object) -> Path:
    model = zoo.get(name).make()
    out = folder / f"compact{model.suffix}"
    fusebert.optimize(model, out, precision, compact=True, **options)
    return out


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_model_becomes_compact_and_answers_the_same(name, tmp_path):
    """optimize runs both in TensorFlow, and would raise."""
    path = compact(name, tmp_path)
    (found,) = open_graph(path).finding.encoders
    (before,) = open_graph(zoo.get(name).make()).finding.encoders
    assert found.operator is not None
    assert found.operator.op == ("BertCompactHiddenStates" if name in TAPPED else "BertCompact")
    assert (len(found.layers), found.readers, found.mask.kind) == (len(before.layers), before.readers, before.mask.kind)
    assert (path / "variables").exists() == path.is_dir()


def test_signatures_take_and_give_what_they_did(tmp_path):
    name = "tf-bert-sequence"
    path, feeds = compact(name, tmp_path, verify=False), zoo.get(name).inputs("holes")
    loaded = tf.saved_model.load(str(path)).signatures["serving_default"]
    got = loaded(**{key: tf.constant(value) for key, value in feeds.items()})["logits"].numpy()
    assert np.abs(got - zoo.get(name).outputs("holes")["logits"]).max() < 0.05
    own = fusebert.load(path).run(*(feeds.get(key) for key in ("input_ids", "attention_mask", "token_type_ids")))
    assert (
        np.abs(own["logits"] - got).max() < 0.05
    )  # TensorFlow's own last bits of the embeddings move a step of 8 bits
    direct = fusebert.load(zoo.get(name).make(), "int8").run(
        *(feeds.get(key) for key in ("input_ids", "attention_mask", "token_type_ids"))
    )
    assert np.array_equal(own["logits"], direct["logits"])  # the very numbers


def test_weights_take_a_byte_each(tmp_path):
    """Of a model that is mostly encoder: a quarter of what the variables took, and the weights once."""
    name = "tf-official-erf"  # with two signatures
    model, path = zoo.get(name).make(), compact(name, tmp_path, verify=False)
    weights = fusebert.read(path).weights
    bodies = [weights, *(one.weights for one in fusebert.read(path).functions.values())]
    stored = [weight for body in bodies for weight in body.values() if weight.dtype == "int8"]
    (found,) = open_graph(model).finding.encoders
    linears = sum(np.prod(ref.shape) for layer in found.weights for ref in layer.values() if len(ref.shape) == 2)
    assert linears <= sum(np.prod(weight.shape) for weight in stored) <= linears * 1.1  # some neurons are split
    large = [one for body in bodies for one in body.values() if one.dtype == "float32" and np.prod(one.shape) > 4000]
    tables = {ref.shape for ref in large}
    assert all(24 in shape or 32 in shape for shape in tables)  # only embeddings
    assert size(path) < size(model)


def test_static_ranges_stay_in_the_node(tmp_path):
    ranges = np.tile(np.array([-9, 9], np.float32), (3, 4, 1))
    path = compact("tf-bert-sequence", tmp_path, ranges=ranges, verify=False)
    model = fusebert.load(path)
    assert model.plan.static
    assert [block.first.high for block in model.plan.blocks] == [9.0] * 6


def test_a_fused_model_becomes_compact_with_its_own_numbers(tmp_path):
    fusebert.optimize(zoo.get("tf-bert-sequence").make(), tmp_path / "fused", "int8", verify=False)
    fusebert.optimize(tmp_path / "fused", tmp_path / "small", "int8", compact=True)
    feeds = zoo.get("tf-bert-sequence").inputs()
    wanted, got = (fusebert.load(tmp_path / one).run(feeds["input_ids"])["logits"] for one in ("fused", "small"))
    assert np.array_equal(wanted, got)


def test_a_compact_model_is_a_model(tmp_path, run):
    path = compact("tf-bert-sequence", tmp_path, verify=False)
    assert "BertCompact" in run("inspect", path)
    for precision in ("fp32", "int8-bf16"):
        with pytest.raises(FusebertError, match="weights are int8 already"):
            fusebert.optimize(path, tmp_path / "again", precision)
    assert "is fused already, in int8" in run("optimize", path, "-o", tmp_path / "again", code=2)
    fusebert.optimize(path, tmp_path / "again", "int8", padding="first")
    (found,) = open_graph(tmp_path / "again").finding.encoders
    assert (found.operator.op, found.operator.attributes["Padding"]) == ("BertCompact", "first")
    assert fusebert.compare(zoo.get("tf-bert-sequence").make(), path).same


def test_compact_weights_are_int8(tmp_path, run):
    model = zoo.get("tf-bert-sequence").make()
    told = run("optimize", model, "-o", tmp_path / "x", "--compact", "--precision", "bf16", code=2)
    assert "compact weights are int8, not bf16" in told
    told = run("optimize", zoo.get("onnx-bert-sequence").make(), "-o", tmp_path / "x.onnx", "--compact", code=2)
    assert "'compact' is for tensorflow" in told


def test_a_graph_that_writes_to_a_reference_is_refused(tmp_path):
    """References become resources, which the old operations that write do not take."""
    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [None], name="x")
        count = v1.get_variable("count", initializer=np.zeros(2000, np.float32), use_resource=False)
        y = tf.identity(x + v1.assign_add(count, tf.ones(2000))[0], name="y")
        session.run(v1.global_variables_initializer())
        v1.saved_model.simple_save(session, str(tmp_path / "counting"), {"x": x}, {"y": y})
    source = open_tensorflow(tmp_path / "counting")
    with pytest.raises(UnsupportedError, match=r"AssignAdd.*writes to variable count.*without --compact"):
        only_serving(source.file, source.graph.weights)


def test_tables_and_what_a_graph_writes_itself_stay(tmp_path):
    """A served function with a table of a file and a variable that counts calls."""
    (tmp_path / "codes.txt").write_text("7\n8\n9\n")

    class Counting(tf.Module):
        def __init__(self):
            super().__init__()
            index, line = tf.lookup.TextFileIndex.LINE_NUMBER, tf.lookup.TextFileIndex.WHOLE_LINE
            file = str(tmp_path / "codes.txt")
            self.table = tf.lookup.StaticHashTable(
                tf.lookup.TextFileInitializer(file, tf.int64, index, tf.int64, line), -1
            )
            self.calls = tf.Variable(np.arange(2000, dtype=np.int64))

        @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
        def count(self, x):
            return {"y": self.table.lookup(x) + self.calls.assign_add(tf.ones(2000, tf.int64))[:1]}

    model = Counting()
    tf.saved_model.save(model, str(tmp_path / "counting"), signatures=model.count)
    (tmp_path / "codes.txt").unlink()
    source = open_tensorflow(tmp_path / "counting")
    only_serving(source.file, source.graph.weights).write(tmp_path / "small")
    call = tf.saved_model.load(str(tmp_path / "small")).signatures["serving_default"]
    assert [call(x=tf.constant([0, 2], tf.int64))["y"].numpy().tolist() for _ in range(2)] == [[8, 10], [9, 11]]


def test_two_models_with_the_same_names_share_nothing(tmp_path):
    """Variables are each model's own, as Python loads them."""
    names = "tf-bert-sequence", "tf-roberta-sequence"
    for name in names:
        (tmp_path / name).mkdir()
    loaded = {name: tf.saved_model.load(str(compact(name, tmp_path / name, verify=False))) for name in names}
    for name, model in loaded.items():
        feeds = {key: tf.constant(value) for key, value in zoo.get(name).inputs("right").items()}
        got = model.signatures["serving_default"](**feeds)["logits"].numpy()
        assert np.abs(got - zoo.get(name).outputs("right")["logits"]).max() < 0.05


def test_a_session_of_tensorflow_1_restores_it(tmp_path):
    entry, path, v1 = zoo.get("tf-bert-sequence"), compact("tf-bert-sequence", tmp_path, verify=False), tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        signature = v1.saved_model.load(session, ["serve"], str(path)).signature_def["serving_default"]
        feeds = {signature.inputs[name].name: value for name, value in entry.inputs("right").items()}
        got = session.run(signature.outputs["logits"].name, feeds)
    assert np.abs(got - entry.outputs("right")["logits"]).max() < 0.05
