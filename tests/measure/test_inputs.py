"""What inputs are fed with: by what a graph does with them, whatever they are called; and what is said of names that
mislead, of inputs that nothing depends on, and of those that must be given."""

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import stock
import tiny
import zoo

import fusebert
from fusebert.errors import FusebertError
from fusebert.measure.accuracy import accuracy
from fusebert.measure.compare import compare
from fusebert.measure.runners import open_runner
from fusebert.verbs.inspect import inspect

NAMES = ("input_ids", "attention_mask", "token_type_ids")
SWAPPED = {"input_ids": "input_ids", "attention_mask": "token_type_ids", "token_type_ids": "attention_mask"}
FEW = {"samples": 4, "batch_size": 2, "sequence_length": 8}
MAKE = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})"
    + """
import tensorflow as tf
import zoo

out, v1 = sys.argv[1], tf.compat.v1
rows = tf.TensorSpec([None, None], tf.int32)

class Swapped(tf.Module):
    def __init__(self):
        super().__init__()
        self.inner = tf.saved_model.load(str(zoo.get("tf-bert").make()))

    @tf.function(input_signature=[rows] * 3)
    def serve(self, input_ids, attention_mask, token_type_ids):
        call = self.inner.signatures["serving_default"]
        return call(input_ids=input_ids, attention_mask=token_type_ids, token_type_ids=attention_mask)

module = Swapped()
tf.saved_model.save(module, out + "/swapped", signatures=module.serve)

with v1.Session(graph=tf.Graph()) as session:
    meta = v1.saved_model.load(session, ["serve"], str(zoo.get("tf1-saved-classifier").make()))
    signature = meta.signature_def["serving_default"]
    tensor = session.graph.get_tensor_by_name
    inputs = {name: tensor(info.name) for name, info in signature.inputs.items()}
    for name in ("label_ids", "is_real_example"):
        inputs[name] = v1.placeholder(tf.int32, [None], name)
    outputs = {name: tensor(info.name) for name, info in signature.outputs.items()}
    v1.saved_model.simple_save(session, out + "/estimator", inputs, outputs)
"""
)


@pytest.fixture(scope="module")
def good() -> Path:
    return zoo.get("onnx-bert-sequence").make()


@pytest.fixture(scope="module")
def swapped(good, tmp_path_factory) -> Path:
    return tiny.edited(good, tmp_path_factory.mktemp("swapped") / "swapped.onnx", SWAPPED)


def misleads(notes: list[str]) -> bool:
    told = "uses its input attention_mask as the token types and token_type_ids as the mask, against the name"
    return any(told in note for note in notes)


def roles(path: Path) -> dict[str, str]:
    return {row["input"]: row["used_as"] for row in inspect(path).data()["roles"]}


# Names that mislead


def test_models_are_fed_by_what_they_do_with_their_inputs_and_contradicting_names_are_said(good, swapped, tmp_path):
    for pair in ((swapped, good), (good, swapped), (swapped, swapped)):
        found = compare(*pair, **FEW)
        assert found.same, found.facts
        assert misleads(found.notes)
    assert not misleads(compare(good, good, **FEW).notes)
    plain = tiny.edited(good, tmp_path / "plain.onnx", dict(zip(NAMES, "abc", strict=True)))
    found = compare(plain, swapped, **FEW)
    assert found.same
    assert found.facts["inputs"] == {"ids": "a", "mask": "b", "types": "c"}
    other = tiny.edited(zoo.get("onnx-bert-relu").make(), tmp_path / "other.onnx", SWAPPED)
    assert not compare(zoo.get("onnx-bert-14-eager").make(), other, **FEW).same


@pytest.mark.parametrize("target", ["onnxruntime", "stock-onnxruntime", "standalone"])
@pytest.mark.parametrize("how", [{}, {"verify": False}, {"dry_run": True}])
def test_optimize_says_so_and_is_right_about_such_a_file(swapped, tmp_path, target, how):
    out = tmp_path / ("model" if target == "standalone" else "model.onnx")
    report = fusebert.optimize(swapped, out, "fp32", target, **how)
    assert misleads(report.notes)
    assert how or report.facts["verdict"].startswith("same answers")


