"""What the command line makes of words: names that are nearly right, options that belong elsewhere, the version,
completion in a shell."""

import json
import os
import subprocess
import sys

import pytest
from checkpoints import make_checkpoint
from golden.answers import GOLDEN

from fusebert.errors import suggest

ONNX = GOLDEN / "onnx" / "source.onnx"


@pytest.fixture
def folder(tmp_path):
    return make_checkpoint(tmp_path / "model", head="sequence", vocab=True)


@pytest.mark.parametrize(("words", "meant"), [
    (("optmize", "x"), "optimize"),
    (("bench", ONNX, "--sampels", 3), "--samples"),
    (("optimize", ONNX, "-o", "out.onnx", "--precision", "in8"), "int8"),
    (("optimize", ONNX, "-o", "out.onnx", "--precision", "BF16"), "bf16"),
    (("optimize", ONNX, "-o", "out.onnx", "--for", "onnxruntme"), "onnxruntime"),
    (("optimize", ONNX, "-o", "out.onnx", "--padding", "skipp"), "skip"),
    (("compare", ONNX, ONNX, "--input-ids", "input_idz"), "input_ids"),
    (("accuracy", "MODEL", "--task", "mprc", "--data", "x.tsv"), "mrpc"),
    (("accuracy", "MODEL", "--task", "mprc"), "mrpc"),
    (("run", "MODEL", "a", "--pooling", "maen", "--head", "none"), "mean"),
    (("run", "MODEL", "a", "--head", "non"), "none"),
    (("embed", "MODEL", "-", "-o", "out", "--task", "clasify"), "classify"),
    (("calibrate", "MODEL", "--data", "x.txt", "-o", "out.json", "--method", "percentil"), "percentile"),
    (("inspect", str(ONNX).replace("source", "sorce")), "source.onnx"),
])  # fmt: skip
def test_a_name_that_is_nearly_right_is_answered_with_the_one_that_is(run, folder, tmp_path, monkeypatch, words, meant):
    monkeypatch.chdir(tmp_path)
    for name in ("x.tsv", "x.txt"):
        (tmp_path / name).write_text("text\tlabel\nthe cat\t1\n")
    said = " ".join(run(*(folder if word == "MODEL" else word for word in words), code=2).split())
    told = said.lower().partition("did you mean")[2] or said.partition("Possible options")[2]
    assert meant in told, said


def test_names_are_suggested_whatever_their_case_and_by_their_last_part():
    assert suggest("INT8", ["fp32", "int8"]) == "; did you mean int8?"
    assert suggest("add_1", ["bert/layer_11/add_1", "bert/mul"]) == "; did you mean bert/layer_11/add_1?"
    assert suggest("nothing", ["fp32"]) == ""


@pytest.mark.parametrize(("words", "reason"), [
    (("--num-heads", 99), "not 99"),
    (("--hidden-size", 7), "not 7"),
    (("--padding", "nonsense"), "padding"),
    (("--padding", "skip"), "option 'padding' is for onnxruntime and tensorflow"),
    (("--fast-gelu",), "fast_gelu"),
    (("--float16",), "float16"),
])  # fmt: skip
def test_options_that_mean_nothing_for_a_checkpoint_are_refused(run, folder, tmp_path, words, reason):
    assert reason in run("optimize", folder, "-o", tmp_path / "out", *words, code=2)
    assert not (tmp_path / "out").exists()


def test_an_option_for_another_machine_is_told(run, folder, tmp_path):
    assert "--gpu-only is left out: fusebert writes models for CPUs" in run(
        "optimize", folder, "-o", tmp_path / "out", "--gpu-only"
    )


def test_a_name_on_the_hub_is_told_how_to_be_fetched(run):
    said = run("inspect", "sentence-transformers/all-MiniLM-L6-v2", code=2)
    assert "does not exist" in said
    assert "hf download sentence-transformers/all-MiniLM-L6-v2" in said
    assert "hf download" not in run("inspect", "model.onnx", code=2)


def test_the_error_about_an_existing_output_names_the_option(run, folder, tmp_path):
    run("optimize", folder, "-o", tmp_path / "out")
    assert "--overwrite" in run("optimize", folder, "-o", tmp_path / "out", code=2)


@pytest.mark.parametrize("words", [("--nonsense",), ("bench", "--nonsense"), ("run",), ("nonsense",)])
def test_errors_about_the_words_themselves_are_json_too(run, words):
    assert set(json.loads(run(*words, "--json", code=2))) == {"error"}


def test_the_version(run):
    from importlib.metadata import version

    assert run("--version") == f"fusebert {version('fusebert')}\n"


def test_a_shell_completes_commands_and_options():
    def complete(typed):
        environment = {
            "_FUSEBERT_COMPLETE": "complete_bash",
            "COMP_WORDS": typed,
            "COMP_CWORD": "2" if " --" in typed else "1",
        }
        command = [sys.executable, "-m", "fusebert"]
        return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True).stdout.split()

    assert complete("fusebert opt") == ["optimize"]
    assert complete("fusebert bench --run") == ["--run-time"]
