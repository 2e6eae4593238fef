"""Compare: what counts as the same answers, for two models of any kind; and the gate of optimize."""

import json
from dataclasses import replace
from functools import partial

import numpy as np
import onnx
import pytest
import stock
import tiny
import zoo
from checkpoints import make_checkpoint

import fusebert
from fusebert.engine.model import Model
from fusebert.errors import FusebertError
from fusebert.measure.compare import compare
from fusebert.measure.comparison import Comparison
from fusebert.measure.difference import Difference, Tally, Tolerance, difference, within
from fusebert.measure.kinds import Kind
from fusebert.measure.runners import Fusebert, open_runner
from fusebert.measure.runners.tensorflow import TensorFlow
from fusebert.measure.samples import PADDINGS, Source, pad


def rows(comparison: Comparison) -> dict[tuple[str, str], dict]:
    return {(row["output"], row["at"]): row for row in comparison.report().data()["outputs"]}


def test_a_classifier_whose_labels_flip_does_not_pass(tmp_path):
    model = fusebert.load(stock.make(tmp_path, "bert", "sequence"))
    network, last = model.network, model.network.head.steps[-1]
    noise = np.random.default_rng(0).normal(0, 1, last.linear.weight.shape).astype(np.float32)
    shares = []
    for amount in (0.0, 0.1):
        linear = replace(last.linear, weight=last.linear.weight + amount * noise)
        head = replace(network.head, steps=(*network.head.steps[:-1], replace(last, linear=linear)))
        noisy = Model(replace(network, head=head), model.plan)
        differences = compare(model, noisy)
        shares.append(differences[0].flips)
        assert within(differences, "int8") == (amount == 0)
    assert shares[0] == 0


def test_nan_is_infinitely_wrong():
    numbers = np.ones((3, 4), np.float32)
    for bad in (np.nan, np.inf):
        broken = numbers.copy()
        broken[1, 1] = bad
        for pair in ((numbers, broken), (broken, numbers), (broken, broken)):
            found = difference("last_hidden_state", *pair)
            assert found.worst_error == float("inf")
            assert found.not_finite == found.failed == 1
            assert not within([found], "int8")


def test_tolerances_follow_the_precision():
    slight = Difference("last_hidden_state", 0.01, 0.9995, 0.999)
    assert within([slight], "int8")
    assert within([slight], "bf16")
    assert not within([slight], "fp32")
    scores = replace(slight, kind=Kind("classes"), decisions=20)
    assert within([replace(scores, flips=2)], "int8")
    assert not within([replace(scores, flips=3)], "int8")
    assert not within([replace(scores, probability=0.06)], "int8")
    assert not within([replace(scores, flips=1, margin=0.6)], "int8")


def test_a_head_may_make_more_of_an_error_than_the_rows_before_it():
    """A good int8 classifier is off by 0.12 of the usual logit on random ids, and once by 0.28 of the largest."""
    rounded = Difference("x", 0.28, 0.94, -0.92, relative_error=0.12, kind=Kind("classes"), decisions=40, flips=1)
    assert within([rounded], "int8")
    assert not within([replace(rounded, kind=Kind())], "int8")
    assert within([replace(rounded, kind=Kind(head=True), mean_cosine=0.97)], "int8")
    assert not within([replace(rounded, kind=Kind(), mean_cosine=0.97)], "int8")
    assert not within([replace(rounded, relative_error=0.3)], "int8")
    assert not within([replace(rounded, worst_error=0.6)], "int8")
    assert not within([rounded], "bf16")


def test_the_usual_error_is_never_larger_than_the_worst_since_both_are_shares_of_the_scale():
    found = difference("y", np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 8.0]]), np.array([[1.5, 1.5, 0.5], [1.5, 1.5, 8.5]]))
    assert found.worst_error == pytest.approx(0.5 / 8)
    assert found.usual_error == pytest.approx(0.5 / 8)
    assert found.relative_error == pytest.approx(0.5 / np.sqrt(68 / 6))


def test_a_tally_counts_every_failed_sample_and_no_other():
    tally = Tally("y", Tolerance(rtol=0.0, atol=0.5))
    for off in (1.0, 0.0, 0.4, 2.0, 0.0):
        tally.add(np.zeros((2, 2)), np.array([[0.0, off], [0.0, 0.0]]))
    found = tally.difference
    assert tally.failures == {0, 3}
    assert (found.failed, found.worst, found.over) == (2, 2.0, 0.1)
    assert found.mean == pytest.approx(3.4 / 20)
    assert Tally("y").difference is None


