"""Files that fusebert wrote once give the answers they gave then, for ever and on every instruction set. tests/golden
has them with their inputs and answers; its make.py wrote them, and its answers.py is what runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from golden.answers import GOLDEN, MODEL, Arrays, answer, compute, stored_case

import fusebert

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own, about tracing and graphs


@dataclass(frozen=True)
class Golden:
    """A file, and how far its answers may be off, as a share of their scale: `off` from the stored ones, since another
    machine adds up in another order and may round to the level beside; the stored ones `rounded` from NumPy's."""

    name: str
    off: float = 2e-5
    rounded: float = 2e-5
    activation: str = "relu"
    scale: float | None = None
    weights: int = 16  # tensors in a layer


FILES = {
    golden.name: golden
    for golden in (
        Golden("onnx/fp32.onnx", activation="gelu"),
        Golden("onnx/taps.onnx", activation="gelu_new", scale=0.9),
        Golden("onnx/bf16.onnx", 0.01, 0.02),
        Golden("onnx/int8.onnx", 0.02, 0.07, weights=28),
        Golden("onnx/static.onnx", 0.02, 0.12, weights=28),
        Golden("tensorflow/fp32.pb", activation="gelu_new"),
        Golden("tensorflow/bf16.pb", 0.01, 0.02),
        Golden("tensorflow/int8.pb", 0.02, 0.07),
        Golden("tensorflow/static.pb", 0.02, 0.12),
        Golden("tensorflow/taps"),
        Golden("torch/traced.pt", activation="gelu_new"),
        Golden("torch/int8.pt", 0.02, 0.07),
        Golden("torch/exported.pt2", activation="gelu"),
    )
}
NORMS = ("attention.output.LayerNorm", "output.LayerNorm")
MISTAKES: dict[str, dict[str, Any]] = {
    "query and value change places": {"swapped": ("attention.self.query", "attention.self.value")},
    "query and key change places": {"swapped": ("attention.self.query", "attention.self.key")},
    "value and output change places": {"swapped": ("attention.self.value", "attention.output.dense")},
    "the norms change places": {"swapped": NORMS},
    "epsilon is lost": {"epsilon": 1e-12},
    "the scale is another": {"scale": 0.2},
    "the activation is another": {"activation": "gelu_new"},
}


def run_golden(path: Path, inputs: Arrays, outputs: Arrays) -> Arrays:
    if path.parent.name == "tensorflow":
        pytest.importorskip("tensorflow")
    return answer(path, inputs, pooled="pooler_output" in outputs)


def worst(got: Arrays, want: Arrays, mask: np.ndarray | None = None) -> float:
    """The largest error as a share of scale; with a mask, of what stands at visible positions."""
    assert got.keys() >= want.keys()
    errors = []
    for name, array in want.items():
        assert got[name].shape == array.shape
        seen = mask.astype(bool) if mask is not None and array.ndim == 3 else ...
        errors.append(np.abs(got[name][seen] - array[seen]).max() / np.abs(array[seen]).max())
    return float(max(errors))


def shaped(arrays: Arrays, like: Arrays) -> Arrays:
    return {name: arrays[name].reshape(array.shape) for name, array in like.items()}


@pytest.mark.parametrize("name", FILES)
def test_a_file_answers_as_when_it_was_written(name: str, isa: str) -> None:
    inputs, outputs = stored_case(GOLDEN / name)
    assert worst(run_golden(GOLDEN / name, inputs, outputs), outputs) <= FILES[name].off


@pytest.mark.parametrize("name", [*FILES, "onnx/source.onnx", "tensorflow/source.pb", "tensorflow/source"])
def test_the_answers_are_those_of_the_mathematics(name: str) -> None:
    golden = FILES.get(name, Golden(name))
    inputs, outputs = stored_case(GOLDEN / name)
    truth = compute(inputs, golden.activation, golden.scale)
    assert worst(outputs, shaped(truth, outputs), inputs["attention_mask"]) <= golden.rounded


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("name", FILES)
def test_a_mistake_would_be_seen(name: str, mistake: str) -> None:
    golden = FILES[name]
    if "activation" in mistake and golden.activation == "gelu_new":
        pytest.skip("this is its activation")
    inputs, outputs = stored_case(GOLDEN / name)
    right = {"activation": golden.activation, "scale": golden.scale}
    wrong = compute(inputs, **right | MISTAKES[mistake])
    assert worst(shaped(wrong, outputs), outputs, inputs["attention_mask"]) > 2 * golden.off


# What is in them.


@pytest.mark.parametrize("name", [name for name in FILES if name.startswith("onnx")])
def test_onnx_files_have_the_operator_with_its_order_of_weights(name: str) -> None:
    import onnx

    model = onnx.load(GOLDEN / name)
    (node,) = (node for node in model.graph.node if node.domain == "fusebert")
    assert node.op_type == "Encoder"
    assert len(node.input) == 2 + 2 * FILES[name].weights
    assert {opset.domain: opset.version for opset in model.opset_import}["fusebert"] == 1


