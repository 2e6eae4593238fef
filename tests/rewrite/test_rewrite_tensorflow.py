"""TensorFlow models with Bert nodes: SavedModels and frozen graphs of every family, rewritten, are run by TensorFlow
itself and answer as before; signatures, variables and other functions stay."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zoo

import fusebert
from fusebert.errors import UnsupportedError
from fusebert.rewrite.tensorflow import rewrite_tensorflow
from fusebert.source import open_tensorflow
from fusebert.values.target import FusedTensorFlow

MODELS = [name for name, entry in zoo.ZOO.items() if entry.file != "model.onnx" and not entry.refused]

RUN = """
import json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, sys.argv[1])
import numpy as np, tensorflow as tf, zoo
from zoo.session import open_session
import fusebert.tensorflow
tf.get_logger().setLevel("ERROR")
errors = {}
for name, path in json.loads(sys.argv[2]).items():
    entry = zoo.get(name)
    if os.path.isdir(path):
        model = tf.saved_model.load(path)
        function = model.signatures.get("serving_default") or next(iter(model.signatures.values()))
        run = lambda feeds: {k: v.numpy() for k, v in function(**{k: tf.constant(v) for k, v in feeds.items()}).items()}
    else:
        session = open_session(path)
        tensors = entry.output_tensors
        run = lambda feeds: dict(zip(tensors, session.run(
            list(tensors.values()), {entry.input_tensors[k]: v for k, v in feeds.items()})))
    worst = 0.0
    for kind in entry.kinds:
        got = run(entry.inputs(kind))
        for key, want in entry.outputs(kind).items():
            assert got[key].shape == want.shape, key
            worst = max(worst, float(np.abs(got[key] - want).max() / np.abs(want).max()))
    errors[name] = worst
print("errors", json.dumps(errors))
"""


def errors(paths: dict[str, Path]) -> dict[str, float]:
    """What TensorFlow says about rewritten models: one process for all, which takes seconds to start."""
    named = json.dumps({name: str(path) for name, path in paths.items()})
    code = [sys.executable, "-c", RUN, str(Path(__file__).parents[1]), named]
    ended = subprocess.run(code, capture_output=True, text=True, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"})
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.split("errors ")[-1])


def rewritten(name: str, folder: Path, precision: str) -> Path:
    entry = zoo.get(name)
    out = folder / (f"{name}-{precision}" + ("" if entry.file == "saved_model" else ".pb"))
    rewrite_tensorflow(open_tensorflow(entry.make()), out, FusedTensorFlow(precision, "compute"))
    return out


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int8-bf16"])
def test_every_family_runs_in_tensorflow(precision, tmp_path):
    names = MODELS if precision == "fp32" else MODELS[::4]
    found = errors({name: rewritten(name, tmp_path, precision) for name in names})
    limits = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.25, "int8-bf16": 0.25}
    assert {name: error for name, error in found.items() if error > limits[precision]} == {}
    assert len(found) == len(names)


@pytest.mark.parametrize("name", MODELS)
def test_one_node_takes_the_place_of_all(name, tmp_path):
    out = rewritten(name, tmp_path, "fp32")
    before, after = fusebert.read(zoo.get(name).make()), fusebert.read(out)
    fused = [n for g in (after, *after.functions.values()) for n in g.nodes if n.op in ("Bert", "BertHiddenStates")]
    assert len(fused) == 1
    assert (after.inputs, after.outputs) == (before.inputs, before.outputs)
    assert after.facts.get("signatures") == before.facts.get("signatures")
    assert set(after.functions) == set(before.functions)
    size = [len(g.nodes) + sum(len(f.nodes) for f in g.functions.values()) for g in (before, after)]
    assert size[1] < size[0]


def test_a_saved_model_keeps_its_other_files(tmp_path):
    source = zoo.get("tf-bert").make()
    before = {path: path.stat().st_mode for path in source.rglob("*")}
    out = rewritten("tf-bert", tmp_path, "fp32")
    names = {str(path.relative_to(source)) for path in source.rglob("*")} - {"fingerprint.pb"}
    assert {str(path.relative_to(out)) for path in out.rglob("*")} == names
    assert {path: path.stat().st_mode for path in source.rglob("*")} == before


def test_a_graph_file_beside_the_original_is_the_graph_alone(tmp_path):
    source = open_tensorflow(zoo.get("tf-bert").make())
    rewrite_tensorflow(source, tmp_path / "modified_saved_model.pb", FusedTensorFlow())
    assert [path.name for path in tmp_path.iterdir()] == ["modified_saved_model.pb"]


def test_inner_layers_that_are_read_stay_right(tmp_path):
    out = {name: rewritten(name, tmp_path, "fp32") for name in ("tf-bert-taps", "tf-official")}
    for path in out.values():
        graph = fusebert.read(path)
        assert any(n.op == "BertHiddenStates" for f in graph.functions.values() for n in f.nodes)


@pytest.mark.parametrize("name", ["tf1-saved", "tf1-saved-resource", "tf1-saved-classifier"])
def test_what_nobody_reads_keeps_no_inner_layer_alive(name, tmp_path):
    """A main graph of TensorFlow 1 reshapes every layer's result, and no signature asks for it."""
    before, after = (fusebert.read(path) for path in (zoo.get(name).make(), rewritten(name, tmp_path, "fp32")))
    inner = [{n.op for n in graph.nodes if "encoder/layer_" in n.name} for graph in (before, after)]
    assert "Softmax" in inner[0]
    assert inner[1].isdisjoint(("Softmax", "MatMul", "BatchMatMulV2", "Rsqrt", "Tanh"))


def test_what_reads_inside_a_layer_is_refused(tmp_path):
    from dataclasses import replace

    from fusebert.match import cut

    finding = fusebert.find(fusebert.read(zoo.get("tf-bert").make()))
    with pytest.raises(UnsupportedError, match="inside a layer"):
        cut(finding, replace(finding.encoders[0], inner_taps=("attention",)))


def test_optimize_compares_in_tensorflow(tmp_path):
    report = fusebert.optimize(zoo.get("tf1-frozen-classifier").make(), tmp_path / "out.pb", "fp32")
    assert report.data()["verdict"] == "same answers within tolerance"
    assert np.isfinite(report.data()["differences"][0]["worst_error"])