def test_samples_are_padded_as_they_say():
    random = np.random.default_rng(0)
    for batch, length in ((1, 2), (5, 3), (3, 40)):
        for padding in PADDINGS:
            mask = pad(random, (batch, length), padding)
            assert (mask.any(1) & (mask.all(1) == (padding == "none"))).all()
            steps = np.diff(mask, axis=1)
            assert padding != "right" or (steps <= 0).all()
            assert padding != "left" or (steps >= 0).all()
    assert pad(random, (2, 1), "left").all()
    source = Source(7, 2, padding_id=1)
    sample = source.fill(random, mask)
    assert ((sample.ids == 1) == (mask == 0)).all()
    assert set(np.unique(sample.types)) == {0, 1}
    first, again = ([s.ids.tolist() for s in source.alike((2, 5), PADDINGS, 4, seed=3)] for _ in range(2))
    assert first == again


# Two ONNX files, by ONNX Runtime


def test_every_padding_is_tried_and_failed_samples_are_counted():
    """A fusion that turns the mask into a number of tokens is right for padding on the right only."""
    original, counting = (zoo.get(name).make() for name in ("onnx4-bert-eager", "ort-fused-bert-mask-index"))
    found = compare(original, counting, samples=8)
    assert not found.same
    assert found.facts["paddings"] == {"right": 2, "left": 2, "holes": 2, "none": 2}
    assert found.facts["failed_samples"] == 4
    assert {d.failed for d in found} == {4}
    assert "4 of 8 samples" in found.facts["verdict"]
    other_way = compare(counting, original, samples=8)  # what the baseline does not honour is not asked for
    assert other_way.same
    assert other_way.facts["paddings"] == {"right": 4, "none": 4}
    assert "only counts" in other_way.notes[0]


def test_answers_that_do_not_change_with_the_mask_say_nothing_of_it(tmp_path):
    """As a label does, which is the same with any padding."""
    model = tiny.make(tmp_path / "model.onnx", {"y": "ids * zero", "z": "mask * zero"})
    found = compare(model, model, samples=8, sequence_length=6)
    assert found.facts["paddings"] == dict.fromkeys(PADDINGS, 2)
    assert not any("only counts" in note for note in found.notes)


def test_nan_in_either_or_both_is_a_failure(tmp_path):
    good = tiny.make(tmp_path / "good.onnx", {"y": "ids * mask"})
    nan = tiny.make(tmp_path / "nan.onnx", {"y": "ids / zero"})
    for pair in ((good, nan), (nan, good), (nan, nan)):
        found = compare(*pair, samples=3, batch_size=1, sequence_length=5)
        assert not found.same
        assert found.facts["failed_samples"] == 3
        row = rows(found)["y", "visible"]
        assert (row["worst"], row["failed"]) == ("inf", 3)
        assert row["nan"] > 0


def test_int32_against_int64_and_other_types(tmp_path):
    types = ({"ids": "int64", "mask": "int64"}, {"ids": "int32", "mask": "int32"}, {"ids": "int32", "mask": "float"})
    paths = [tiny.make(tmp_path / f"{i}.onnx", {"y": "ids * mask"}, inputs) for i, inputs in enumerate(types)]
    for a in paths:
        for b in paths:
            assert compare(a, b, samples=4, sequence_length=6).same


def test_hidden_positions_count_where_both_models_compute_them(tmp_path):
    zeros = tiny.make(tmp_path / "zeros.onnx", {"y": "ids * mask", "first": "ids + mask"})
    full = tiny.make(tmp_path / "full.onnx", {"y": "ids * 1", "first": "ids + mask"})
    found = compare(full, zeros, samples=4, batch_size=2, sequence_length=6)
    assert not found.same
    assert found.facts["failed_samples"] == 3
    assert rows(found)["y", "hidden"]["failed"] == 3


def test_hidden_positions_do_not_count_where_one_model_skips_them(tmp_path):
    zeros = open_runner(tiny.make(tmp_path / "zeros.onnx", {"y": "ids * mask", "first": "ids + mask"}))
    zeros.skips = True
    full = tiny.make(tmp_path / "full.onnx", {"y": "ids * 1", "first": "ids + mask"})
    found = compare(full, zeros, samples=4, batch_size=2, sequence_length=6)
    assert found.same
    table = rows(found)
    assert table["y", "visible"]["worst"] == 0
    assert table["y", "hidden, not counted"]["worst"] > 0
    assert table["y", "hidden, not counted"]["failed"] == 3
    assert ("first", "hidden, not counted") not in table
    assert found.facts["verdict"].endswith("hidden positions, which do not count, differ")
    assert "Padding positions differ" in found.notes[-1]