def test_tensorflow_files_have_the_ops_with_their_attributes() -> None:
    pytest.importorskip("tensorflow")
    from tensorflow.compat.v1 import GraphDef
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    nodes = {}
    for name in ("fp32", "bf16", "int8", "static"):
        graph = GraphDef.FromString((GOLDEN / f"tensorflow/{name}.pb").read_bytes())
        (nodes[name],) = (node for node in graph.node if node.op == "Bert")
    lengths = {
        name: [len(node.attr[key].list.f) for key in ("InputScales", "QuantizationFactors")]
        for name, node in nodes.items()
    }
    assert lengths == {"fp32": [0, 0], "bf16": [0, 0], "int8": [2 * 2 * 24, 0], "static": [0, 2 * 8]}
    saved = SavedModel.FromString((GOLDEN / "tensorflow/taps/saved_model.pb").read_bytes())
    inner = [node.op for function in saved.meta_graphs[0].graph_def.library.function for node in function.node_def]
    assert inner.count("BertHiddenStates") == 1


def test_torch_files_have_the_operator() -> None:
    import torch

    import fusebert.torch

    fusebert.torch.disable()
    for name in ("traced.pt", "int8.pt"):
        assert "fusebert::encode" in str(torch.jit.load(GOLDEN / "torch" / name).inlined_graph)
    nodes = torch.export.load(GOLDEN / "torch" / "exported.pt2").graph.nodes
    assert [str(node.target) for node in nodes].count("fusebert.encode.default") == 1


def test_golden_files_stay_small() -> None:
    sizes = {path.relative_to(GOLDEN): path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()}
    assert max(sizes.values()) < 200_000, sizes
    assert sum(sizes.values()) < 4_000_000


# Ranges, patterns and recipes.


def test_both_ranges_files_are_read_as_the_same_numbers(isa: str) -> None:
    inputs, outputs = stored_case(GOLDEN / "onnx/static.onnx")
    given = [inputs[name] for name in ("input_ids", "attention_mask", "token_type_ids")]
    made = [
        fusebert.load(MODEL, "int8", threads=1, ranges=GOLDEN / "ranges" / name).run(*given)
        for name in ("ranges.json", "ranges.txt")
    ]
    layers = json.loads((GOLDEN / "ranges" / "ranges.json").read_text())["layers"]
    numbers = [number for layer in layers for pair in layer.values() for number in pair]
    np.testing.assert_allclose(np.fromfile(GOLDEN / "ranges" / "ranges.txt", sep=" "), numbers, rtol=1e-7)
    for name in ("last_hidden_state", "pooler_output"):
        np.testing.assert_array_equal(made[0][name], made[1][name])
    assert worst(made[0], outputs, inputs["attention_mask"]) <= 0.02
    dynamic = fusebert.load(MODEL, "int8", threads=1).run(*given)
    assert worst(dynamic, made[0], inputs["attention_mask"]) > 1e-4  # so they are used at all


def test_a_recipe_is_applied_and_answers_as_the_source(run: Callable[..., str], tmp_path: Path, isa: str) -> None:
    source = GOLDEN / "tensorflow/source.pb"
    inputs, outputs = stored_case(source)
    run("replace-pattern", source, "-r", GOLDEN / "recipes/recipe.pb", "-o", tmp_path / "replaced.pb")
    assert b"Bert" in (tmp_path / "replaced.pb").read_bytes()
    assert worst(run_golden(tmp_path / "replaced.pb", inputs, outputs), outputs) <= 2e-5


def test_a_pattern_and_a_node_are_made_into_the_recipe(run: Callable[..., str], tmp_path: Path) -> None:
    recipes, source = GOLDEN / "recipes", GOLDEN / "tensorflow/source.pb"
    assert (
        run("make-recipe", recipes / "pattern.pb", "--model", source, "--print")
        == (recipes / "node_def.pbtxt").read_text()
    )
    run("make-recipe", recipes / "pattern.pb", recipes / "node_def.pbtxt", tmp_path / "by_hand.pb")
    run("make-recipe", recipes / "pattern.pb", tmp_path / "derived.pb", "--model", source)
    assert (tmp_path / "derived.pb").read_bytes() == (recipes / "recipe.pb").read_bytes()
    for name in ("by_hand.pb", "derived.pb"):
        run("replace-pattern", source, "-r", tmp_path / name, "-o", tmp_path / f"replaced_{name}")


def test_a_bert_node_of_then_is_configured_now(run: Callable[..., str], tmp_path: Path) -> None:
    made = tmp_path / "int8.pb"
    run("configure-op", GOLDEN / "tensorflow/fp32.pb", "-o", made, "-q", "-A", "relu")
    inputs, outputs = stored_case(GOLDEN / "tensorflow/source.pb")
    assert worst(run_golden(made, inputs, outputs), outputs, inputs["attention_mask"]) <= 0.04
