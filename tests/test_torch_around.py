"""The PyTorch front door where an encoder is a part of a larger model: those of other packages answer as before.

They live in build/around and run in a process of their own, under transformers 5 and 4."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[1] / "build"
SCRIPT = Path(__file__).parent / "around.py"


def answers(folder: Path, *models: str, path: tuple[Path, ...] = ()) -> dict[str, dict]:
    """What tests/around.py says of these models, each beside its fused copy."""
    if not (BUILD / "around" / ".installed").exists():
        pytest.skip("build/around is missing: run `make build/around/.installed`")
    known = os.pathsep.join(map(str, (*path, BUILD / "around")))
    ended = subprocess.run(
        [sys.executable, SCRIPT, folder, *models],
        env={**os.environ, "PYTHONPATH": known, "USE_TF": "0", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1])


def check(found: dict[str, dict], count: int) -> None:
    assert len(found) == count
    for name, said in found.items():
        assert said["fused"], name
        assert not said["warnings"], name
        assert said["same_answers"], name
        assert said["error"] < 1e-4, name


def test_gliner_setfit_and_sentence_transformers(tmp_path):
    check(answers(tmp_path, "gliner", "gliner-layers", "setfit", "sentence"), 4)


def test_gliner_under_transformers_4(tmp_path):
    if not (BUILD / "legacy" / ".installed").exists():
        pytest.skip("build/legacy is missing: run `make build/legacy/.installed`")
    check(answers(tmp_path, "gliner", "gliner-layers", path=(BUILD / "legacy",)), 2)
