"""What an output is, by how the graph makes it, and what counts in a comparison of it: decisions with their
probabilities and margins for classifiers, directions for vectors, answers for spans; whatever outputs are called."""

import numpy as np
import onnx
import pytest
import stock
import tiny
import zoo

import fusebert
from fusebert.measure.compare import compare
from fusebert.measure.difference import difference, within
from fusebert.measure.kinds import Kind
from fusebert.measure.runners import Fusebert, open_runner

FEW = {"samples": 6, "batch_size": 2, "sequence_length": 8}


def renamed(name: str, folder) -> str:
    """A model of the zoo whose outputs are called a, b and so on."""
    path = folder / f"{name}.onnx"
    model = onnx.load(zoo.get(name).make())
    for letter, output in zip("abcd", model.graph.output, strict=False):
        model.graph.node.append(onnx.helper.make_node("Identity", [output.name], [letter]))
        output.name = letter
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(("name", "kinds"), [
    ("onnx-bert-14-eager", [Kind(), Kind(head=True)]),
    ("onnx-bert-sequence", [Kind("classes")]),
    ("onnx-bert-token", [Kind("classes")]),
    ("onnx-bert-masked", [Kind("classes")]),
    ("onnx-bert-masked-mean", [Kind()]),
    ("onnx-bert-question", [Kind("positions"), Kind("positions"), Kind("answer")]),
    ("tf2onnx-tf1-one-hot", None),
])  # fmt: skip
def test_outputs_are_known_by_the_graph_whatever_they_are_called(tmp_path, name, kinds):
    path = renamed(name, tmp_path)
    found = compare(path, path, **FEW)
    assert found.same
    assert [d.kind for d in found] == (kinds or [d.kind for d in compare(zoo.get(name).make(), path, **FEW)])
    for d in found:
        decides = d.kind.name in ("classes", "answer")
        assert (d.decisions > 0) == decides, d
        assert d.flips == 0


def test_a_softmax_at_the_end_is_read_as_probabilities(tmp_path):
    path = zoo.get("tf1-saved-classifier").make()
    found = compare(path, path, samples=2)
    assert [d.kind for d in found] == [Kind("classes", "probabilities")]


def test_checkpoints_and_artifacts_know_their_heads(tmp_path):
    for head, kinds in (
        ("sequence", ["classes"]), ("token", ["classes"]), ("masked", ["classes"]), ("none", ["vector", "vector"]),
        ("question", ["positions", "positions", "answer"]),
    ):  # fmt: skip
        folder = stock.make(tmp_path / head, "bert", head)
        for runner in (open_runner(folder), open_runner(folder, "fp32")):
            assert [d.kind.name for d in compare(runner, runner, **FEW)] == kinds


def test_flips_are_counted_with_the_margin_that_they_had():
    a = np.array([[2.0, 0.0], [0.1, 0.0], [0.0, 3.0]])
    b = np.array([[2.1, 0.0], [0.0, 0.1], [0.0, 3.0]])
    found = difference("x", a, b, Kind("classes"))
    assert (found.decisions, found.flips) == (3, 1)
    assert found.margin == pytest.approx(np.tanh(0.05))
    shares = 1 / (1 + np.exp(-np.array([[2.0, -2.0], [0.1, -0.1]])))
    other = 1 / (1 + np.exp(-np.array([[2.0, -2.0], [0.1, 0.1]])))
    found = difference("x", shares, other, Kind("classes", "independent"))
    assert (found.decisions, found.flips) == (2, 1)
    assert difference("x", np.array([[1, 2]]), np.array([[1, 3]]), Kind("labels")).flips == 1
    logarithms = np.log(shares / shares.sum(-1, keepdims=True))
    assert difference("x", logarithms, logarithms, Kind("classes", "log probabilities")).flips == 0


def test_scores_near_zero_count_by_decisions_and_not_by_their_angle():
    """Logits of random ids are small where a classifier is undecided; their angle says nothing then."""
    random = np.random.default_rng(0)
    a = random.normal(0, 1.5, (100, 1)) * np.array([[1.0, -1.0]])
    b = a + random.normal(0, 0.12, a.shape)
    assert within([difference("x", a, b, Kind("classes"))], "int8")
    assert not within([difference("x", a, b)], "int8")
    assert not within([difference("x", a, b[:, ::-1], Kind("classes"))], "int8")


class Noisy(Fusebert):
    """A model whose scores are off by random numbers."""

    def __init__(self, model, amount):
        super().__init__(model)
        self._amount, self._random = amount, np.random.default_rng(1)
        self.roles = self.roles.__class__(**{**vars(self.roles), "precision": "int8"})

    def answer(self, prepared):
        answers = super().answer(prepared)
        return {name: v + self._random.normal(0, self._amount, v.shape) for name, v in answers.items()}


@pytest.mark.parametrize("head", ["sequence", "token", "question", "masked", "none"])
def test_every_head_passes_with_little_noise_and_fails_with_much_and_the_verdict_says_why(tmp_path, head):
    model = fusebert.load(stock.make(tmp_path / "model", "bert", head))
    scale = np.std(next(iter(model.run(np.arange(5, 25)[None]).values())))
    assert compare(model, Noisy(model, 0.001 * scale), **FEW).same
    found = compare(model, Noisy(model, 2 * scale), **FEW)
    assert not found.same
    verdict = found.facts["verdict"]
    assert "0 of 6 samples" not in verdict
    said = {"none": "mean cosine", "question": "usually off"}.get(head, "decisions flip")
    assert said in verdict


def test_the_report_shows_decisions_apart(tmp_path):
    model = fusebert.load(stock.make(tmp_path / "model", "bert", "sequence"))
    data = compare(model, Noisy(model, 0.0), **FEW).report().data()
    assert data["closeness"][0]["judged_as"] == "classes"
    (row,) = data["closeness_in_decisions"]
    assert (row["output"], row["decisions"], row["flips"]) == ("logits", 12, 0)
    worst, usual = data["closeness"][0]["worst_error"], data["closeness"][0]["usual_error"]
    assert usual <= worst


def test_whole_numbers_are_decisions(tmp_path):
    path = tiny.make(tmp_path / "a.onnx", {"y": "ids * mask"})
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("ArgMax", ["y"], ["best"], axis=1, keepdims=0))
    model.graph.output.append(onnx.helper.make_tensor_value_info("best", onnx.TensorProto.INT64, None))
    onnx.save(model, path)
    found = compare(path, path, **FEW)
    assert {d.output: d.decisions for d in found} == {"y": 0, "best": 12}


def test_a_real_classifier_in_int8_counts_by_decisions(shared_data):
    """Of the MRPC model's logits, whose direction means little, it is decisions that count, and hardly one flips."""
    folder = shared_data.parent / "models" / "minilm-mrpc"
    if not folder.is_dir():
        pytest.skip(f"{folder} is missing")
    found = compare(fusebert.load(folder), fusebert.load(folder, "int8"), samples=60, sequence_length=64)
    (logits,) = found
    assert (found.same, logits.decisions) == (True, 60)
    assert logits.flips <= 2
