"""How commands end: a sentence or a JSON object, and an exit code that tells whose fault it was. Nothing is left
behind, and nobody sees a traceback but for a defect."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import stock
import zoo

from fusebert.report import Report, Table


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return stock.make_reader(tmp_path_factory.mktemp("checkpoint"), "sequence")


def command(*words: object, code: str = "from fusebert.cli import main; main()", **options: object):
    """A command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True, errors="replace", **options
    )  # type: ignore[call-overload]


def limit_files() -> None:
    """No file may grow beyond this, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


@pytest.mark.parametrize(("name", "to"), [("", "out"), ("onnx-bert-14-eager", "out.onnx"), ("tf1-frozen", "out.pb")])
def test_a_full_disk_is_a_sentence_and_leaves_nothing(checkpoint, name, to, tmp_path):
    model, out = zoo.get(name).make() if name else checkpoint, tmp_path / to
    words = ("optimize", model, "-o", out, "--precision", "fp32", "--no-verify")
    told = command(*words, preexec_fn=limit_files)
    assert told.returncode == 2, told
    assert len(told.stderr.splitlines()) == 1
    assert f"{out} cannot be written" in told.stderr
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_not_unicode_is_refused_in_a_sentence(run, checkpoint, tmp_path):
    out = Path(os.fsdecode(os.fsencode(tmp_path) + b"/out\xff"))
    told = command("optimize", checkpoint, "-o", out)
    assert told.returncode == 2
    assert "is not UTF-8" in told.stderr
    assert len(told.stderr.splitlines()) == 1
    assert "is not UTF-8" in json.loads(command("optimize", checkpoint, "-o", out, "--json").stdout)["error"]
    shutil.copytree(checkpoint, out)
    told = command("inspect", out)  # reading is fine
    assert told.returncode == 0, told
    assert "\\udcff" in told.stdout


def test_weights_that_may_not_be_read_are_not_said_to_be_missing(checkpoint, tmp_path):
    folder = Path(shutil.copytree(checkpoint, tmp_path / "model"))
    (folder / "model.safetensors").chmod(0)
    words = [sys.executable, "-m", "fusebert", "run", str(folder), "text"]
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("the administrator may read everything; setpriv is not installed")
        words = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *words]
    told = subprocess.run(words, capture_output=True, text=True)
    assert told.returncode == 2
    assert "model.safetensors cannot be read: Permission denied" in told.stderr


INTERRUPTED = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from fusebert.cli import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize("module", ["fusebert.cli.call", "numpy", "typer", "tokenizers", "safetensors"])
def test_an_interrupt_is_a_line_also_while_importing(module, checkpoint):
    told = command(module, "run", checkpoint, "text", code=INTERRUPTED)
    assert (told.returncode, told.stdout, told.stderr) == (130, "", "fusebert: interrupted\n")


def test_an_interrupt_at_work_leaves_nothing(checkpoint, tmp_path, run, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("fusebert.formats.artifact.write", interrupt)
    assert "interrupted" in run("optimize", checkpoint, "-o", tmp_path / "out", code=130)
    assert not list(tmp_path.iterdir())


def test_a_defect_is_told_as_one(run, monkeypatch):
    monkeypatch.setattr("fusebert.verbs.doctor.doctor", lambda: {}["nothing"])
    told = run("doctor", code=70)
    assert re.search(
        r"a defect in fusebert, please report it with its reference [0-9a-f]{8}.*: KeyError: 'nothing'", told
    )
    assert told.count("\n") == 1
    assert "a defect" in json.loads(run("doctor", "--json", code=70))["error"]
    monkeypatch.setenv("FUSEBERT_TRACEBACK", "1")
    assert "Traceback" in run("doctor", code=70)


def test_words_that_are_wrong_are_json_too(run, checkpoint):
    for words in (("run", checkpoint, "--bf16", "x"), ("optimise",), ("run",), ("bench", checkpoint, "-b", "few"),
                  ("optimize", checkpoint, "-o", "x", "--threads", "0")):  # fmt: skip
        assert json.loads(run(*words, "--json", code=2))["error"]
    assert "Did you mean 'optimize'?" in run("optimise", code=2)


def test_json_has_numbers_only(run, monkeypatch):
    numbers = Table("numbers", ("a", "b"), ((float("inf"), 1.5), (float("nan"), 2)))
    monkeypatch.setattr("fusebert.verbs.doctor.doctor", lambda: Report("x", {"c": [float("-inf")]}, (numbers,)))

    def refuse(word: str) -> None:
        raise AssertionError(word)

    told = json.loads(run("doctor", "--json"), parse_constant=refuse)
    assert told["numbers"] == [{"a": None, "b": 1.5}, {"a": None, "b": 2}]
    assert told["c"] == [None]


def test_a_reader_may_stop_reading(checkpoint):
    words = [sys.executable, "-m", "fusebert", "inspect", str(checkpoint)]
    for more in ((), ("--json",)):
        with subprocess.Popen([*words, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            assert process.stderr.read() == ""
        assert process.returncode == 128 + signal.SIGPIPE
