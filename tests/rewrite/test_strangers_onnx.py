"""Graphs as strangers bring them, through the whole of `optimize`: the sizes that a graph demands are kept to where
answers are compared, what comes out has the old encoder no more, and what is refused says the true reason.
tests/match/test_find.py and test_rewrite_onnx.py run every one of them against its framework."""

from collections import Counter

import onnx
import pytest
import zoo

import fusebert
from fusebert.errors import UnsupportedError
from fusebert.verbs.inspect import inspect

TARGETS = ("onnxruntime", "stock-onnxruntime")
EIGHT_BITS = ("strange-dynamic-", "strange-qdq-", "strange-qoperator-")
KINDS = [
    "strange-script-eager-length",
    "strange-dynamo-sdpa-one",
    "strange-script-sdpa-one-free",
    "strange-dynamo-eager-from-one",
    "strange-dynamo-wide",
    "strange-script-10-positions",
    "strange-dynamo-16-positions",
    "strange-dynamo-one-pooled",
    "strange-script-length-fp16",
    "strange-adapters",
    "strange-sim-script-sdpa-one",
    "strange-slim-dynamo-sdpa-one-free",
    "strange-shuffle-dynamo-eager-length",
    "onnx-siamese",
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", KINDS)
def test_is_optimised_and_right(name, target, tmp_path):
    entry = zoo.get(name)
    report = fusebert.optimize(entry.make(), tmp_path / "fast.onnx", "fp32", target)
    assert report.data()["verdict"] == "same answers within tolerance"
    layers = sum(encoder.layers for encoder in entry.encoders)
    assert sum(found["layers"] for found in report.data()["encoders"]) == layers


@pytest.mark.parametrize(
    "name", ["strange-turned", "refuse-mpnet-script", "refuse-mpnet-dynamo", "refuse-own-pre-norm"]
)
def test_a_form_beyond_berts_is_for_our_operator_and_not_for_stock_kernels(name, tmp_path):
    path = zoo.get(name).make()
    with pytest.raises(UnsupportedError, match=r"stock kernels cannot carry (norms before a block|relative positions)"):
        fusebert.optimize(path, tmp_path / "stock.onnx", "fp32", "stock-onnxruntime")
    assert not (tmp_path / "stock.onnx").exists()
    report = fusebert.optimize(path, tmp_path / "fast.onnx", "fp32", "onnxruntime")
    assert report.data()["verdict"] == "same answers within tolerance"


@pytest.mark.parametrize("name", ["strange-qoperator-bert-14-sdpa", "strange-qdq-bert-dynamo-eager"])
def test_nothing_of_an_encoder_in_8_bits_is_left(name, tmp_path):
    path = zoo.get(name).make()
    fusebert.optimize(path, tmp_path / "fast.onnx", "fp32", "onnxruntime", verify=False)
    before, after = (Counter(n.op_type for n in onnx.load(p).graph.node) for p in (path, tmp_path / "fast.onnx"))
    assert after["Encoder"] == 1
    products = ("MatMul", "QLinearMatMul", "MatMulInteger", "Gemm", "QGemm")
    assert sum(before[word] for word in products) >= 3 * 8
    assert sum(after[word] for word in products) <= 1  # the pooler's
    assert not after["Softmax"] + after["QLinearSoftmax"]


@pytest.mark.parametrize("name", [name for name in zoo.ZOO if name.startswith(EIGHT_BITS)])
def test_a_graph_in_8_bits_is_optimised_and_at_least_as_near_to_the_truth(name, tmp_path):
    report = fusebert.optimize(zoo.get(name).make(), tmp_path / "fast.onnx", "fp32", "onnxruntime")
    near = "at least as near to the truth as the 8-bit original"
    assert report.data()["verdict"] in ("same answers within tolerance", near)


def test_a_batch_that_is_one_inside_is_said():
    notes = inspect(zoo.get("strange-dynamo-eager-from-one").make()).notes
    assert any("only works for batch 1" in note for note in notes)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refuse-deberta", "disentangled attention or relative keys"),
        ("refuse-own-causal", "attention is causal"),
    ],
)
@pytest.mark.parametrize("target", [*TARGETS, "standalone"])
def test_is_refused_with_the_true_reason(name, words, target, tmp_path):
    out = tmp_path / ("out" if target == "standalone" else "out.onnx")
    with pytest.raises(UnsupportedError, match=words):
        fusebert.optimize(zoo.get(name).make(), out, "fp32", target)
    assert not list(tmp_path.iterdir())
