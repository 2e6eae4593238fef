"""Graphs of the families whose layers are not BERT's: what torch's exporters write of them is loaded, and answers as
ONNX Runtime does with the graph, for every kind of padding and for other lengths than the exported one; so does the
graph with fusebert's operator. ONNX Runtime's own kernels, which cannot carry them, are refused by what they lack."""

import warnings
from collections import Counter
from pathlib import Path

import families
import numpy as np
import pytest
import stock
import torch
from onnxruntime import InferenceSession
from torch import nn

import fusebert
from fusebert.errors import UnsupportedError
from fusebert.onnxruntime import session

pytestmark = pytest.mark.usefixtures("one_torch_thread")
BEYOND = {  # what ONNX Runtime's own kernels lack
    "mpnet": "relative positions",
    "xlm-roberta-xl": "norms before a block.*a final norm",
    "modernbert": "windows",
    "modernbert-biases-mean": "windows",
    "nomic": "rotary positions, gated feed-forwards",
    "gte": "rotary positions",
    "jina-v3": "rotary positions",
    "eurobert": "RMSNorm.*shared key heads",
    "gemma": "norms of queries and keys",
    "albert": "",
}
CASES = (("full", 1, 1), ("full", 2, 7), ("right", 3, 9), ("left", 3, 33), ("holes", 3, 129), ("left", 2, 129))
SCRIPTED = [(name, attention) for name in BEYOND if name != "gemma" for attention in ("eager", "sdpa")]
BY_DYNAMO = [("modernbert", "sdpa"), ("gemma", "sdpa")]


class Rows(nn.Module):
    """A bare model with positional inputs and one output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids, mask):
        return self.model(input_ids=ids, attention_mask=mask)[0]


def export(case: str, attention: str, folder: Path, dynamo: bool = False) -> Path:
    """A random model of a family as a graph."""
    _, model = families.make(folder / "checkpoint", case)
    model.set_attn_implementation(attention)
    ids = torch.randint(2, 90, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    names = {"input_names": ["input_ids", "attention_mask"], "output_names": ["rows"]}
    axes = {0: "batch", 1: "length"}
    how = {"dynamo": False, "opset_version": 17, "dynamic_axes": dict.fromkeys((*names["input_names"], "rows"), axes)}
    if dynamo:
        free = dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC)
        how = {"dynamo": True, "opset_version": 18, "dynamic_shapes": (free, free), "external_data": False}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(Rows(model).eval(), (ids, mask), folder / "model.onnx", verbose=False, **how, **names)
    return folder / "model.onnx"


def feeds(kind: str, batch: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and a mask, of which every row shows something."""
    random = np.random.default_rng([ord(kind[0]), batch, length])
    mask = np.ones((batch, length), np.int64)
    for row in mask:
        cut = random.integers(0, length)
        if kind == "right":
            row[length - cut :] = 0
        elif kind == "left":
            row[:cut] = 0
        elif kind == "holes":
            row[:] = random.random(length) < 0.6
            row[random.integers(0, length)] = 1
    return random.integers(5, 97, (batch, length)), mask


def assert_same(got, want, tolerance=1e-4, cases=CASES) -> None:
    """Two sessions give the same rows at the positions that the mask shows."""
    for case in cases:
        ids, mask = feeds(*case)
        one, other = (each.run(None, {"input_ids": ids, "attention_mask": mask})[0][mask == 1] for each in (got, want))
        assert stock.error(one, other) <= tolerance, case


def operators(path: Path) -> Counter[str]:
    """How many nodes a graph has of each operation."""
    return Counter(node.op for node in fusebert.read(path).nodes)


def assert_agrees(path: Path, cases=CASES) -> None:
    """A loaded graph gives ONNX Runtime's answers at the positions that the mask shows."""
    model, session = fusebert.load(path), InferenceSession(path)
    for case in cases:
        ids, mask = feeds(*case)
        (want,) = session.run(None, {"input_ids": ids, "attention_mask": mask})
        got = model.run(ids, mask)["last_hidden_state"]
        assert stock.error(got[mask == 1], want[mask == 1]) <= 1e-4, case


@pytest.mark.parametrize(("case", "attention"), SCRIPTED)
def test_a_family_is_found_in_its_graph(case, attention, tmp_path):
    path = export(case, attention, tmp_path)
    assert_agrees(path)
    finding = fusebert.find(fusebert.read(path))
    (found,) = finding.encoders
    assert len(found.layers) == {"albert": 6}.get(case, 3)
    assert not finding.misses
    if attention == "eager":
        fusebert.optimize(path, tmp_path / "fast.onnx", "fp32", "onnxruntime")
        assert operators(tmp_path / "fast.onnx")["fusebert.Encoder"] == 1
        assert_same(session(tmp_path / "fast.onnx"), InferenceSession(path))
        if BEYOND[case]:
            with pytest.raises(UnsupportedError, match=BEYOND[case]):
                fusebert.optimize(path, tmp_path / "stock.onnx", "fp32", "stock-onnxruntime")


@pytest.mark.parametrize("case", ["mpnet", "modernbert", "eurobert"])
def test_its_operator_computes_in_int8(case, tmp_path):
    path = export(case, "sdpa", tmp_path)
    fusebert.optimize(path, tmp_path / "fast.onnx", "int8", "onnxruntime")
    assert_same(session(tmp_path / "fast.onnx"), InferenceSession(path), 0.15)


@pytest.mark.parametrize(("case", "attention"), BY_DYNAMO)
def test_a_family_is_found_in_what_dynamo_writes(case, attention, tmp_path):
    assert_agrees(export(case, attention, tmp_path, dynamo=True))


def test_windows_and_positions_are_those_of_long_texts(tmp_path):
    assert_agrees(export("modernbert", "sdpa", tmp_path), (("left", 1, 600), ("holes", 1, 1100)))


def test_shared_weights_are_one_block(tmp_path):
    path = export("albert", "sdpa", tmp_path)
    encoder = fusebert.load(path).network.encoder
    assert encoder.order == (0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7)


def test_an_artifact_is_made_of_a_graph(tmp_path):
    path = export("modernbert-biases-mean", "eager", tmp_path)
    report = fusebert.optimize(path, tmp_path / "out", "fp32", "standalone").data()
    assert report["original_graph"][0]["worst_error"] < 1e-4
    ids, mask = feeds("left", 2, 21)
    got, want = (fusebert.load(where).run(ids, mask)["last_hidden_state"] for where in (tmp_path / "out", path))
    np.testing.assert_array_equal(got, want)