def test_accuracy_says_so_and_scores_both_alike(good, swapped, tmp_path):
    texts = "".join(f"{text}\t{i % 2}\n" for i, text in enumerate(("the cat sat", "a dog ran", "what is red")))
    (tmp_path / "task.tsv").write_text(texts)
    given = {"task": tmp_path / "task.tsv", "tokenizer": stock.make_reader(tmp_path / "reader", "sequence")}
    right, misled = (accuracy([path], **given) for path in (good, swapped))
    assert misleads(misled.notes)
    assert not misleads(right.notes)
    scores = [report.data()["scores"][0] for report in (right, misled)]
    of_no_answer = ("engine", "seconds")
    assert len(scores[0]) > len(of_no_answer)
    assert all(scores[0][name] == scores[1][name] for name in scores[0] if name not in of_no_answer)


def test_inspect_says_what_each_input_is_for(good, swapped, tmp_path):
    assert roles(good) == {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "types"}
    assert not misleads(inspect(good).notes)
    assert roles(swapped) == {"input_ids": "ids", "token_type_ids": "mask", "attention_mask": "types"}
    assert misleads(inspect(swapped).notes)
    surplus = tiny.edited(good, tmp_path / "surplus.onnx", surplus={"label_ids": ["batch"]})
    assert roles(surplus)["label_ids"] == "nothing"


def test_names_that_only_contain_such_a_word_contradict_nothing(good, tmp_path):
    names = {"input_ids": "masked_input_ids", "attention_mask": "token_mask", "token_type_ids": "sentence"}
    assert not inspect(tiny.edited(good, tmp_path / "a.onnx", names)).notes


def test_what_the_user_says_counts_and_is_held_against_the_graph(good):
    found = compare(good, good, inputs={"mask": "token_type_ids", "types": "attention_mask"}, **FEW)
    assert found.facts["inputs"] == {"ids": "input_ids", "mask": "token_type_ids", "types": "attention_mask"}
    assert any("token_type_ids was fed with the mask, as told; the graph uses it as the token types" in note
               for note in found.notes)  # fmt: skip


# Inputs beside ids, mask and types


def test_inputs_that_no_answer_depends_on_get_zeros_and_are_said(good, tmp_path):
    surplus = {"label_ids": ["batch"], "is_real_example": ["batch"], "position_ids": ["batch", "length"], "flag": [1]}
    path = tiny.edited(good, tmp_path / "surplus.onnx", surplus=surplus)
    found = compare(path, good, **FEW)
    assert found.same
    for name in surplus:
        assert f"No answer depends on input {name}; it gets zeros." in found.notes
    report = fusebert.optimize(path, tmp_path / "fused.onnx", "fp32")
    assert report.facts["verdict"].startswith("same answers")
    assert fusebert.optimize(path, tmp_path / "alone", "fp32").facts["verdict"].startswith("same answers")
    assert compare(path, tmp_path / "fused.onnx", **FEW).same


def test_a_mask_that_nothing_reads_hides_nothing(tmp_path):
    path = tiny.edited(zoo.get("onnx-bert-1-input").make(), tmp_path / "a.onnx", surplus={"attention_mask": ["a", "b"]})
    found = compare(path, path, **FEW)
    assert found.facts["paddings"] == {"none": 4}
    assert "No answer depends on input attention_mask; it gets zeros." in found.notes


