"""The commands as a user runs them: output, JSON, exit codes."""

import json
import subprocess
import sys

import pytest
import stock

from fusebert.formats import huggingface
from fusebert.measure import difference


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {head: stock.make_reader(tmp_path_factory.mktemp(head), head) for head in stock.HEADS}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int8-bf16"])
def test_optimize_writes_an_artifact_and_proves_it(run, folders, tmp_path, precision):
    report = json.loads(run("optimize", folders["none"], "-o", tmp_path / "out", "--precision", precision, "--json"))
    assert report["precision"] == precision
    assert report["verdict"] == "same answers within tolerance"
    assert report["bytes_before"] == huggingface.read(folders["none"]).bytes
    assert [row["output"] for row in report["differences"]] == ["last_hidden_state", "pooler_output"]
    assert sorted(f.name for f in (tmp_path / "out").iterdir()) == [
        "fusebert.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out"]
    facts = json.loads(run("inspect", tmp_path / "out", "--json"))
    assert (facts["kind"], facts["precision"]) == ("fusebert artifact", precision)
    assert sum(row["parameters"] for row in facts["weights"]) > 10000


def test_optimize_refuses_to_overwrite_and_to_differ(run, folders, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    before = sorted(folders["none"].iterdir())
    assert "never replaced" in run("optimize", folders["none"], "-o", folders["none"], "--overwrite", code=2)
    assert sorted(folders["none"].iterdir()) == before
    assert "exists" in run("optimize", folders["none"], "-o", tmp_path / "out", code=2)
    run("optimize", folders["none"], "-o", tmp_path / "out", "--overwrite")
    (tmp_path / "file").write_text("mine")
    for flags in ((), ("--overwrite",)):
        run("optimize", folders["none"], "-o", tmp_path / "file", *flags, code=2)
    assert (tmp_path / "file").read_text() == "mine"
    monkeypatch.setitem(difference.LIMITS, "int8", difference.Limit(1e-9, 1.0, 0.0, 0.0))
    message = run("optimize", folders["none"], "-o", tmp_path / "new", code=1)
    assert "nothing was written" in message
    assert not (tmp_path / "new").exists()
    run("optimize", folders["none"], "-o", tmp_path / "new", "--no-verify")


def test_run_answers_for_every_head(run, folders):
    labels = json.loads(run("run", folders["sequence"], "the cat", "the dog", "--json"))["labels"]
    assert [row["text"] for row in labels] == ["the cat", "the dog"]
    spans = json.loads(run("run", folders["token"], "the cat", "--json"))["spans"]
    assert [row["found"] for row in spans] == ["the", "cat"]
    answer = json.loads(run("run", folders["question"], "--pair", "what is red", "the cat is red", "--json"))["spans"]
    assert answer[0]["found"] in "the cat is red"
    words = json.loads(run("run", folders["masked"], "the [MASK]", "--json"))["words"]
    assert len(words) == 5
    similar = json.loads(run("run", folders["none"], "the cat", "the dog", "--json"))["similarity"]
    assert similar[0]["1"] == 1
    assert len(json.loads(run("run", folders["none"], "the cat", "--json"))["embeddings"][0]) == 64
    shown = run("run", folders["none"], "the [bold] cat", "the dog [/b]")
    assert "the [bold] cat" in shown
    assert "the dog [/b]" in shown


def test_mistakes_are_one_sentence_with_exit_code_2(run, folders, tmp_path):
    assert "nothing does not exist" in run("run", tmp_path / "nothing", "text", code=2)
    assert json.loads(run("inspect", tmp_path, "--json", code=2))["error"]
    assert "even number" in run("run", folders["none"], "--pair", "one", code=2)
    assert "fp32, bf16" in run("optimize", folders["none"], "-o", tmp_path / "x", "--precision", "fp8", code=2)
    assert "No such option" in run("run", folders["none"], "--bf16", "x", code=2)


def test_doctor_tells_cores_isa_and_frameworks(run):
    facts = json.loads(run("doctor", "--json"))
    assert facts["cores_usable"] >= 1
    assert facts["isa"] in facts["isas"]
    states = {row["framework"]: row["state"] for row in facts["frameworks"]}
    assert states["torch"] == "runs the fused operator"


def test_the_console_script_and_its_help():
    shown = subprocess.run(
        [sys.executable, "-m", "fusebert", "optimize", "--help"], capture_output=True, text=True, check=True
    )
    assert "Example: fusebert optimize" in shown.stdout
