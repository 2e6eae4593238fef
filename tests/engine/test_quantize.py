"""Int8 without data: neurons whose weights dwarf others are split, and the answer stays what it was."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import SUM_LIMIT, sums_of_four
from encoders import changed

from fusebert.engine.native import EncoderEngine, pool, quantize
from fusebert.engine.quantize import convert_encoder, smooth_block, smooth_encoder
from fusebert.values.batch import Batch
from fusebert.values.blocks import Encoder, Linear, Norm
from fusebert.values.forms import reference
from fusebert.values.plan import make_plan
from fusebert.values.traverse import POST_NORM_PARTS, post_norm_layer, weights

HIDDEN, INNER = 16, 192
ROWS = np.random.default_rng(1).standard_normal((4, 32, HIDDEN)).astype(np.float32)


@pytest.fixture
def encoder() -> Encoder:
    random = np.random.default_rng(0)

    def linear(outputs: int, inputs: int) -> Linear:
        weight = random.normal(0, 0.1, (outputs, inputs)).astype(np.float32)
        return Linear(weight, random.normal(0, 0.1, outputs).astype(np.float32))

    made = {path: linear(HIDDEN, HIDDEN) for path in POST_NORM_PARTS if path.startswith("attention.")}
    norm = Norm(np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32), 1e-12)
    made |= {"feed_forward.up": linear(INNER, HIDDEN), "feed_forward.down": linear(HIDDEN, INNER)}
    made |= {"attention.after": norm, "feed_forward.after": norm}
    made["feed_forward.down"].weight[3, 7] = 4.0  # 40 times the others
    return Encoder.of(HIDDEN, post_norm_layer(made.__getitem__, 2, "gelu_erf", 0.35))


@pytest.fixture
def three_layers(encoder: Encoder) -> Encoder:
    attention, inner = encoder.blocks
    up = inner.body.up
    larger = [(attention, changed(inner, up=replace(up, weight=up.weight * n))) for n in (1, 2, 3)]
    return Encoder.of(HIDDEN, tuple(block for pair in larger for block in pair))


def ready(encoder: Encoder) -> Encoder:
    return smooth_encoder(encoder, ROWS, pool(1))


def test_layer_by_layer_gives_what_the_whole_engine_shows(three_layers):
    peaks = [[None, None] for _ in three_layers.blocks]

    def watch(place: int, product: int, inputs: np.ndarray) -> None:
        peaks[place][product] = np.abs(inputs).max(0)

    whole = EncoderEngine(three_layers, make_plan("fp32", 6), pool(1))
    whole.run(ROWS.reshape(-1, HIDDEN), Batch.ragged([len(rows) for rows in ROWS]), observer=watch)
    blocks = tuple(smooth_block(block, seen) for block, seen in zip(three_layers.blocks, peaks, strict=True))
    want, got = dict(weights(Encoder.of(HIDDEN, blocks))), dict(weights(ready(three_layers)))
    assert want.keys() == got.keys()
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert {array.dtype.name for name, array in got.items() if name.endswith(".weight")} == {"int8"}


def test_a_block_that_runs_often_is_smoothed_by_all_its_uses(encoder):
    shared = replace(encoder, order=(0, 1) * 3)
    unrolled = Encoder.of(HIDDEN, encoder.blocks * 3)
    got, want = ready(shared), ready(unrolled)
    assert len(got.blocks) == 2
    scales = [block.body.up.input_scales for block in want.blocks[1::2]]
    assert not np.array_equal(scales[0], got.blocks[1].body.up.input_scales)
    x = ROWS[:2]
    assert np.abs(reference(got, x) - reference(shared, x)).max() < 0.05 * np.abs(reference(shared, x)).max()


def test_int8_weights_are_those_that_the_engine_would_pack(three_layers):
    """Smoothed floats, as the TensorFlow op has them, give the same bits as what is stored."""
    plan, batch = make_plan("int8", 6), Batch.ragged([32] * 4)
    floats = smooth_encoder(three_layers, ROWS, pool(1), floats=True)
    stored = convert_encoder(floats, plan)
    outputs = [EncoderEngine(e, plan, pool(1)).run(ROWS.reshape(-1, HIDDEN), batch)[0] for e in (floats, stored)]
    assert floats.blocks[0].body.query.weight is three_layers.blocks[0].body.query.weight
    assert np.array_equal(*outputs)


def test_a_weight_that_dwarfs_its_row_is_shared_out_and_the_others_keep_fine_steps(encoder):
    before, split = encoder.blocks[1].body, ready(encoder).blocks[1].body
    count = len(split.up.weight)
    assert INNER < count <= INNER + INNER // 32
    assert split.down.weight.shape == (HIDDEN, count)
    of = (split.up.bias[:, None] == before.up.bias).argmax(1)  # the neuron that each one is a copy of
    assert (of == 7).sum() == 1 + count - INNER
    got = np.zeros_like(before.down.weight)
    np.add.at(got.T, of, split.down.floats().T)
    values, scales = quantize(before.down.weight)
    plain = np.abs(values * scales[:, None] - before.down.weight)[3]
    assert np.abs(got - before.down.weight)[3].mean() < plain.mean() / 2


def test_the_split_encoder_computes_the_same(encoder):
    x = np.random.default_rng(2).standard_normal((2, 9, HIDDEN)).astype(np.float32)
    want = reference(encoder, x)
    assert np.abs(reference(ready(encoder), x) - want).max() < 0.02 * np.abs(want).max()  # weights of 8 bits


@pytest.mark.parametrize("seed", range(5))
def test_what_is_shared_out_leaves_room_for_its_neighbours(encoder, seed):
    """Else the engine would quantise the row again, more coarsely."""
    down = encoder.blocks[1].body.down.weight
    down[:] = np.random.default_rng(seed).standard_t(3, down.shape)
    values = ready(encoder).blocks[1].body.down.weight
    assert values.shape[1] > INNER
    assert max(sums_of_four(values).max(), sums_of_four(-values).max()) <= SUM_LIMIT


def test_small_and_even_layers_are_not_split(encoder):
    attention, inner = encoder.blocks
    up, down = inner.body.up, inner.body.down
    down.weight[3, 7] = 0.1
    assert len(ready(encoder).blocks[1].body.up.weight) == INNER
    down.weight[3, 7] = 4.0
    few = changed(inner, up=Linear(up.weight[:31], up.bias[:31]), down=Linear(down.weight[:, :31], down.bias))
    assert len(ready(Encoder.of(HIDDEN, (attention, few))).blocks[1].body.up.weight) == 31
