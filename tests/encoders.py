"""Encoders of any sizes with random weights, for tests and for what is measured against them."""

import numpy as np

from fusebert.values.blocks import Encoder, Layer, Linear, Norm


def random_encoder(
    hidden=24, heads=3, key_size=5, value_size=7, inner=31, layers=2, bias=True, transposed=False, seed=0
) -> Encoder:
    random = np.random.default_rng(seed)

    def linear(outputs: int, inputs: int) -> Linear:
        shape = (inputs, outputs) if transposed else (outputs, inputs)
        weight = random.normal(0, inputs**-0.5, shape).astype(np.float32)
        return Linear(
            weight.T if transposed else weight, random.normal(0, 0.2, outputs).astype(np.float32) if bias else None
        )

    def norm(epsilon: float) -> Norm:
        return Norm(
            random.normal(1, 0.2, hidden).astype(np.float32), random.normal(0, 0.2, hidden).astype(np.float32), epsilon
        )

    made = [
        Layer(
            query=linear(heads * key_size, hidden), key=linear(heads * key_size, hidden),
            value=linear(heads * value_size, hidden), attention_out=linear(hidden, heads * value_size),
            attention_norm=norm(1e-5 * (i + 1)), ffn_in=linear(inner + i, hidden), ffn_out=linear(hidden, inner + i),
            output_norm=norm(1e-12), heads=heads, activation="gelu_erf", scale=0.3 + i,
        )
        for i in range(layers)
    ]  # fmt: skip
    return Encoder(hidden, tuple(made))
