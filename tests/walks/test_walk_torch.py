"""The document about PyTorch from start to end, as its reader goes, with the command lines of docs/coming-from.md:
scores, times, and one import in a program of one's own."""

import json

import pytest
import stock
import torch
import transformers
from documented import lines, words

import fusebert.torch

fusebert.torch.disable()  # importing it is what the last test is about; others load stock models in this process
TITLE = "The operator in PyTorch"


@pytest.fixture(autouse=True)
def _stock_afterwards():
    fusebert.torch.disable()
    yield
    fusebert.torch.disable()


def test_scores_without_a_word_and_on_mrpc(run, tmp_path):
    demo, helped, *_ = (words(line, tmp_path) for line in lines(TITLE))
    said = json.loads(run(*demo, "--json"))
    assert "torch" in said["scores"][0]["engine"]
    assert any("No model was given" in note for note in said["notes"])
    assert "--task" in run(*helped)
    folder = stock.make_reader(tmp_path / "model", "sequence", num_labels=2)
    rows = [f"{i % 2}\t{i}\t{i}\tthe cat {i} sat\tthe dog {i} ran" for i in range(130)]
    (tmp_path / "msr_paraphrase_test.txt").write_text("\n".join(["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", *rows]))
    given = ("--task", "mrpc", "--data", tmp_path / "msr_paraphrase_test.txt", "--num-samples", 100)
    said = json.loads(run("accuracy", "-m", folder, *given, "--json"))
    assert len(said["scores"]) == 5


def test_times_of_a_model_by_name(run, tmp_path, monkeypatch):
    """The model is where the hub's own tools put it; it runs for a moment, not for a minute."""
    *_, timed, helped = lines(TITLE)
    assert "hf download bert-large-uncased" in run(*words(timed, tmp_path), code=2)
    cache = tmp_path / "models--bert-large-uncased"
    stock.make(cache / "snapshots" / "0123", "bert", sizes={"hidden": 39, "heads": 3, "inner": 50, "layers": 2})
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0123")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    said = json.loads(run(*words(timed.replace("=60", "=0.2"), tmp_path), "--json"))
    assert [row["engine"] for row in said["speed"]] == [
        "torch",
        "torch traced",
        "torch traced with fusebert int8",
        "fusebert int8",
    ]
    assert {row["size"] for row in said["speed"]} == {"4x128"}
    assert "--run-time" in run(*words(helped, tmp_path))


def test_one_import_before_the_model_is_loaded(tmp_path):
    folder = stock.make(
        tmp_path / "model", "bert", "sequence", sizes={"hidden": 39, "heads": 3, "inner": 50, "layers": 2}
    )
    inputs = {"input_ids": torch.arange(14).reshape(2, 7)}
    load = transformers.AutoModelForSequenceClassification.from_pretrained
    with torch.no_grad():
        want = load(folder).eval()(**inputs).logits
        fusebert.torch.enable()
        model = load(folder).eval()
        got = model(**inputs).logits
    assert "fusebert" in type(model.bert.encoder).__module__
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
