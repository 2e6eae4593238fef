"""Int8 without data: neurons whose weights dwarf others are split, and the answer stays what it was."""

from dataclasses import replace

import numpy as np
import pytest
from conftest import SUM_LIMIT, sums_of_four

from fusebert.engine.native import EncoderEngine, pool, quantize
from fusebert.engine.quantize import convert_encoder, smooth_encoder, smooth_layer
from fusebert.values.blocks import LINEARS, Batch, Encoder, Layer, Linear, Norm, reference
from fusebert.values.plan import PRODUCTS, make_plan

HIDDEN, INNER = 16, 192
ROWS = np.random.default_rng(1).standard_normal((4, 32, HIDDEN)).astype(np.float32)


@pytest.fixture
def encoder() -> Encoder:
    random = np.random.default_rng(0)

    def linear(outputs: int, inputs: int) -> Linear:
        weight = random.normal(0, 0.1, (outputs, inputs)).astype(np.float32)
        return Linear(weight, random.normal(0, 0.1, outputs).astype(np.float32))

    ffn_out = linear(HIDDEN, INNER)
    ffn_out.weight[3, 7] = 4.0  # 40 times the others
    norm = Norm(np.ones(HIDDEN, np.float32), np.zeros(HIDDEN, np.float32), 1e-12)
    square = [linear(HIDDEN, HIDDEN) for _ in range(4)]
    return Encoder(HIDDEN, (Layer(*square, norm, linear(INNER, HIDDEN), ffn_out, norm, 2, "gelu_erf", 0.35),))


@pytest.fixture
def three_layers(encoder: Encoder) -> Encoder:
    layer = encoder.layers[0]
    larger = [replace(layer, ffn_in=replace(layer.ffn_in, weight=layer.ffn_in.weight * n)) for n in (1, 2, 3)]
    return replace(encoder, layers=tuple(larger))


def ready(encoder: Encoder) -> Encoder:
    return smooth_encoder(encoder, ROWS, pool(1))


def test_layer_by_layer_gives_what_the_whole_engine_shows(three_layers):
    peaks = [{}, {}, {}]

    def watch(layer: int, product: int, inputs: np.ndarray) -> None:
        peaks[layer][PRODUCTS[product]] = np.abs(inputs).max(0)

    whole = EncoderEngine(three_layers, make_plan("fp32", 3), pool(1))
    whole.run(ROWS.reshape(-1, HIDDEN), Batch.ragged([len(rows) for rows in ROWS]), observer=watch)
    layers = tuple(smooth_layer(layer, seen) for layer, seen in zip(three_layers.layers, peaks, strict=True))
    want, got = dict(Encoder(HIDDEN, layers).weights()), dict(ready(three_layers).weights())
    assert want.keys() == got.keys()
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert {got[f"layer.{i}.{name}.weight"].dtype.name for i in range(3) for name in LINEARS} == {"int8"}


def test_int8_weights_are_those_that_the_engine_would_pack(three_layers):
    """Smoothed floats, as the TensorFlow op has them, give the same bits as what is stored."""
    plan, batch = make_plan("int8", 3), Batch.ragged([32] * 4)
    floats = smooth_encoder(three_layers, ROWS, pool(1), floats=True)
    stored = convert_encoder(floats, plan)
    outputs = [EncoderEngine(e, plan, pool(1)).run(ROWS.reshape(-1, HIDDEN), batch)[0] for e in (floats, stored)]
    assert floats.layers[0].query.weight is three_layers.layers[0].query.weight
    assert np.array_equal(*outputs)


def test_a_weight_that_dwarfs_its_row_is_shared_out_and_the_others_keep_fine_steps(encoder):
    before, (layer,) = encoder.layers[0], ready(encoder).layers
    count = len(layer.ffn_in.weight)
    assert INNER < count <= INNER + INNER // 32
    assert layer.ffn_out.weight.shape == (HIDDEN, count)
    of = (layer.ffn_in.bias[:, None] == before.ffn_in.bias).argmax(1)  # the neuron that each one is a copy of
    assert (of == 7).sum() == 1 + count - INNER
    got = np.zeros_like(before.ffn_out.weight)
    np.add.at(got.T, of, layer.ffn_out.floats().T)
    values, scales = quantize(before.ffn_out.weight)
    plain = np.abs(values * scales[:, None] - before.ffn_out.weight)[3]
    assert np.abs(got - before.ffn_out.weight)[3].mean() < plain.mean() / 2


def test_the_split_encoder_computes_the_same(encoder):
    x = np.random.default_rng(2).standard_normal((2, 9, HIDDEN)).astype(np.float32)
    want = reference(encoder, x)
    assert np.abs(reference(ready(encoder), x) - want).max() < 0.02 * np.abs(want).max()  # weights of 8 bits


@pytest.mark.parametrize("seed", range(5))
def test_what_is_shared_out_leaves_room_for_its_neighbours(encoder, seed):
    """Else the engine would quantise the row again, more coarsely."""
    layer = encoder.layers[0]
    layer.ffn_out.weight[:] = np.random.default_rng(seed).standard_t(3, layer.ffn_out.weight.shape)
    values = ready(encoder).layers[0].ffn_out.weight
    assert values.shape[1] > INNER
    assert max(sums_of_four(values).max(), sums_of_four(-values).max()) <= SUM_LIMIT


def test_small_and_even_layers_are_not_split(encoder):
    layer = encoder.layers[0]
    layer.ffn_out.weight[3, 7] = 0.1
    assert len(ready(encoder).layers[0].ffn_in.weight) == INNER
    layer.ffn_out.weight[3, 7] = 4.0
    few = replace(
        layer,
        ffn_in=Linear(layer.ffn_in.weight[:31], layer.ffn_in.bias[:31]),
        ffn_out=Linear(layer.ffn_out.weight[:, :31], layer.ffn_out.bias),
    )
    assert len(ready(Encoder(HIDDEN, (few,))).layers[0].ffn_in.weight) == 31
