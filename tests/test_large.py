"""Real weights of hundreds of megabytes, which `make test-large` fetches; `make test` goes without."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

import fusebert
import fusebert.torch

fusebert.torch.disable()  # other tests load stock models in this process
FOLDER = Path(os.environ.get("FUSEBERT_LARGE", ""))
pytestmark = [
    pytest.mark.skipif("FUSEBERT_LARGE" not in os.environ, reason="large models: run `make test-large`"),
    pytest.mark.filterwarnings("ignore"),  # the frameworks' own
]


@pytest.fixture(scope="module")
def mpnet() -> Path:
    return FOLDER / "mpnet" / "all-mpnet-base-v2"


@pytest.fixture(scope="module")
def pairs(shared_data) -> list[list[str]]:
    """Every other sentence pair of STS-B dev, with the score that people gave."""
    lines = (shared_data / "stsb_dev.tsv").read_text(encoding="utf-8-sig").splitlines()
    rows = [line.split("\t") for line in lines]
    return [[row[5], row[6], row[4]] for row in rows[::2]]


@pytest.fixture(scope="module")
def stock(mpnet, pairs) -> tuple[object, np.ndarray, float]:
    """sentence-transformers' model, its embeddings of both sides, and its Spearman correlation in percent."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(mpnet), device="cpu")
    vectors = model.encode(sides(pairs), batch_size=64)
    return model, vectors, correlation(vectors, pairs)


def sides(pairs: list[list[str]]) -> list[str]:
    return [pair[0] for pair in pairs] + [pair[1] for pair in pairs]


def correlation(vectors: np.ndarray, pairs: list[list[str]]) -> float:
    first, second = vectors[: len(pairs)], vectors[len(pairs) :]
    return 100 * float(spearmanr((first * second).sum(1), [float(pair[2]) for pair in pairs]).statistic)


@pytest.mark.parametrize(("precision", "points"), [("fp32", 0.01), ("bf16", 0.1), ("int8", 0.2)])
def test_mpnet_on_stsb(mpnet, pairs, stock, precision, points):
    """As sentence-transformers has it, without calibration."""
    vectors = fusebert.load(mpnet, precision).encode(sides(pairs))
    assert abs(correlation(vectors, pairs) - stock[2]) <= points
    if precision == "fp32":
        assert np.abs(vectors - stock[1]).max() < 1e-4


def test_mpnet_inside_sentence_transformers(pairs, stock):
    """The drop-in gives what the model gave before."""
    model, want, _ = stock
    got = fusebert.torch.optimize(model).encode(sides(pairs)[:64], batch_size=16)
    assert np.abs(got - want[:64]).max() < 1e-4
