"""doctor runs the fused operator in each framework, and tells what hangs, crashes, fails or is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fusebert.engine.native import EncoderEngine
from fusebert.errors import DifferentError
from fusebert.ops.graph import Array
from fusebert.report import Report
from fusebert.verbs import doctor as verb
from fusebert.verbs import trial


def states(report: Report) -> dict[str, str]:
    return {row["framework"]: row["state"] for row in report.data()["frameworks"]}


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose trial.py is run in place of ours."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(verb, "TRIAL", "pretended")
    monkeypatch.setattr(verb, "find_spec", lambda name: name == "onnxruntime")
    return tmp_path / "pretended.py"


def test_every_framework_here_runs_the_operator() -> None:
    told = states(verb.doctor())
    assert {name: told[name] for name in verb.TRIED} == dict.fromkeys(verb.TRIED, "runs the fused operator")
    assert told["transformers"] == told["onnx"] == "is imported"


@pytest.mark.parametrize(
    ("program", "state"),
    [
        ("raise ValueError('of no use')", "fails: ValueError: of no use"),
        ("import os; os.abort()", "fails: exit code -6"),
        ("import time; time.sleep(60)", "stood still for 1 seconds"),
        ("import sys; assert sys.argv[1:] == ['onnxruntime']", "runs the fused operator"),
    ],
)
def test_what_becomes_of_a_trial(pretended: Path, monkeypatch: pytest.MonkeyPatch, program: str, state: str) -> None:
    pretended.write_text(program)
    monkeypatch.setattr(verb, "PATIENCE", 1.0 if "sleep" in program else 60.0)
    assert states(verb.doctor())["onnxruntime"] == state


def test_what_is_missing_comes_with_a_command(pretended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretended.write_text("")
    missing = {"pyarrow", "torch", "transformers"}
    known = verb.version

    def version(name: str) -> str:
        if name in missing:
            raise verb.PackageNotFoundError(name)
        return known(name)

    monkeypatch.setattr(verb, "version", version)
    report = verb.doctor()
    assert states(report)["torch"] == "not installed: pip install 'fusebert[torch]'"
    assert states(report)["onnx"] == "not installed: pip install onnx"
    extras = {row["extra"]: row for row in report.data()["extras"]}
    assert extras["embed"]["missing"] == "pyarrow"
    assert extras["embed"]["install"] == "pip install 'fusebert[embed]'"
    assert extras["serve"]["install"] == ""


def test_torch_without_transformers_has_no_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verb, "find_spec", lambda name: name == "torch")
    assert states(verb.doctor())["torch"] == "is imported; its operator needs transformers"


def test_extras_are_those_of_the_package() -> None:
    assert all([*verb._needed(extra)] for extra in verb.EXTRAS)
    assert [*verb._needed("embed")] == ["pyarrow"]


def test_notes_say_what_holds_a_machine_back() -> None:
    facts = {"cores_usable": 1, "cores_allowed": 4, "large_pages": "never"}
    told = " ".join(verb._notes(facts))
    assert "1 of 4 cores" in told
    assert "madvise" in told


def test_a_trial_fails_where_answers_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    right = EncoderEngine.run_padded

    def wrong(self: EncoderEngine, rows: Array, output: Array, *rest: Any) -> None:
        right(self, rows, output, *rest)
        output += 0.01

    monkeypatch.setattr(EncoderEngine, "run_padded", wrong)
    with pytest.raises(DifferentError, match=r"differ from torch's by 0.01"):
        trial.torch()


def test_a_trial_by_its_name() -> None:
    words = [sys.executable, "-m", verb.TRIAL]
    assert subprocess.run([*words, "onnxruntime"], capture_output=True).returncode == 0
    assert subprocess.run([*words, "nothing"], capture_output=True).returncode
