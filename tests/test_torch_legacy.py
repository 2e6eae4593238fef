"""The PyTorch front door under transformers 4, which lives in a folder of its own: its tests, in another process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LEGACY = HERE.parent / "build" / "legacy"
CHOSEN = (
    "family or masks or tuples or original or precision or traced_and or compiled or exported or saving or frozen "
    "or unpadded"
)


def test_the_front_door_under_transformers_4():
    if not (LEGACY / ".installed").exists():
        pytest.skip("build/legacy is missing: run `make build/legacy/.installed`")
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning", "-k", CHOSEN]
    files = [str(HERE / name) for name in ("test_torch.py", "test_torch_graphs.py", "test_torch_families.py")]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env={**os.environ, "PYTHONPATH": str(LEGACY), "USE_TF": "0"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
