"""Makes the zoo's Keras 3 models: an own post-LayerNorm encoder of stock layers (Einsum inside) as a SavedModel.

Run by workshop.py in a process of its own.
"""

from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from zoo.cases import POSITIONS, VOCABULARY, Cases, kinds, weight, work
from zoo.makers.tf1 import signature_tensors


class Places(keras.layers.Layer):
    """0, 1, 2... for each row of ids."""

    def call(self, ids):
        return tf.range(tf.shape(ids)[1])[None, :] + tf.zeros_like(ids)


def build(recipe: dict) -> keras.Model:
    """Ids and mask in, the last state, its first token and all states out."""
    sizes = recipe["sizes"]
    width, epsilon = sizes["hidden"], recipe["epsilon"]
    act = {"gelu_erf": "gelu", "relu": "relu"}[recipe["act"]]
    ids = keras.Input((None,), dtype="int32", name="input_ids")
    mask = keras.Input((None,), dtype="int32", name="attention_mask")
    x = keras.layers.Embedding(VOCABULARY, width, name="word_embedding")(ids)
    x = x + keras.layers.Embedding(POSITIONS, width, name="position_embedding")(Places()(ids))
    x = keras.layers.LayerNormalization(epsilon=epsilon, name="norm")(x)
    states, seen = [x], keras.ops.cast(mask, "bool")[:, None, :]
    for i in range(sizes["layers"]):
        attend = keras.layers.MultiHeadAttention(
            sizes["heads"], width // sizes["heads"], dropout=recipe["dropout"], name=f"attend_{i}"
        )
        x = keras.layers.LayerNormalization(epsilon=epsilon, name=f"norm_{i}_1")(x + attend(x, x, attention_mask=seen))
        inner = keras.layers.Dense(sizes["inner"], activation=act, name=f"up_{i}")(x)
        inner = keras.layers.Dense(width, name=f"down_{i}")(inner)
        x = keras.layers.LayerNormalization(epsilon=epsilon, name=f"norm_{i}_2")(x + inner)
        states.append(x)
    return keras.Model([ids, mask], {"last_hidden_state": x, "first": x[:, 0], "states": states})


def make(recipe: dict, folder: Path) -> None:
    """The SavedModel and what Keras says for every kind of mask."""
    keras.utils.clear_session()
    model, random = build(recipe), np.random.default_rng(0)
    for variable in model.variables:
        if "float" in str(variable.dtype):
            variable.assign(weight(variable.path, tuple(variable.shape), random))
    names = ("input_ids", "attention_mask")
    specs = {name: tf.TensorSpec([None, None], tf.int32, name=name) for name in names}

    def answer(inputs):
        made = model([inputs[name] for name in names], training=False)
        return {name: made[name] for name in recipe["outputs"]}

    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serve", answer, input_signature=[specs])
    archive.write_out(str(folder / "saved_model"), verbose=False)
    cases = Cases()
    for kind, arrays in kinds(recipe):
        inputs = {name: tf.constant(value, tf.int32) for name, value in zip(names, arrays, strict=False)}
        made = model(list(inputs.values()), training=False)
        cases.add(kind, inputs, {name: made[name] for name in recipe["outputs"]}, made["states"])
    cases.save(folder, signature_tensors(folder / "saved_model"))


if __name__ == "__main__":
    work(make)
