"""Writes golden files: models as this version of fusebert writes them, with inputs and the answers they gave. Those
that are there stay as they are, since a new one would prove nothing about the files that people have; a new format adds
its own.

    PYTHONPATH=tests python tests/golden/make.py

All are made from one float model, tests/golden/model. Its sizes differ from each other, its epsilon is large (the
finder takes less than 0.1) and its activation nobody's default, so that an attribute that got lost shows
even behind int8."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from checkpoints import edit_config, make_checkpoint
from golden.answers import EPSILON, GOLDEN, HEADS, MODEL, TF1_NAMES, answer
from safetensors.numpy import load_file
from zoo.cases import POSITIONS, VOCABULARY

import fusebert
import fusebert.torch
from fusebert.cli.call import call

SIZES = {"hidden": 24, "layers": 2, "heads": HEADS, "inner": 40}
RANGES = GOLDEN / "ranges"
RANDOM = np.random.default_rng(14)
INPUTS = {
    "input_ids": RANDOM.integers(5, VOCABULARY, (3, 9)).astype(np.int32),
    "attention_mask": np.array([[1] * 9, [1] * 5 + [0] * 4, [1, 0, 1, 1, 0, 1, 1, 1, 0]], np.int32),
    "token_type_ids": np.sort(RANDOM.integers(0, 2, (3, 9)), axis=1).astype(np.int32),
}
ACTIVATIONS = {"gelu": "gelu_erf", "gelu_new": "gelu_tanh", "relu": "relu"}  # Hugging Face's names, and the zoo's


def make(name: str, write: Callable[[Path], None], pooled: bool = True) -> None:
    """Lets `write` write a file or folder, and keeps inputs and the outputs it gives beside it."""
    path = GOLDEN / name
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path)
    outputs = answer(path, INPUTS, pooled)
    arrays = {f"in/{key}": value for key, value in INPUTS.items()}
    arrays |= {f"out/{key}": np.asarray(value) for key, value in outputs.items()}
    np.savez_compressed(f"{path}.npz", **arrays)


def command(*words: object) -> None:
    """A command as it is typed."""
    assert call([str(word) for word in words]) == 0


# The float model, and ranges observed on it.


def make_model() -> None:
    if not MODEL.exists():
        make_checkpoint(MODEL, **SIZES, vocabulary=VOCABULARY, positions=POSITIONS, seed=14, vocab=True)
        edit_config(MODEL, hidden_act="relu", layer_norm_eps=EPSILON)


def make_ranges() -> None:
    if RANGES.exists():
        return
    RANGES.mkdir()
    (RANGES / "texts.txt").write_text("the cat sat on the mat.\ndogs ran!\nunable, word1 word2?\nthe dog\n")
    with chdir(GOLDEN):  # the file names the model
        for name in ("ranges/ranges.json", "ranges/ranges.txt"):
            fusebert.calibrate("model", "ranges/texts.txt", name)


def load(activation: str = "relu") -> Any:
    with fusebert.torch.disabled():
        model = transformers.BertModel.from_pretrained(MODEL, hidden_act=activation, attn_implementation="eager")
    return model.eval()


class Answers(torch.nn.Module):
    """A model with positional inputs and a tuple of outputs: rows after each layer, or last and pooled ones."""

    def __init__(self, model: Any, taps: bool = False) -> None:
        super().__init__()
        self.model, self.taps = model, taps

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> tuple[Any, ...]:
        made = self.model(input_ids, attention_mask, token_type_ids, output_hidden_states=self.taps)
        return tuple(made.hidden_states[1:]) if self.taps else (made.last_hidden_state, made.pooler_output)


def names_of(taps: bool) -> tuple[str, ...]:
    return ("layer_0", "layer_1") if taps else ("last_hidden_state", "pooler_output")


def tensors() -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(value).long() for value in INPUTS.values())


# ONNX


def write_onnx(path: Path, activation: str = "relu", taps: bool = False, scale: float | None = None) -> None:
    """The model as torch exports it; `scale` is another one for the scores."""
    model = load(activation)
    for layer in model.encoder.layer:
        layer.attention.self.scaling = scale or layer.attention.self.scaling
    sizes = {
        name: {0: "batch", 1: "length"} for name in (*INPUTS, *(names_of(taps) if taps else ("last_hidden_state",)))
    }
    torch.onnx.export(
        Answers(model, taps), tensors(), path, input_names=list(INPUTS), output_names=list(names_of(taps)),
        dynamic_axes=sizes, opset_version=17, dynamo=False,
    )  # fmt: skip


def fused_onnx(precision: str, activation: str = "relu", taps: bool = False, **options: Any) -> Any:
    scale = options.pop("scale", None)

    def write(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_onnx(Path(folder) / "source.onnx", activation, taps, scale)
            fusebert.optimize(Path(folder) / "source.onnx", path, precision, **options)

    return write


def make_onnx() -> None:
    make("onnx/source.onnx", write_onnx)
    make("onnx/fp32.onnx", fused_onnx("fp32", "gelu", padding="compute"))
    make("onnx/taps.onnx", fused_onnx("fp32", "gelu_new", taps=True, scale=0.9))
    make("onnx/bf16.onnx", fused_onnx("bf16"))
    make("onnx/int8.onnx", fused_onnx("int8", padding="first"))
    make("onnx/static.onnx", fused_onnx("int8", ranges=RANGES / "ranges.json", verify=False))


# TensorFlow


def stored(name: str) -> np.ndarray:
    """The weight that the first public code calls so."""
    theirs = name.removeprefix("bert/").replace("layer_", "layer.").replace("/", ".")
    if "_embeddings" in theirs:
        theirs += ".weight"
    theirs = theirs.replace("gamma", "weight").replace("beta", "bias")
    array = load_file(MODEL / "model.safetensors")[theirs.replace("kernel", "weight")]
    return array.T if theirs.endswith("kernel") else array


def graph_of(activation: str = "relu", kept: dict[str, Any] | None = None) -> Any:
    """Builds the graph of the first public code around our weights; variables of TensorFlow 2 are `kept`."""
    import tensorflow as tf
    from tensorflow.compat import v1
    from zoo.makers.tf1 import Bert

    class Golden(Bert):
        def variable(self, name: str, shape: list[int]) -> Any:
            full = f"{v1.get_variable_scope().name}/{name}"
            if kept is None:
                return v1.get_variable(name, shape, initializer=v1.constant_initializer(stored(full)))
            if full not in kept:  # a function may be traced twice
                with tf.init_scope():
                    kept[full] = tf.Variable(stored(full))
            return kept[full].read_value()

    return Golden({"sizes": SIZES, "act": ACTIVATIONS[activation], "epsilon": EPSILON})


def write_frozen(path: Path, activation: str = "relu") -> None:
    import tensorflow as tf
    from tensorflow.compat import v1

    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        made = graph_of(activation).build(*(v1.placeholder(tf.int32, [None, None], name=name) for name in TF1_NAMES))
        named = [tf.identity(tensor, name).op.name for name, tensor in made.items()]
        session.run(v1.global_variables_initializer())
        frozen = v1.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), named)
    path.write_bytes(frozen.SerializeToString(deterministic=True))


def write_saved(path: Path) -> None:
    """A SavedModel of TensorFlow 2: variables, and a function that gives the rows after each layer."""
    import tensorflow as tf

    kept: dict[str, Any] = {}
    module = tf.Module()

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec([None, None], tf.int32, name=name) for name in TF1_NAMES]
    )
    def serve(input_ids: Any, input_mask: Any, segment_ids: Any) -> dict[str, Any]:
        bert = graph_of(kept=kept)
        bert.build(input_ids, input_mask, segment_ids)
        return {f"layer_{i}": tf.identity(state) for i, state in enumerate(bert.states[1:])}

    serving = serve.get_concrete_function()
    module.kept = list(kept.values())
    options = tf.saved_model.SaveOptions(experimental_debug_stripper=True)
    tf.saved_model.save(module, str(path), signatures=serving, options=options)


def fused_frozen(precision: str, activation: str = "relu", **options: Any) -> Any:
    def write(path: Path) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_frozen(Path(folder) / "source.pb", activation)
            fusebert.optimize(Path(folder) / "source.pb", path, precision, **options)

    return write


def fused_saved(path: Path) -> None:
    fusebert.optimize(GOLDEN / "tensorflow" / "source", path, "fp32")


def make_tensorflow() -> None:
    make("tensorflow/source.pb", write_frozen)
    make("tensorflow/source", write_saved)
    # TensorFlow's own rewriting of this GELU is too coarse on some processors; the test compares with NumPy.
    make("tensorflow/fp32.pb", fused_frozen("fp32", "gelu_new", padding="compute", verify=False))
    make("tensorflow/bf16.pb", fused_frozen("bf16"))
    make("tensorflow/int8.pb", fused_frozen("int8"))
    make("tensorflow/static.pb", fused_frozen("int8", ranges=RANGES / "ranges.txt", verify=False))
    make("tensorflow/taps", fused_saved)


# Patterns and recipes

SEEDS = "bert/encoder/layer_1/output/LayerNorm/batchnorm/add_1"
BARRIERS = ("bert/encoder/Reshape_1", "bert/encoder/Reshape", "strided_slice", "strided_slice_1")


def make_recipes() -> None:
    source, folder = GOLDEN / "tensorflow" / "source.pb", GOLDEN / "recipes"
    if folder.exists():
        return
    folder.mkdir()
    command("extract-pattern", source, "-s", SEEDS, "-b", *BARRIERS, "-B", "Const", "-o", folder / "pattern.pb")
    command("make-recipe", folder / "pattern.pb", folder / "recipe.pb", "--model", source)
    with (folder / "node_def.pbtxt").open("w") as file, redirect_stdout(file):
        command("make-recipe", folder / "pattern.pb", "--model", source, "--print")


# torch


def traced(precision: str, activation: str, frozen: bool) -> Any:
    def write(path: Path) -> None:
        model = Answers(fusebert.torch.optimize(load(activation), precision, "compute")).eval()
        with torch.no_grad():
            graph = torch.jit.trace(model, tensors(), strict=False)
            torch.jit.save(torch.jit.freeze(graph) if frozen else graph, path)
        forget_lines(path)

    return write


def forget_lines(path: Path) -> None:
    """Takes the lines of the sources, which name this machine's files, out of a traced model."""
    with zipfile.ZipFile(path) as file:
        kept = {name: file.read(name) for name in file.namelist() if not name.endswith(".debug_pkl")}
    with zipfile.ZipFile(path, "w") as file:
        for name, data in kept.items():
            file.writestr(zipfile.ZipInfo(name), data)


def write_exported(path: Path) -> None:
    model = Answers(fusebert.torch.optimize(load("gelu"), "fp32"), taps=True).eval()
    sizes = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("length", min=2, max=POSITIONS)}
    with torch.no_grad():
        made = torch.export.export(model, tensors(), dynamic_shapes=(sizes,) * 3, strict=False)
    for node in made.graph.nodes:
        node.meta.pop("stack_trace", None)  # it names this machine's files
    torch.export.save(made, path)


def make_torch() -> None:
    make("torch/traced.pt", traced("fp32", "gelu_new", frozen=False))
    make("torch/int8.pt", traced("int8", "relu", frozen=True))
    make("torch/exported.pt2", write_exported, pooled=False)


if __name__ == "__main__":
    make_model()
    make_ranges()
    make_onnx()
    make_tensorflow()
    make_recipes()
    make_torch()
