"""What all tests share: the tests' own helpers on the path, quiet frameworks, and a fixture per instruction set."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1]))  # for fuzz/
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of NumPy and torch: models are tiny, and a test runs on every core

import numpy as np
import pytest

from fusebert import cli
from fusebert.cluster import connected
from fusebert.engine import native as engine
from fusebert.formats.hub import packaged_model

PRECISIONS = ("fp32", "bf16", "int8", "int8-bf16")


SUM_LIMIT = 128  # of int8 weights that the engine adds up in 16 bits


def sums_of_four(weight: np.ndarray) -> np.ndarray:
    """What the positive ones of such weights add up to: of 0, 1, 4 and 5, and of 2, 3, 6 and 7, of eight in a row."""
    filled = np.pad(np.maximum(weight, 0).astype(np.float64), ((0, 0), (0, -weight.shape[1] % 8)))
    return filled.reshape(len(weight), -1, 2, 2, 2).sum((2, 4))


@pytest.fixture(params=engine.isas())
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every instruction set of this machine in turn, forced."""
    monkeypatch.setenv("FUSEBERT_ISA", request.param)
    return str(request.param)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """A command as it is typed: run("inspect", path, "--json", code=2) gives what it printed; `code` is how it ends."""

    def call(*words: object, code: int = 0) -> str:
        with pytest.raises(SystemExit) as stop:
            cli.main([str(word) for word in words])
        captured = capsys.readouterr()
        assert (stop.value.code or 0) == code, captured
        return captured.out + captured.err

    return call


@pytest.fixture(scope="module")
def one_torch_thread() -> Iterator[None]:
    """torch on one thread, whatever earlier tests in this process left it on."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the script MAKE of a test file wrote into a folder, in a process of its own: frameworks stay out of ours."""
    folder = tmp_path_factory.mktemp("made")
    subprocess.run([sys.executable, "-c", request.module.MAKE, str(folder)], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def minilm() -> Path:
    """A real model: all-MiniLM-L6-v2, from its wheel."""
    return packaged_model()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder with STS-B and others, which is not part of the project."""
    folder = Path(os.environ.get("FUSEBERT_DATA", Path(__file__).parents[2] / "shared" / "data"))
    if not (folder / "stsb_dev.tsv").is_file():
        pytest.skip(f"stsb_dev.tsv is not in {folder}; set FUSEBERT_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def local_ray() -> Iterator[Any]:
    """Ray on two cores, for all tests that need it. Its workers can import what tests can."""
    pytest.importorskip("ray", reason="build/ray is missing: run `make test-ray`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))))
        with connected(None, 2) as ray:
            yield ray
