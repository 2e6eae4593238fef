"""Int8 without data: neurons whose weights dwarf others are split, and the answer stays what it was."""

from dataclasses import replace

import numpy as np
import pytest

from fusebert.encoder import Encoder, Layer, Linear, Norm, reference
from fusebert.engine import EncoderEngine, pool, quantize
from fusebert.plan import make_plan
from fusebert.quantize import smooth_encoder

HIDDEN, INNER = 16, 192


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


def ready(encoder: Encoder) -> Encoder:
    rows = np.random.default_rng(1).standard_normal((4, 32, HIDDEN)).astype(np.float32)
    return smooth_encoder(encoder, EncoderEngine(encoder, make_plan("fp32", 1), pool(1)), rows)


def test_a_weight_that_dwarfs_its_row_is_shared_out_and_the_others_keep_fine_steps(encoder):
    before, (layer,) = encoder.layers[0], ready(encoder).layers
    count = len(layer.ffn_in.weight)
    assert INNER < count <= INNER + INNER // 64
    assert layer.ffn_out.weight.shape == (HIDDEN, count)
    assert (layer.ffn_in.weight[INNER:] == before.ffn_in.weight[7]).all()
    got = layer.ffn_out.floats()
    got[:, 7] += got[:, INNER:].sum(1)
    values, scales = quantize(before.ffn_out.weight)
    plain = np.abs(values * scales[:, None] - before.ffn_out.weight)[3]
    assert np.abs(got[:, :INNER] - before.ffn_out.weight)[3].mean() < plain.mean() / 2


def test_the_split_encoder_computes_the_same(encoder):
    x = np.random.default_rng(2).standard_normal((2, 9, HIDDEN)).astype(np.float32)
    want = reference(encoder, x)
    assert np.abs(reference(ready(encoder), x) - want).max() < 0.02 * np.abs(want).max()  # weights of 8 bits


def test_small_and_even_layers_are_not_split(encoder):
    layer = encoder.layers[0]
    layer.ffn_out.weight[3, 7] = 0.1
    assert len(ready(encoder).layers[0].ffn_in.weight) == INNER
    layer.ffn_out.weight[3, 7] = 4.0
    few = replace(
        layer,
        ffn_in=Linear(layer.ffn_in.weight[:63], layer.ffn_in.bias[:63]),
        ffn_out=Linear(layer.ffn_out.weight[:, :63], layer.ffn_out.bias),
    )
    assert len(ready(Encoder(HIDDEN, (few,))).layers[0].ffn_in.weight) == 63