def test_outputs_are_matched_by_name_else_by_shape_and_content(tmp_path):
    formula = {"a": "ids * 2", "b": "ids * 3", "first": "ids + mask"}
    one = tiny.make(tmp_path / "one.onnx", formula)
    swapped = tiny.make(tmp_path / "swapped.onnx", {"b": "ids * 2", "a": "ids * 3", "first": "ids + mask"})
    renamed = tiny.make(tmp_path / "renamed.onnx", {"x": "ids * 3", "z": "ids * 2", "first_token": "ids + mask"})
    fewer = tiny.make(tmp_path / "fewer.onnx", {"a": "ids * 2"})
    size = {"samples": 4, "batch_size": 2, "sequence_length": 6}
    assert compare(one, one, **size).same
    assert not compare(one, swapped, **size).same
    found = compare(one, renamed, **size)
    assert found.same
    assert "Output a was compared with z, by shape and content." in found.notes
    assert "Output b was compared with x, by shape and content." in found.notes
    found = compare(one, fewer, **size)  # it could not take the other's place
    assert not found.same
    assert "output b is missing" in found.facts["verdict"]
    assert compare(fewer, one, **size).same
    with pytest.raises(FusebertError, match="no output of"):
        compare(fewer, tiny.make(tmp_path / "other.onnx", {"first": "ids * 1"}), **size)


def test_sizes_that_models_insist_on(tmp_path):
    static = zoo.get("onnx-bert-17-static").make()
    found = compare(static, static, samples=4)
    assert (found.same, found.facts["size"]) == (True, "2 x 6")
    assert "batch size is 2" in found.notes[0]
    with pytest.raises(FusebertError, match="batch size 3 is not possible"):
        compare(static, static, batch_size=3)
    free = zoo.get("onnx-bert-14-eager").make()
    with pytest.raises(FusebertError, match="up to 40 tokens"):
        compare(free, free, sequence_length=41)
    assert compare(free, free, samples=4).facts["size"] == "1 x 40"
    with pytest.raises(FusebertError, match="samples must be at least 1"):
        compare(free, free, samples=0)
    with pytest.raises(FusebertError, match="rtol and atol"):
        compare(free, free, rtol=-1)
    assert compare(free, free, samples=2, sequence_length=1).facts["paddings"] == {"none": 2}


def test_a_model_without_a_mask_is_not_asked_about_padding():
    path = zoo.get("onnx-bert-1-input").make()
    found = compare(path, path, samples=2, precision="fp32")
    assert found.same
    assert found.facts["paddings"] == {"none": 2}
    assert "takes no mask" in found.notes[0]


def test_inputs_can_be_named_for_the_model_that_has_them(tmp_path):
    clear = tiny.make(tmp_path / "clear.onnx", {"y": "ids * mask"})
    unclear = tiny.make(tmp_path / "unclear.onnx", {"y": "p * q"}, {"p": "int64", "q": "int64"})
    with pytest.raises(FusebertError, match="not clear"):
        compare(clear, unclear, samples=2, sequence_length=4)
    assert compare(clear, unclear, samples=2, sequence_length=4, inputs={"ids": "p", "mask": "q"}).same
    with pytest.raises(FusebertError, match="no input 'nobody'"):
        compare(clear, clear, samples=2, inputs={"ids": "nobody"})


def test_inputs_and_outputs_can_be_kept(tmp_path):
    path = zoo.get("onnx-bert-14-eager").make()
    compare(path, path, samples=3, batch_size=2, sequence_length=8, output_dir=tmp_path)
    folder = tmp_path / "batch_2_seq_8"
    assert sorted(p.name for p in folder.iterdir()) == [f"test_data_set_{i}" for i in range(3)]
    from onnxruntime import InferenceSession

    session = InferenceSession(path)
    for place in folder.iterdir():
        tensors = {file.stem: onnx.load_tensor(file) for file in place.iterdir()}
        arrays = {name: (tensor.name, onnx.numpy_helper.to_array(tensor)) for name, tensor in tensors.items()}
        assert sorted(arrays) == ["input_0", "input_1", "input_2", "output_0", "output_1"]
        assert [arrays[f"input_{k}"][0] for k in range(3)] == [given.name for given in session.get_inputs()]
        want = session.run(None, dict(arrays[f"input_{k}"] for k in range(3)))
        for k, output in enumerate(session.get_outputs()):
            assert arrays[f"output_{k}"][0] == output.name
            np.testing.assert_allclose(arrays[f"output_{k}"][1], want[k], atol=1e-5)


