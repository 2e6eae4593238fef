"""A checkpoint becomes a SavedModel in one command, written without TensorFlow, which loads it and answers as
transformers does."""

import os
import subprocess
import sys

import families
import numpy as np
import pytest
import stock

import fusebert
from fusebert.measure.runners.evaluator import Evaluator
from fusebert.rewrite.network import write_saved_model
from fusebert.source import Checkpoint, open_graph, open_tensorflow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
import fusebert.tensorflow  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
FORMS = [
    ("mpnet", "masked"), ("xlm-roberta-xl", "token"), ("modernbert", "question"), ("deberta-v1", "none"),
    ("deberta-v2", "token"), ("deberta-v3", "sequence"), ("nomic", "none"), ("gte", "sequence"), ("jina-v3", "none"),
    ("albert", "sequence"), ("eurobert", "sequence"), ("gemma", "none"),
]  # fmt: skip
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


@pytest.mark.parametrize(("case", "head"), FORMS)
def test_a_second_op_carries_every_family(case, head, tmp_path):
    """Weights by name: a layout says what the blocks are. Odd lengths, padded on either side and with holes."""
    folder, model = families.make(tmp_path / "checkpoint", case, head)
    report = fusebert.optimize(folder, tmp_path / "fast", "fp32", "tensorflow")
    assert report.data()["verdict"] == "same answers within tolerance"
    operations = [node.op for node in open_graph(tmp_path / "fast").graph.nodes]
    assert operations.count("EncoderForm") == 1
    assert "Softmax" not in operations
    for length, kind in ((1, "right"), (7, "left"), (23, "holes")):
        ids, mask = np.random.default_rng(length).integers(5, 97, (3, length)), stock.masks(3, length, kind, seed=1)
        want = families.compute(Checkpoint(folder).network(), ids, mask)
        assert worst(answers(tmp_path / "fast", ids, mask), want, mask) < 2e-5
    ids, mask = np.random.default_rng(1).integers(5, 97, (2, 129)), stock.masks(2, 129, "right", seed=3)
    assert worst(answers(tmp_path / "fast", ids, mask), stock.run(model, ids, mask), mask) < 2e-5


@pytest.mark.parametrize(
    ("precision", "compact"), [("bf16", False), ("int8", False), ("int8", True), ("int8-bf16", True)]
)
@pytest.mark.parametrize("case", ["modernbert", "albert"])
def test_forms_answer_in_every_precision_as_fusebert_does(case, precision, compact, tmp_path):
    """Alike in TensorFlow and in fusebert's own evaluator."""
    folder, _ = families.make(tmp_path / "checkpoint", case, odd=True)
    fusebert.optimize(folder, tmp_path / "fast", precision, "tensorflow", compact=compact, verify=False)
    fusebert.optimize(folder, tmp_path / "artifact", precision, verify=False)
    ids, mask = np.random.default_rng(4).integers(5, 97, (2, 33)), stock.masks(2, 33, "left", seed=4)
    got = answers(tmp_path / "fast", ids, mask)["last_hidden_state"]
    want = fusebert.load(tmp_path / "artifact").run(ids, mask)["last_hidden_state"]
    assert stock.error(got[mask == 1], want[mask == 1]) < 5e-2
    feeds = {"input_ids": ids.astype(np.int32), "attention_mask": mask.astype(np.int32)}
    own = Evaluator(open_tensorflow(tmp_path / "fast"))
    given = {name: feeds.get(name, np.zeros_like(feeds["input_ids"])) for name in answered(tmp_path / "fast")}
    evaluated = next(iter(own.answer(given).values()))
    assert stock.error(evaluated[mask == 1], got[mask == 1]) < 5e-2  # which adds the mask, so attention is no int8


def answered(path) -> list[str]:
    """The inputs of a SavedModel."""
    return list(tf.saved_model.load(str(path)).signatures["serving_default"].structured_input_signature[1])


def form_node(layout: str, count: int | None = None, **attributes: object):
    """One call of EncoderForm on a feed-forward block of four numbers a row."""
    weights = [tf.ones((4, 4)), tf.ones((4, 4))][:count]
    rows, mask = tf.ones((1, 2, 4)), tf.ones((1, 2), tf.int32)
    settings = {"Layout": layout, "Precision": "fp32", "Ranges": [], "NumHiddenStates": 0, **attributes}
    shared = {"AdditiveMask": False, "MaskValue": -10000.0, "Padding": "compute", "NumThreads": 1}
    return fusebert.tensorflow.encoder_form(rows, mask, weights, **shared, **settings)


_SMALL = "encoder hidden=4\nfeed_forward activation=relu\ninput block.0.up.weight\ninput block.0.down.weight\n"


@pytest.mark.parametrize(("change", "attributes", "reason"), [
    (("hidden=4", "hidden=5"), {}, "expected"),
    (("input block.0.up.weight\n", ""), {}, "the Layout names 1 inputs, but there are 2 weights"),
    (("block.0.up.weight", "block.1.up.weight"), {}, "which none of its blocks reads"),
    (("activation=relu", "activation=quadratic"), {}, "activation 'quadratic' is unknown"),
    (("encoder", "encoders"), {}, "stands before the line 'encoder'"),
    (("", ""), {"Ranges": [0.0, 1.0]}, "ranges belong to int8"),
    (("", ""), {"Precision": "int8", "Ranges": [0.0, 1.0]}, "1 blocks need 4"),
    (("", ""), {"NumHiddenStates": 2}, "NumHiddenStates must be the number of layers, 0"),
])  # fmt: skip
def test_layouts_that_do_not_fit_are_invalid_arguments(change, attributes, reason):
    assert form_node(_SMALL)[0].shape == (1, 2, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match=reason):
        form_node(_SMALL.replace(*change, 1), **attributes)


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
