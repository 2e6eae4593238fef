"""Killed at random moments, `optimize`, `save`, `replace-pattern` and `calibrate` never harm the original, leave the
whole of what they make or nothing of it, and the next run tidies up. `make soak` kills each two hundred times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import make_checkpoint
from recipes import toys

KILLS = int(os.environ.get("FUSEBERT_KILLS", "6"))
TEXT = "x Placeholder dtype=DT_FLOAT\nc Const value=2.5\na AddV2 x c\nb Mul a c\ne Erf b\nf Relu e"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("killed")
    make_checkpoint(home / "checkpoint", layers=1, vocab=True)
    (home / "texts.txt").write_text("the cat sat\nunable dogs ran\n" * 4)
    toys.recipe(home / "recipe.pb", toys.frozen(home / "model.pb", TEXT), "e", "x c")
    return home


@pytest.mark.parametrize("verb", ["optimize", "save", "replace", "calibrate"])
def test_a_kill_leaves_the_original_and_all_or_nothing(home: Path, verb: str) -> None:
    program = Path(__file__).parent / "killed.py"
    words = [sys.executable, str(program), verb, str(home), str(KILLS), "7"]
    told = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    found = json.loads(told.stdout)
    assert not found["wrong"]
    assert KILLS < 100 or found["unfinished"] > KILLS // 2  # enough of them came before the end
