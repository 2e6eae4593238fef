"""What people do with a SavedModel they can do with an optimised one: show and run it by saved_model_cli, load and
save it again, use it as a Keras layer."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zoo

import fusebert
from fusebert.match import find_elsewhere
from fusebert.rewrite.tensorflow import rewrite_tensorflow
from fusebert.source import open_tensorflow
from fusebert.values.target import FusedTensorFlow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
import fusebert.tensorflow as fused  # noqa: E402


def optimised(name: str, folder: Path) -> Path:
    rewrite_tensorflow(open_tensorflow(zoo.get(name).make()), folder / name, FusedTensorFlow("fp32", "compute"))
    return folder / name


def feeds(name: str) -> dict:
    return {key: tf.constant(value) for key, value in zoo.get(name).inputs("holes").items()}


def worst(got: dict, name: str) -> float:
    wanted = zoo.get(name).outputs("holes")
    return max(float(np.abs(got[key] - want).max() / np.abs(want).max()) for key, want in wanted.items())


def test_saved_model_cli_shows_it_where_the_libraries_are_plugins(tmp_path):
    """As the command is, without a line of Python: TensorFlow loads what lies in tensorflow-plugins."""
    plugins = tmp_path / "site-packages" / "tensorflow-plugins"
    plugins.mkdir(parents=True)
    for library in ("libfusebert.so.1", "libfusebert_tensorflow.so"):
        (plugins / library).symlink_to(Path(fused.library()).with_name(library))
    command = [
        Path(sys.executable).with_name("saved_model_cli"),
        "show",
        "--all",
        "--dir",
        optimised("tf-bert", tmp_path),
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(plugins.parent)}
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "inputs['attention_mask'] tensor_info" in ended.stdout
    assert "'Bert'" in ended.stdout
    assert "N/A" not in ended.stdout  # its functions were loaded and listed too
    assert "Function Name: 'serve'" in ended.stdout


def test_saved_model_cli_runs_it(tmp_path):
    entry = zoo.get("tf-bert")
    np.savez(tmp_path / "in.npz", **entry.inputs("holes"))
    given = ";".join(f"{key}={tmp_path / 'in.npz'}[{key}]" for key in entry.inputs("holes"))
    start = "import fusebert.tensorflow; from tensorflow.python.tools.saved_model_cli import main; main()"
    command = [sys.executable, "-c", start, "run", "--dir", optimised("tf-bert", tmp_path), "--tag_set", "serve"]
    command += ["--signature_def", "serving_default", "--inputs", given, "--outdir", tmp_path]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert re.search("Result for output key pooler_output", ended.stdout)
    assert worst({key: np.load(tmp_path / f"{key}.npy") for key in entry.outputs("holes")}, "tf-bert") < 1e-4


@pytest.mark.parametrize("name", ["tf-bert", "tf-official", "tf1-saved-resource", "keras-own"])
def test_loaded_saved_and_loaded_again(name, tmp_path):
    first = tf.saved_model.load(str(optimised(name, tmp_path)))
    before = first.signatures["serving_default"](**feeds(name))
    tf.saved_model.save(first, str(tmp_path / "again"), signatures=first.signatures)
    again = tf.saved_model.load(str(tmp_path / "again"))
    after = again.signatures["serving_default"](**feeds(name))
    assert worst({key: value.numpy() for key, value in before.items()}, name) < 1e-4
    assert all(np.array_equal(before[key], after[key]) for key in before)


def test_as_a_layer_of_a_keras_model_that_is_exported(tmp_path):
    keras = pytest.importorskip("keras")
    layer = keras.layers.TFSMLayer(str(optimised("keras-own", tmp_path)), call_endpoint="serve")
    given = feeds("keras-own")
    inputs = {key: keras.Input((None,), dtype="int32", name=key) for key in given}
    model = keras.Model(inputs, layer(inputs))
    answers = model.predict(given, verbose=0)
    assert worst(answers, "keras-own") < 1e-4
    model.export(str(tmp_path / "exported"), verbose=False)
    exported = tf.saved_model.load(str(tmp_path / "exported"))
    assert all(np.array_equal(value, answers[key]) for key, value in exported.serve(given).items())


@pytest.mark.parametrize("name", ["tf-bert", "tf-distilbert", "tf-official", "keras-own", "tf1-saved"])
def test_a_sequence_that_is_hidden_altogether_gets_what_the_graph_gives(name, tmp_path):
    """What a mask adds to hidden scores differs between families, and decides here: MaskValue is the model's own."""
    entry = zoo.get(name)
    given = feeds(name)
    hidden = given[entry.mask].numpy()
    hidden[1] = 0
    given[entry.mask] = tf.constant(hidden)
    models = [tf.saved_model.load(str(path)) for path in (entry.make(), optimised(name, tmp_path))]
    wanted, got = (model.signatures["serving_default"](**given) for model in models)
    for key, value in wanted.items():
        assert np.abs(got[key] - value).max() / np.abs(value).max() < 5e-3, key  # at -10000 scores are rounded to 0.001


def test_functions_that_stay_stock_are_named(tmp_path):
    """Those of a Keras model's own calls: each that is not named has fused operators, or no encoder."""
    report = fusebert.optimize(zoo.get("tf-bert-keras").make(), tmp_path / "out", "fp32", "tensorflow")
    named = {row["function"] for row in report.data()["stock_functions"]}
    assert {(row["layers"], row["hidden"]) for row in report.data()["stock_functions"]} == {(3, 24)}
    assert any("Functions that no signature calls stay as they are" in note for note in report.notes)
    made = fusebert.read(tmp_path / "out")
    replaced = {name for name, function in made.functions.items() if any(node.op == "Bert" for node in function.nodes)}
    assert replaced
    assert named == find_elsewhere(made, fusebert.find(made)).keys()
    assert not named & replaced
    plain = fusebert.optimize(zoo.get("tf-official-erf").make(), tmp_path / "two", "fp32", "tensorflow")
    assert "stock_functions" not in plain.data()
