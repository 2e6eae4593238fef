"""What int8 and bf16 cost on a real task: all-MiniLM-L6-v2 on STS-B, without calibration."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))


@pytest.fixture(scope="module")
def rows(minilm, shared_data):
    import quality

    return {
        row.precision: row
        for row in quality.measure(minilm, shared_data / "stsb_dev.tsv", ("fp32", "bf16", "int8", "int8-bf16"))
    }


@pytest.mark.parametrize("precision", ["int8", "int8-bf16"])
def test_int8_keeps_the_ranking_and_the_embeddings(rows, precision):
    assert abs(rows[precision].spearman - rows["fp32"].spearman) <= 0.1
    assert rows[precision].mean_cosine >= 0.9985
    assert rows[precision].worst_cosine >= 0.995


def test_bf16_is_all_but_exact(rows):
    assert abs(rows["bf16"].spearman - rows["fp32"].spearman) <= 0.05
    assert rows["bf16"].worst_cosine >= 0.9999
