"""What golden models answer: run by their own frameworks, and computed in NumPy from the float model, by formulas that
stand here a second time, so that no change of fusebert's own can make a wrong answer look right."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent
MODEL = GOLDEN / "model"
HEADS, EPSILON = 3, 0.09
TF1_NAMES = ("input_ids", "input_mask", "segment_ids")  # ids, mask and token types in the first public code
Arrays = dict[str, np.ndarray]


def answer(path: Path, inputs: Arrays, pooled: bool) -> Arrays:
    """A model's outputs for ids, mask and token types; `pooled` names those that torch models give without names."""
    if path.suffix == ".onnx":
        return _onnxruntime(path, inputs)
    if path.suffix == ".pb":
        return _frozen(path, inputs)
    if path.is_dir():
        return _saved_model(path, inputs)
    return _torch(path, inputs, ("last_hidden_state", "pooler_output") if pooled else ("layer_0", "layer_1"))


def _onnxruntime(path: Path, inputs: Arrays) -> Arrays:
    import fusebert.onnxruntime

    session = fusebert.onnxruntime.session(path, threads=1)
    fed = {name: value.astype(np.int64) for name, value in inputs.items()}
    return dict(zip((output.name for output in session.get_outputs()), session.run(None, fed), strict=True))


def _frozen(path: Path, inputs: Arrays) -> Arrays:
    import tensorflow as tf

    import fusebert.tensorflow  # noqa: F401

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        tf.import_graph_def(v1.GraphDef.FromString(path.read_bytes()), name="")
        fed = {f"{name}:0": value for name, value in zip(TF1_NAMES, inputs.values(), strict=True)}
        return session.run({name: f"{name}:0" for name in ("sequence_output", "pooled_output")}, fed)


def _saved_model(path: Path, inputs: Arrays) -> Arrays:
    import tensorflow as tf

    import fusebert.tensorflow  # noqa: F401

    loaded = tf.saved_model.load(str(path))
    fed = {name: tf.constant(value) for name, value in zip(TF1_NAMES, inputs.values(), strict=True)}
    return {name: tensor.numpy() for name, tensor in loaded.signatures["serving_default"](**fed).items()}


def _torch(path: Path, inputs: Arrays, names: tuple[str, str]) -> Arrays:
    import torch

    import fusebert.torch

    fusebert.torch.disable()  # other tests load stock models in this process
    model = torch.export.load(path).module() if path.suffix == ".pt2" else torch.jit.load(path)
    with torch.no_grad():
        outputs = model(*(torch.from_numpy(value).long() for value in inputs.values()))
    return dict(zip(names, (output.numpy() for output in outputs), strict=True))


# The same in NumPy.

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_new": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def compute(
    inputs: Arrays, activation: str, scale: float | None = None, epsilon: float = EPSILON,
    swapped: tuple[str, str] | None = None,
) -> Arrays:  # fmt: skip
    """What the float model answers; `swapped` are two parts of each layer that change places, to see what that does."""
    stored = {name: array.astype(np.float64) for name, array in load_file(MODEL / "model.safetensors").items()}
    ids, mask, types = inputs.values()
    tables = [stored[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type")]
    x = tables[0][ids] + tables[1][: ids.shape[1]] + tables[2][types]
    x = _norm(x, stored, "embeddings.LayerNorm", epsilon)
    hidden = np.where(mask == 0, -1e9, 0.0)[:, None, None, :]
    made = {}
    for i in range(2):
        places = dict(zip(swapped, swapped[::-1], strict=True)) if swapped else {}

        def part(name: str, i: int = i, places: dict[str, str] = places) -> str:
            return f"encoder.layer.{i}.{places.get(name, name)}"

        query, key, value = (_heads(_linear(x, stored, part(f"attention.self.{n}"))) for n in ("query", "key", "value"))
        scores = query @ key.swapaxes(-1, -2) * (scale or query.shape[-1] ** -0.5) + hidden
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        context = (shares / shares.sum(-1, keepdims=True) @ value).swapaxes(1, 2).reshape(x.shape)
        x = x + _linear(context, stored, part("attention.output.dense"))
        x = _norm(x, stored, part("attention.output.LayerNorm"), epsilon)
        inner = ACTIVATIONS[activation](_linear(x, stored, part("intermediate.dense")))
        x = _norm(x + _linear(inner, stored, part("output.dense")), stored, part("output.LayerNorm"), epsilon)
        made[f"layer_{i}"] = x
    pooled = np.tanh(_linear(x[:, 0], stored, "pooler.dense"))
    last = {"last_hidden_state": x, "sequence_output": x, "pooler_output": pooled, "pooled_output": pooled}
    return made | last


def _linear(x: np.ndarray, stored: Arrays, name: str) -> np.ndarray:
    return x @ stored[f"{name}.weight"].T + stored[f"{name}.bias"]


def _norm(x: np.ndarray, stored: Arrays, name: str, epsilon: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return centred / deviation * stored[f"{name}.weight"] + stored[f"{name}.bias"]


def _heads(x: np.ndarray) -> np.ndarray:
    return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)


def stored_case(path: Path) -> tuple[Arrays, Arrays]:
    """The inputs and outputs that are kept beside a golden model."""
    with np.load(f"{path}.npz") as arrays:
        sides: dict[str, Any] = {"in": {}, "out": {}}
        for name in arrays:
            side, _, key = name.partition("/")
            sides[side][key] = arrays[name]
    return sides["in"], sides["out"]
