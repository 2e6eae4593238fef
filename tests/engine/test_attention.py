"""Attention in 8 bits: chosen by the plan or by hand, near to fp32, and its memory grows with the length alone."""

import numpy as np
import pytest
import stock
from costs import little_memory

import fusebert
from fusebert.errors import FusebertError

BASE = {"hidden": 768, "heads": 12, "inner": 3072, "layers": 1}  # buffers do not grow with layers


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stock.make(tmp_path_factory.mktemp("model"), "bert")


def rows(folder, precision, length=200, **more):
    ids = np.random.default_rng(1).integers(5, 211, (2, length))
    return fusebert.load(folder, precision, **more).run(ids, np.ones_like(ids))["last_hidden_state"]


def test_attention_in_int8_is_near_to_fp32_on_every_instruction_set(folder, isa):
    exact, coarse = rows(folder, "fp32"), rows(folder, "fp32", attention="int8")
    assert not np.array_equal(exact, coarse)
    assert stock.cosine(coarse, exact).min() > 0.999


@pytest.mark.parametrize("precision", ["int8", "int8-bf16"])
def test_attention_by_hand_and_by_plan(folder, isa, precision):
    planned = rows(folder, precision)
    by_hand = {name: rows(folder, precision, attention=name) for name in ("fp32", "bf16", "int8")}
    rest = "fp32" if precision == "int8" else "bf16"
    assert np.array_equal(planned, by_hand["int8" if "vnni" in isa or "bf16" in isa else rest])
    assert not np.array_equal(by_hand["int8"], by_hand[rest])


@pytest.mark.parametrize("precision", ["int8", "int8-bf16"])
def test_short_sequences_are_as_without_it(folder, precision):
    rest = "fp32" if precision == "int8" else "bf16"
    assert np.array_equal(rows(folder, precision, 40), rows(folder, precision, 40, attention=rest))


def test_an_unknown_attention_is_refused(folder):
    with pytest.raises(FusebertError, match=r"attention.*int9.*int8"):
        fusebert.load(folder, "int8", attention="int9")


def test_an_artifact_has_its_plan_and_obeys(folder, tmp_path):
    model = fusebert.load(folder, "int8", attention="int8")
    model.save(tmp_path / "saved")
    assert np.array_equal(rows(tmp_path / "saved", None), rows(folder, "int8", attention="int8"))
    assert np.array_equal(rows(tmp_path / "saved", None, attention="fp32"), rows(folder, "int8", attention="fp32"))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_waves_of_any_size_give_the_same_bits(folder, monkeypatch, precision):
    want = rows(folder, precision)
    for size in ("1", "300"):
        monkeypatch.setenv("FUSEBERT_WAVE_ROWS", size)
        assert np.array_equal(rows(folder, precision), want)
    monkeypatch.setenv("FUSEBERT_WAVE_ROWS", "many")
    with pytest.raises(FusebertError, match="FUSEBERT_WAVE_ROWS=many"):
        rows(folder, precision)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_8192_tokens_take_less_than_a_gigabyte_beside_the_weights(tmp_path, precision):
    model = fusebert.load(stock.make(tmp_path / "long", "bert", sizes=BASE, max_position_embeddings=8192), precision)
    with little_memory(1 << 30):
        assert np.isfinite(model.run(np.ones((1, 8192), int))["last_hidden_state"]).all()
