"""A checkpoint becomes a SavedModel in one command, written without TensorFlow, which loads it and answers as
transformers does."""

import os
import subprocess
import sys

import numpy as np
import pytest
import stock

import fusebert
from fusebert.errors import UnsupportedError
from fusebert.rewrite.network import write_saved_model
from fusebert.source import Checkpoint, open_graph

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
import fusebert.tensorflow  # noqa: E402

FUSED = [
    ("bert", "sequence"), ("bert", "none"), ("bert", "masked"), ("roberta", "sequence"), ("distilbert", "token"),
    ("electra", "question"),
]  # fmt: skip


def answers(path, ids, mask) -> dict[str, np.ndarray]:
    call = tf.saved_model.load(str(path)).signatures["serving_default"]
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    given = {name: tf.constant(feeds[name], tf.int32) for name in call.structured_input_signature[1]}
    return {name: value.numpy() for name, value in call(**given).items()}


def worst(got: dict, want: dict, mask: np.ndarray) -> float:
    """The largest error at visible positions."""
    assert set(got) <= set(want)
    seen = {name: mask == 1 if value.shape[:2] == mask.shape else slice(None) for name, value in got.items()}
    return max(stock.error(value[seen[name]], want[name][seen[name]]) for name, value in got.items())


@pytest.mark.parametrize(("family", "head"), FUSED)
def test_the_op_answers_as_transformers(family, head, tmp_path):
    sizes = stock.ODD if family == "bert" and head == "sequence" else None
    folder = stock.make(tmp_path / "checkpoint", family, head, sizes=sizes)
    report = fusebert.optimize(folder, tmp_path / "fast", "fp32", "tensorflow")
    assert report.data()["verdict"] == "same answers within tolerance"
    operations = [node.op for node in open_graph(tmp_path / "fast").graph.nodes]
    assert operations.count("Bert") == 1
    assert "Softmax" not in operations
    ids, mask = np.random.default_rng(2).integers(5, 97, (3, 17)), stock.masks(3, 17, "holes", seed=2)
    assert worst(answers(tmp_path / "fast", ids, mask), stock.run(stock.load(folder, head), ids, mask), mask) < 2e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "fast"]


def test_its_own_operations_alone_answer_as_transformers(tmp_path):
    """What the op is put into: right by itself, whatever the lengths."""
    folder = stock.make(tmp_path / "checkpoint", "roberta", "sequence")
    write_saved_model(Checkpoint(folder).network(), tmp_path / "plain")
    for length in (1, 2, 31):
        ids, mask = np.random.default_rng(length).integers(5, 97, (2, length)), stock.masks(2, length, "right", seed=1)
        want = stock.run(stock.load(folder, "sequence"), ids, mask)
        assert worst(answers(tmp_path / "plain", ids, mask), want, mask) < 1e-5


def test_int8_is_compact_if_asked(tmp_path, run):
    folder = stock.make(tmp_path / "checkpoint", "bert", "sequence")
    run("optimize", folder, "--for", "tensorflow", "-o", tmp_path / "floats")
    run("optimize", folder, "--for", "tensorflow", "-o", tmp_path / "bytes", "--compact")
    sizes = {name: sum(f.stat().st_size for f in (tmp_path / name).rglob("*.*")) for name in ("floats", "bytes")}
    assert sizes["bytes"] < sizes["floats"] / 1.5
    ids, mask = np.random.default_rng(2).integers(5, 97, (3, 17)), stock.masks(3, 17, "right", seed=2)
    got, other = (answers(tmp_path / name, ids, mask)["logits"] for name in sizes)
    assert np.abs(got - other).max() < 0.05


def test_nothing_of_tensorflow_is_needed(tmp_path):
    """Neither to write it nor to compare it, which fusebert's own evaluator does then."""
    folder = stock.make(tmp_path / "checkpoint", "bert", "sequence")
    code = f"""
import sys
sys.modules["tensorflow"] = None
import importlib.util as util
find = util.find_spec
util.find_spec = lambda name, *rest: None if name == "tensorflow" else find(name, *rest)
import fusebert
report = fusebert.optimize({str(folder)!r}, {str(tmp_path / "fast")!r}, "fp32", "tensorflow")
print(report.data()["verdict"])
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "same answers within tolerance" in ended.stdout, ended.stderr[-2000:]
    ids, mask = np.random.default_rng(2).integers(5, 97, (2, 9)), stock.masks(2, 9, "right", seed=2)
    want = stock.run(stock.load(folder, "sequence"), ids, mask)
    assert worst(answers(tmp_path / "fast", ids, mask), want, mask) < 2e-5


def test_what_is_there_stays_and_names_are_folders(tmp_path, run):
    folder = stock.make(tmp_path / "checkpoint", "bert")
    assert "a SavedModel is a folder" in run("optimize", folder, "--for", "tensorflow", "-o", tmp_path / "a.pb", code=2)
    assert "would be written" in run("optimize", folder, "--for", "tensorflow", "-o", tmp_path / "x", "--dry-run")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    told = run("optimize", folder, "--for", "tensorflow", "-o", tmp_path / "mine", "--overwrite", code=2)
    assert "mine" in told
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"
    assert not (tmp_path / "x").exists()


def test_layers_that_the_op_cannot_carry_are_named(tmp_path):
    import families

    for case, reason in (("modernbert", "rotary positions|RMSNorm|LayerNorm"), ("mpnet", "relative positions")):
        folder, _ = families.make(tmp_path / case, case)
        with pytest.raises(
            UnsupportedError, match=rf"the operator cannot carry its layers: .*({reason}).*--for standalone"
        ):
            fusebert.optimize(folder, tmp_path / "fast", "fp32", "tensorflow")
    assert not (tmp_path / "fast").exists()
