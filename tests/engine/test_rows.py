"""The row rule: what a row's answer may and may not depend on, bit for bit, in every precision and on every ISA."""

import numpy as np
import pytest
import stock
from conftest import PRECISIONS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fusebert


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {head: stock.make(tmp_path_factory.mktemp(head), "bert", head) for head in stock.HEADS}


@pytest.fixture(scope="module")
def loaded(folders):
    cache = {}

    def get(precision="fp32", head="none", isa="", **more):
        key = (precision, head, isa, str(more))
        if key not in cache:
            cache[key] = fusebert.load(folders[head], precision, **more)
        return cache[key]

    return get


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_row_does_not_depend_on_batch_mates_padding_or_threads(loaded, isa, precision, data):
    lengths = data.draw(st.lists(st.integers(1, 70), min_size=1, max_size=9), label="lengths")
    seed = data.draw(st.integers(0, 2**32), label="seed")
    kind = data.draw(st.sampled_from(["right", "left", "holes"]), label="padding")
    random = np.random.default_rng(seed)
    width = max(lengths) + data.draw(st.integers(0, 30), label="extra padding")
    ids, mask = random.integers(0, 211, (len(lengths), width)), np.zeros((len(lengths), width), int)
    for row, n in zip(mask, lengths, strict=True):
        if kind == "holes":
            row[random.choice(width, n, replace=False)] = 1
        else:
            row[: n if kind == "right" else None] = 1
            row[: width - n if kind == "left" else 0] = 0
    together = loaded(precision, isa=isa).run(ids, mask)["last_hidden_state"]
    single = loaded(precision, isa=isa, threads=1)
    for i in range(len(lengths)):
        alone = single.run(ids[i : i + 1], mask[i : i + 1])["last_hidden_state"][0]
        assert np.array_equal(alone, together[i])
        trimmed = np.flatnonzero(mask[i]).max() + 1  # padding on the right may go altogether
        short = single.run(ids[i : i + 1, :trimmed], mask[i : i + 1, :trimmed])["last_hidden_state"][0]
        assert np.array_equal(short, together[i, :trimmed])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_visible_rows_are_the_same_bits_whether_hidden_rows_are_computed_or_not(loaded, isa, precision):
    ids, mask = np.random.default_rng(0).integers(0, 211, (7, 33)), stock.masks(7, 33, "holes", seed=4)
    model = loaded(precision, isa=isa)
    skipped, computed = (model.run(ids, mask, padding=p)["last_hidden_state"] for p in ("skip", "compute"))
    assert np.array_equal(skipped[mask == 1], computed[mask == 1])
    assert not skipped[mask == 0].any()
    assert computed[mask == 0].all(-1).any()


@pytest.mark.parametrize("kind", ["right", "left", "holes"])
@pytest.mark.parametrize("head", stock.HEADS)
def test_computed_hidden_rows_are_what_the_framework_gives(folders, loaded, head, kind):
    ids, mask = np.random.default_rng(1).integers(0, 211, (5, 24)), stock.masks(5, 24, kind, seed=2)
    want = stock.run(stock.load(folders[head], head), ids, mask)
    got = loaded(head=head).run(ids, mask, padding="compute")
    for name, value in want.items():
        assert stock.error(got[name], value) <= 1e-5, name


def test_auto_computes_what_question_answering_reads(loaded):
    ids, mask = np.random.default_rng(1).integers(0, 211, (5, 24)), stock.masks(5, 24, "right", seed=2)
    model = loaded(head="question")
    auto, computed, skipped = (model.run(ids, mask, padding=p)["start_logits"] for p in ("auto", "compute", "skip"))
    assert np.array_equal(auto, computed)
    assert not skipped[mask == 0].any()
    assert auto[mask == 0].all()


@pytest.mark.parametrize("head", ["token", "masked"])
def test_auto_skips_and_returns_zeros_where_nobody_else_reads(loaded, head):
    ids, mask = np.random.default_rng(1).integers(0, 211, (5, 24)), stock.masks(5, 24, "left", seed=2)
    output = next(iter(loaded(head=head).run(ids, mask).values()))
    assert not output[mask == 0].any()
    assert output[mask == 1].any(-1).all()


@pytest.mark.parametrize("head", ["none", "sequence"])
def test_auto_computes_a_hidden_first_token_that_a_head_reads(folders, loaded, head):
    ids, mask = np.random.default_rng(1).integers(0, 211, (4, 24)), stock.masks(4, 24, "left", seed=2)
    mask[1:, 0] = 0
    name = "pooler_output" if head == "none" else "logits"
    want = stock.run(stock.load(folders[head], head), ids, mask)[name]
    model = loaded(head=head)
    assert stock.error(model.run(ids, mask)[name], want) <= 1e-5
    assert np.array_equal(model.run(ids, mask)[name], model.run(ids, mask, padding="compute")[name])


def test_auto_computes_the_rows_of_a_bare_model_since_nobody_knows_who_reads_them(loaded):
    ids, mask = np.random.default_rng(1).integers(0, 211, (5, 24)), stock.masks(5, 24, "left", seed=2)
    auto, computed = (loaded().run(ids, mask, padding=p)["last_hidden_state"] for p in ("auto", "compute"))
    assert np.array_equal(auto, computed)
    assert auto[mask == 0].any(-1).all()


def test_a_row_that_sees_nothing_is_uniform_as_in_eager_attention(folders, loaded, isa):
    ids, mask = np.random.default_rng(3).integers(0, 211, (3, 9)), np.ones((3, 9), int)
    mask[1] = 0
    additive = np.where(mask == 1, 0, np.finfo(np.float32).min).astype(np.float32)[:, None, None]
    want = stock.run(stock.load(folders["none"]), ids, np.broadcast_to(additive, (3, 1, 9, 9)).copy())
    for precision in PRECISIONS:
        model = loaded(precision, isa=isa)
        got = model.run(ids, mask, padding="compute")["last_hidden_state"]
        assert stock.cosine(got, want["last_hidden_state"]).min() > (0.999999 if precision == "fp32" else 0.99)
        assert not model.run(ids, mask, padding="skip")["last_hidden_state"][1].any()
        assert stock.cosine(model.run(ids, mask)["pooler_output"], want["pooler_output"]).min() > 0.99
    infinite = np.where(additive == 0, 0, -np.inf).astype(np.float32)
    assert np.isfinite(loaded(isa=isa).run(ids, infinite)["last_hidden_state"]).all()


def test_padding_is_refused_unless_it_is_one_of_three(folders):
    with pytest.raises(fusebert.FusebertError, match="auto, skip, compute"):
        fusebert.load(folders["none"], padding="drop")
    with pytest.raises(fusebert.FusebertError, match="auto, skip, compute"):
        fusebert.load(folders["none"]).run([[1]], padding="")