# Models of different kinds


def test_a_checkpoint_its_artifact_and_lower_precisions(tmp_path):
    folder = stock.make(tmp_path / "model", "bert", "sequence")
    fusebert.load(folder, "int8").save(tmp_path / "int8")
    found = compare(folder, tmp_path / "int8", samples=8, sequence_length=24)
    assert found.same
    assert found.facts["tolerance"].startswith("int8")
    assert not compare(folder, tmp_path / "int8", samples=4, rtol=1e-5, atol=1e-6).same  # if asked for, to the letter
    exact = compare(folder, folder, samples=8, precision="fp32", batch_size=2, sequence_length=24)
    assert (exact.same, exact.facts["tolerance"]) == (True, "rtol 0.001, atol 0.0001")
    assert exact.title.endswith("by fusebert fp32")
    other = stock.make(tmp_path / "other", "bert", "sequence", seed=1)
    assert not compare(folder, other, samples=2).same
    assert not compare(fusebert.load(folder), fusebert.load(other)).same


@pytest.mark.parametrize(("baseline", "other", "precision"), [
    ("tf-bert", "tf2onnx-bert", None),  # a SavedModel and an ONNX file
    ("tf-bert-question", "tf-bert-question", "fp32"),
    ("tf-official", "tf-official", "bf16"),
    ("tf-bert-token-frozen", "tf-bert-token-frozen", "fp32"),
    ("onnx-roberta-sequence", "onnx-roberta-sequence", "int8"),
    ("onnx-pair", "onnx-pair", None),
])  # fmt: skip
def test_any_two_kinds(baseline, other, precision):
    found = compare(zoo.get(baseline).make(), zoo.get(other).make(), samples=8, precision=precision)
    assert found.same, found.facts
    assert set(found.facts["paddings"]) == set(PADDINGS)


# A framework that rewrites graphs, as TensorFlow does on some processors


class Rewriting(Fusebert):
    """A model whose framework changes all answers by 0.01, unless its graph is run as written."""

    def answer(self, prepared):
        return {name: value + 0.01 for name, value in super().answer(prepared).items()}

    def as_written(self):
        return Fusebert(self._model)


def test_what_the_framework_changes_is_told_apart_from_what_we_change(tmp_path):
    model = fusebert.load(stock.make(tmp_path / "model", "bert"))
    found = compare(Rewriting(model), model)
    assert found.same
    assert "of the unoptimised graph" in found.facts["verdict"]
    assert found.facts["own_optimisations"] == pytest.approx(0.01, rel=1e-3)
    assert found.facts["unoptimised"] == 0
    told = "TensorFlow's own optimisations change its answers by up to 0.01; the other model differs from the unoptim"
    assert any(note.startswith(told) for note in found.notes)
    assert compare(model, Rewriting(model)).same
    both = compare(Rewriting(model), Rewriting(model))  # as users run them: nothing is to be explained
    assert both.same
    assert "own_optimisations" not in both.facts


def test_what_differs_from_the_graph_as_written_is_different_whatever_the_framework_changes(tmp_path):
    model, other = (fusebert.load(stock.make(tmp_path / str(seed), "bert", seed=seed)) for seed in (0, 1))
    found = compare(Rewriting(model), other)
    assert not found.same
    assert found.facts["own_optimisations"] == pytest.approx(0.01, rel=1e-3)
    assert found.facts["unoptimised"] > 0.1


@pytest.fixture
def rewriting(monkeypatch):
    """TensorFlow whose own rewriting changes a frozen graph's answers by 0.01, on every processor."""
    answer = TensorFlow.answer

    def changed(self, prepared):
        off = 0.01 if self._rewrites and "optimized" not in self.name else 0.0
        return {name: value + off for name, value in answer(self, prepared).items()}

    monkeypatch.setattr(TensorFlow, "answer", changed)


def test_right_results_are_written_where_tensorflow_changes_the_original(rewriting, tmp_path):
    original = zoo.get("tf-bert-frozen").make()
    report = fusebert.optimize(original, tmp_path / "optimized.pb", "fp32")
    assert report.facts["verdict"] == "same answers within tolerance"
    assert any("TensorFlow's own optimisations change its answers by up to 0.01" in note for note in report.notes)
    assert compare(original, original, precision="fp32", samples=4).same
    assert compare(original, tmp_path / "optimized.pb", samples=4).facts["own_optimisations"] > 0.009