@pytest.fixture(scope="module")
def positioned(tmp_path_factory) -> Path:
    """A BERT whose positions are an input."""
    import torch

    folder = tmp_path_factory.mktemp("positioned")
    model = stock.load(stock.make(folder / "checkpoint", "bert", "sequence", vocab_size=600), "sequence")

    class Four(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids, mask, types, places):  # type: ignore[no-untyped-def]
            return self.model(ids, mask, types, places).logits

    names, ones, axes = (*NAMES, "position_ids"), torch.ones(2, 5, dtype=torch.long), {0: "batch", 1: "length"}
    path = folder / "model.onnx"
    given = (ones, ones, ones * 0, ones.cumsum(1) - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's age
        torch.onnx.export(
            Four(), given, str(path), dynamo=False, opset_version=17, input_names=list(names), output_names=["scores"],
            dynamic_axes=dict.fromkeys(names, axes),
        )  # fmt: skip
    return path


@pytest.mark.parametrize("target", ["onnxruntime", "stock-onnxruntime", "standalone"])
def test_positions_that_are_an_input_are_counted(positioned, tmp_path, target):
    found = compare(positioned, positioned, samples=2, precision="fp32")
    assert found.same
    assert "Input position_ids gets 0, 1, 2 and so on." in found.notes
    assert roles(positioned)["position_ids"] == "positions"
    out = tmp_path / ("model" if target == "standalone" else "model.onnx")
    assert fusebert.optimize(positioned, out, "fp32", target).facts["verdict"].startswith("same answers")


def test_an_input_that_matters_must_be_given(run, good, tmp_path):
    path = tiny.edited(good, tmp_path / "a.onnx", surplus={"temperature": [1]})
    model = onnx.load(path)
    model.graph.node.append(onnx.helper.make_node("Cast", ["temperature"], ["factor"], to=onnx.TensorProto.FLOAT))
    model.graph.node.append(onnx.helper.make_node("Mul", ["logits", "factor"], ["scaled"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("scaled", onnx.TensorProto.FLOAT, None))
    onnx.save(model, path)
    with pytest.raises(FusebertError, match=r"what temperature should get is not clear.*--fill temperature=0"):
        compare(path, path, **FEW)
    assert compare(path, path, inputs={"temperature": 2}, **FEW).same
    runner = open_runner(path, told={"temperature": 2})
    assert [role for _, role in runner.roles.fed] == ["ids", "mask", "types", 2.0]
    assert fusebert.optimize(path, tmp_path / "b.onnx", "fp32", inputs={"temperature": 2}).facts["verdict"]
    size = ("--samples", 2, "--sequence-length", 4)
    assert "same answers" in run("compare", path, path, *size, "--fill", "temperature=3")
    assert "NAME=NUMBER is expected" in run("compare", path, path, "--fill", "temperature", code=2)
    assert "no input 'nobody'" in run("compare", good, good, "--fill", "nobody=3", code=2)


def test_each_model_is_told_what_belongs_to_it(tmp_path):
    one = tiny.make(tmp_path / "one.onnx", {"y": "p * q"}, {"p": "int64", "q": "int64"})
    two = tiny.make(tmp_path / "two.onnx", {"y": "p * r"}, {"p": "int64", "r": "int64"})
    assert compare(one, two, inputs={"ids": "p", "mask": "q", "types": "r"}, **FEW)
    with pytest.raises(FusebertError, match="no input 's'"):
        compare(one, two, inputs={"ids": "p", "mask": "q", "types": "s"}, **FEW)


# TensorFlow


def test_a_savedmodel_whose_names_mislead(made, tmp_path):
    found = compare(made / "swapped", zoo.get("tf-bert").make(), **FEW)
    assert found.same, found.facts
    assert misleads(found.notes)
    assert misleads(inspect(made / "swapped").notes)
    report = fusebert.optimize(made / "swapped", tmp_path / "out", "fp32")
    assert report.facts["verdict"].startswith("same answers")
    assert misleads(report.notes)


def test_an_estimators_labels_are_filled(made, tmp_path, run):
    found = compare(made / "estimator", zoo.get("tf1-saved-classifier").make(), **FEW)
    assert found.same, found.facts
    told = [f"No answer depends on input {name}; it gets zeros." for name in ("is_real_example", "label_ids")]
    assert set(told) <= set(found.notes)
    said = json.loads(run("optimize", made / "estimator", "-o", tmp_path / "out", "--precision", "fp32", "--json"))
    assert said["verdict"].startswith("same answers")
    assert set(told) <= set(said["notes"])
    names = (
        "--input-ids",
        "input_ids",
        "--input-mask",
        "input_mask",
        "--segment-ids",
        "segment_ids",
        "--fill",
        "label_ids=1",
    )
    told_so = ("optimize", made / "estimator", "-o", tmp_path / "named", "--precision", "fp32")
    assert "same answers" in run(*told_so, *names, "--fill", "label_ids=1")
    assert "no input 'nobody'" in run(*told_so, "--overwrite", "--input-ids", "nobody", code=2)


def padded(path: Path, name: str) -> Path:
    """An encoder of torch's own, whose mask is true where a position is hidden."""
    import torch
    from torch import nn

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(24, 3, 40, activation="gelu", batch_first=True)
            self.words = nn.Embedding(50, 24)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, ids, hidden):
            return self.layers(self.words(ids), src_key_padding_mask=hidden)

    torch.manual_seed(0)
    ids = torch.zeros(2, 9, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Reader().eval(), (ids, ids > 0), path, input_names=["ids", name], dynamo=False)
    return path


@pytest.mark.parametrize(("name", "says"), [("src_key_padding_mask", False), ("attention_mask", True)])
def test_a_mask_of_what_is_hidden_gets_the_opposite(name, says, tmp_path):
    path = padded(tmp_path / "model.onnx", name)
    assert roles(path) == {"ids": "ids", name: "padding"}
    report = fusebert.optimize(path, tmp_path / "fast.onnx", "fp32", "onnxruntime")
    assert report.data()["verdict"] == "same answers within tolerance"
    assert any("against the name" in note for note in report.notes) == says
    runner = open_runner(path)
    ids = np.arange(18).reshape(2, 9)
    mask = np.ones_like(ids)
    mask[:, 5:] = 0
    (fed,) = (array for given, array in runner.feeds(ids, mask, 0 * ids).items() if given == name)
    assert (fed == (mask == 0)).all()
    assert compare(path, tmp_path / "fast.onnx", **FEW | {"sequence_length": 9}).same


@pytest.mark.parametrize("queries", [1, 9])
def test_an_additive_mask_hides_what_others_hide(queries, tmp_path):
    """An input of four dimensions that a BERT adds to its scores as it is, with a row for all queries or for each."""
    import torch
    from transformers import BertConfig, BertModel

    class Reader(BertModel):
        def forward(self, ids, mask):
            return super().forward(ids, mask).last_hidden_state

    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    torch.manual_seed(0)
    model = Reader(BertConfig(vocab_size=50, max_position_embeddings=16, **sizes), add_pooling_layer=False).eval()
    ids, path = torch.zeros(2, 9, dtype=torch.long), tmp_path / "model.onnx"
    own = {2: "length"} if queries > 1 else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model, (ids, torch.zeros(2, 1, queries, 9)), path, input_names=["ids", "mask"], output_names=["rows"],
            dynamic_axes={"ids": {0: "batch", 1: "length"}, "mask": {0: "batch", 3: "length"} | own},
            dynamo=False,
        )  # fmt: skip
    assert roles(path) == {"ids": "ids", "mask": "additive"}
    report = fusebert.optimize(path, tmp_path / "fast.onnx", "fp32", "onnxruntime")
    assert report.data()["verdict"] == "same answers within tolerance"
    assert (
        fusebert.optimize(path, tmp_path / "alone", "fp32", "standalone").data()["verdict"].startswith("same answers")
    )
    ids = np.arange(18).reshape(2, 9)
    mask = np.ones_like(ids)
    mask[:, 5:] = 0
    got = open_runner(path).run(ids, mask, 0 * ids)["rows"]
    short = open_runner(path).run(ids[:, :5], mask[:, :5], 0 * ids[:, :5])["rows"]
    np.testing.assert_allclose(got[:, :5], short, atol=1e-5)
