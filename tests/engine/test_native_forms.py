"""Every form of a block, in the engine: what values.forms.reference says, in every precision on every instruction set,
and the same bits in any batch, under any padding."""

import numpy as np
import pytest
from conftest import PRECISIONS
from encoders import FORMS, attending, disentangled, gated, relative, rotary

from fusebert.engine import native as engine
from fusebert.errors import FusebertError
from fusebert.values.batch import LOWEST, Batch
from fusebert.values.blocks import Encoder, Relative, Rotary
from fusebert.values.forms import reference
from fusebert.values.plan import make_plan

pytestmark = pytest.mark.usefixtures("isa")
WORST_COSINE = {"bf16": 0.999, "int8": 0.99, "int8-bf16": 0.99}


def packed(encoder: Encoder, precision: str = "fp32", threads: int = 2) -> engine.EncoderEngine:
    return engine.EncoderEngine(encoder, make_plan(precision, len(encoder.blocks)), engine.pool(threads))


def run(encoder: engine.EncoderEngine, x: np.ndarray, mask: np.ndarray | None, hidden_rows="skip") -> np.ndarray:
    """A padded batch through the engine; hidden rows are zeros unless they are computed."""
    batch = Batch.masked(mask, x.shape[:2], hidden_rows)
    rows = np.ascontiguousarray(x.reshape(-1, x.shape[-1])[batch.index])
    return batch.spread(encoder.run(rows, batch)[0], drop_hidden=False)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def masks(kind: str, batch: int, length: int) -> np.ndarray:
    """Hidden rows on the left, or anywhere (but a first and a last one are seen)."""
    if kind == "left":
        return (np.arange(length) >= np.arange(batch)[:, None] * length // (batch + 1)).astype(np.int64)
    mask = (np.random.default_rng(7).random((batch, length)) < 0.6).astype(np.int64)
    mask[:, [0, -1]] = 1
    return mask


def expected(encoder: Encoder, x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    """Positions are counted from the first row that is seen: angles are rounded where they are made."""
    if mask is None:
        return reference(encoder, x.astype(np.float64))
    added = np.where(mask[:, None, None, :] == 1, 0, np.float32(LOWEST))
    return reference(encoder, x.astype(np.float64), added, np.arange(x.shape[1]) - mask.argmax(1)[:, None])


@pytest.mark.parametrize("form", FORMS)
def test_a_form_means_what_its_formula_says(form):
    encoder = FORMS[form](layers=2)
    for length, kind in ((1, None), (7, "left"), (129, None), (100, "holes"), (129, "left")):
        x, mask = noise(2, length, 24, seed=length), masks(kind, 2, length) if kind else None
        got, want = run(packed(encoder), x, mask), expected(encoder, x, mask)
        seen = slice(None) if mask is None else mask == 1
        assert np.abs(got[seen] - want[seen]).max() / np.abs(want[seen]).max() < 2e-6, (length, kind)


@pytest.mark.parametrize("precision", WORST_COSINE)
@pytest.mark.parametrize("form", FORMS)
def test_a_form_in_other_precisions(form, precision):
    encoder = FORMS[form](layers=2, **({} if "rotary" in form else {"key_size": 12}))
    x, mask = noise(2, 90, 24), masks("holes", 2, 90)
    got, want = run(packed(encoder, precision), x, mask)[mask == 1], expected(encoder, x, mask)[mask == 1]
    cosine = (got * want).sum(-1) / np.linalg.norm(got, axis=-1) / np.linalg.norm(want, axis=-1)
    assert cosine.min() > WORST_COSINE[precision]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", FORMS)
def test_a_row_has_the_same_bits_in_any_batch_and_padding(form, precision):
    """Alone, beside longer ones, padded left or right, with hidden rows skipped or computed, on one thread or three;
    long enough for several blocks of queries, and with holes for distances that are gathered."""
    ours, alone = (packed(FORMS[form](layers=1), precision, threads) for threads in (3, 1))
    for holes in (False, True):
        x = noise(1, 200, 24)
        mask = masks("holes", 1, 200) if holes else np.ones((1, 200), np.int64)
        want = run(alone, x, mask)[mask == 1]
        for left, right in ((0, 60), (60, 0), (17, 300), (301, 1)):
            mates = noise(2, left + 200 + right, 24, seed=left)
            mates[1, left : left + 200] = x[0]
            seen = np.ones(mates.shape[:2], np.int64)
            seen[1, :left], seen[1, left : left + 200], seen[1, left + 200 :] = 0, mask[0], 0
            for hidden_rows in ("skip", "compute"):
                got = run(ours, mates, seen, hidden_rows)[1, left : left + 200]
                assert np.array_equal(got[mask[0] == 1], want), (left, right, hidden_rows)


@pytest.mark.parametrize("form", [relative, disentangled, rotary])
def test_long_rows(form):
    """Distances far beyond the reach of tables, and sums of many slices."""
    encoder, x = form(hidden=8, heads=1, key_size=6, value_size=3, layers=1), noise(1, 1500, 8)
    assert np.abs(run(packed(encoder), x, None) - expected(encoder, x, None)).max() < 2e-5


def test_8192_tokens_in_windows():
    encoder, x = attending(rotary(layers=1), window=40), noise(1, 8192, 24)
    got = run(packed(encoder), x, None)
    for row in (0, 47, 48, 4000, 8191):
        near = np.arange(max(0, row - 40), min(8192, row + 41))
        want = reference(encoder, x[:, near].astype(np.float64), positions=near[None])
        assert np.abs(got[0, row] - want[0, near == row]).max() < 1e-4


def test_a_window_that_nobody_reaches_is_no_window():
    x = noise(2, 60, 24)
    assert np.allclose(run(packed(attending(rotary(), window=59)), x, None), run(packed(rotary()), x, None), atol=1e-5)


def test_a_given_bias_is_added_to_that_of_positions():
    encoder = attending(relative(3), window=20)
    x, more = noise(2, 50, 24), noise(2, 3, 50, 50)
    batch = Batch.masked(more, (2, 50), heads=3)
    got = packed(encoder).run(x.reshape(-1, 24), batch)[0].reshape(x.shape)
    assert np.abs(got - reference(encoder, x, more)).max() < 1e-5


def test_what_does_not_fit_is_refused():
    with pytest.raises(FusebertError, match="block 0 position: 2 frequencies cannot turn heads of 6 numbers"):
        packed(attending(rotary(), position=Rotary(np.ones(2, np.float32))))
    with pytest.raises(FusebertError, match="a relative table has a row per head"):
        packed(attending(relative(), position=Relative(np.ones((2, 9), np.float32))))
    with pytest.raises(FusebertError, match="value 3 is not finite"):
        packed(attending(relative(), position=Relative(np.array([[0, 0, 0, np.nan, 0]] * 3, np.float32))))


def test_what_a_gate_reads_is_observed_after_the_product():
    encoder, seen = gated(layers=1), {}
    rows = noise(9, 24)
    packed(encoder, threads=1).run(rows, Batch.ragged([4, 5]), observer=lambda *at: seen.update({at[:2]: at[2]}))
    assert seen[1, 1].shape == (9, 31)
    body = encoder.blocks[1].body
    gate = seen[1, 0] @ body.gate.weight.T + body.gate.bias
    up = seen[1, 0] @ body.up.weight.T + body.up.bias
    assert np.allclose(seen[1, 1], gate / (1 + np.exp(-gate)) * up, atol=1e-5)