def test_tensorflow_is_left_as_it_was(tmp_path):
    tensorflow = pytest.importorskip("tensorflow")
    options = tensorflow.config.optimizer.get_experimental_options
    runner, before = open_runner(zoo.get("tf-bert-frozen").make()), options()
    ids = np.ones((2, 5), np.int64)
    answers = runner.run(ids, ids, ids)
    as_written = runner.as_written().run(ids, ids, ids)
    assert options() == before
    assert all((value == answers[name]).all() for name, value in runner.run(ids, ids, ids).items())
    assert all(stock.error(value, answers[name]) < 0.01 for name, value in as_written.items())


@pytest.fixture
def texts(tmp_path):
    """A classifier with a vocabulary, and a task of five texts for it."""
    folder = stock.make_reader(tmp_path / "model", "sequence")
    said = ("the cat sat", "the dog ran", "the", "cat dog cat dog cat dog cat", "ran ran")
    (tmp_path / "task.tsv").write_text("text\tlabel\n" + "".join(f"{text}\t1\n" for text in said))
    return folder, tmp_path / "task.tsv"


def test_the_texts_of_a_task(texts, tmp_path):
    folder, task = texts
    found = compare(folder, folder, task=task, precision="int8")
    assert (found.same, found.facts["samples"], found.facts["size"]) == (True, 5, "1 x 3 to 1 x 9")
    assert found.facts["paddings"] == {"right": 5}
    assert "5 texts of task.tsv" in found.notes[0]
    found = compare(folder, folder, task=task, precision="fp32", samples=3, batch_size=2, sequence_length=5)
    assert (found.facts["samples"], found.facts["size"]) == (2, "2 x 5 to 2 x 5")
    other = stock.make(tmp_path / "other", "bert", "sequence", seed=1, vocab_size=len(stock.WORDS))
    assert not compare(folder, other, task=task).same
    static = zoo.get("onnx-bert-17-static").make()
    assert compare(static, static, data=task, tokenizer=folder).facts["size"] == "2 x 6 to 2 x 6"
    with pytest.raises(FusebertError, match="there is no tokenizer"):
        compare(static, static, task=task)
    with pytest.raises(FusebertError, match="give --data FILE"):
        compare(folder, folder, task="mrpc")


# The command


@pytest.fixture
def run(run):
    return partial(run, "compare")


def test_the_command_its_verdict_and_its_exit_codes(run, tmp_path):
    one = tiny.make(tmp_path / "one.onnx", {"y": "ids * mask"})
    two = tiny.make(tmp_path / "two.onnx", {"y": "ids + mask"})
    size = ("--samples", 4, "--sequence-length", 8, "--batch-size", 2)
    assert "same answers: 4 samples" in run(one, one, *size).replace("\n", " ")
    assert "different answers" in run(one, two, *size, code=1)
    data = json.loads(run(one, two, *size, "--json", "--seed", 1, "--output-dir", tmp_path / "kept", code=1))
    assert data["same"] is False
    assert {row["at"] for row in data["outputs"]} == {"visible", "hidden"}
    assert data["paddings"] == {"right": 1, "left": 1, "holes": 1, "none": 1}
    assert len(list((tmp_path / "kept" / "batch_2_seq_8").iterdir())) == 4
    assert json.loads(run(one, two, *size, "--rtol", 9, "--atol", 9999, "--json"))["same"] is True
    told = ("--input-ids", "ids", "--input-mask", "mask")
    assert "same answers" in run(one, one, *size, *told)
    assert "no input" in run(one, one, *size, "--segment-ids", "nobody", code=2)
    assert "does not exist" in run(one, tmp_path / "nothing", code=2)
    assert json.loads(run(one, tmp_path / "nothing", "--json", code=2))["error"]
    assert "No such option" in run(one, one, "--gpu", code=2)
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    assert "precision 'fp8' is unknown" in run(checkpoint, checkpoint, "--precision", "fp8", code=2)
    assert "same answers" in run(checkpoint, checkpoint, "--precision", "fp32", "--samples", 4)


def test_the_command_takes_a_task(run, texts):
    folder, task = texts
    data = json.loads(run(folder, folder, "--precision", "fp32", "--task", task, "--samples", 2, "--json"))
    assert (data["same"], data["samples"]) == (True, 2)
    assert "use one of mrpc, sst2, stsb" in run(folder, folder, "--task", "cola", "--data", task, code=2)
