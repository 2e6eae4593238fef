"""8-bit graphs: how far the original and what replaces it are from the same graph without rounding, and that whatever
is at least as near is accepted by every target, under the same policy, with a verdict that says so."""

import json
import logging
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
import zoo
from onnx import numpy_helper

import fusebert
from fusebert.errors import DifferentError
from fusebert.measure.compare import compare
from fusebert.measure.runners import OnnxRuntime, Unrounded, open_runner
from fusebert.source import open_graph
from fusebert.values.target import make_target
from fusebert.verbs.request import Request

FEW = {"samples": 4, "batch_size": 2, "sequence_length": 8}
WAYS = {
    "tensor": {"way": "dynamic"},
    "channel": {"way": "dynamic", "per_channel": True},
    "reduced": {"way": "dynamic", "per_channel": True, "reduce_range": True},
    "qdq": {"way": "QDQ", "per_channel": True},
    "coarse": {"way": "QDQ", "per_channel": True, "seen": 1},  # most texts are beyond ranges that were seen on few
    "operator": {"way": "QOperator", "per_channel": True, "seen": 1},
}
TARGETS = ("onnxruntime", "stock-onnxruntime", "standalone")


class Texts:
    """Random inputs to calibrate with, of so many words."""

    def __init__(self, names: list[str], words: int) -> None:
        random = np.random.default_rng(0)
        ids = [random.integers(0, words, (2, 8)) for _ in range(6)]
        self._rows = iter({n: i if n == "input_ids" else np.full_like(i, "mask" in n) for n in names} for i in ids)

    def get_next(self):
        return next(self._rows, None)


def quantized(name: str, out: Path, way: str, seen: int = 30, **options) -> Path:
    """A model of the zoo in 8 bits, as ONNX Runtime's own tools make it."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static

    plain = zoo.get(name).make()
    options |= {"weight_type": QuantType.QInt8}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        if way == "dynamic":
            quantize_dynamic(plain, out, **options)
        else:
            texts = Texts([given.name for given in onnx.load(plain).graph.input], seen)
            quantize_static(plain, out, texts, quant_format=QuantFormat[way], **options)
        logging.disable(logging.NOTSET)
    return out


@pytest.fixture(scope="module")
def rounded(tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("rounded")
    return {way: quantized("onnx-bert-14-eager", folder / f"{way}.onnx", **how) for way, how in WAYS.items()}


def distances(report) -> dict[str, dict[str, float]]:
    return {row["output"]: row for row in report.data()["rounding"]}


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("way", WAYS)
def test_every_target_accepts_what_is_nearer_to_the_truth(rounded, tmp_path, way, target, precision):
    if way == "operator" and target != "standalone":
        pytest.skip("its tensors are bytes, which the fused operators do not take")
    report = fusebert.optimize(rounded[way], tmp_path / ("out.onnx" if "onnx" in target else "out"), precision, target)
    data = report.data()
    assert "at least as near to the truth" in data["policy"]
    same = data["verdict"] == "same answers within tolerance"
    assert same or data["verdict"] == "at least as near to the truth as the 8-bit original"
    for row in distances(report).values():
        assert same or row["result_to_truth"] <= row["original_to_truth"]
    if way in ("coarse", "operator"):
        assert not same, "the original should be far from the truth"
        assert distances(report)["last_hidden_state"]["result_to_truth"] < 0.02


def test_the_truth_is_the_graph_without_rounding(rounded):
    """Of the file before it was quantised, with the weights that the 8-bit file has."""
    source = open_graph(rounded["channel"])
    model = onnx.load(zoo.get("onnx-bert-14-eager").make())
    eight = {weight.name: numpy_helper.to_array(weight) for weight in onnx.load(rounded["channel"]).graph.initializer}
    for weight in model.graph.initializer:
        if (whole := eight.get(f"{weight.name}_quantized")) is not None:
            zero, scale = (eight[f"{weight.name}_{part}"] for part in ("zero_point", "scale"))
            floats = (whole.astype(np.float32) - zero.astype(np.float32)) * scale
            weight.CopyFrom(numpy_helper.from_array(floats.astype(np.float32), weight.name))
    dequantized = rounded["channel"].with_suffix(".floats.onnx")
    onnx.save(model, dequantized)
    truth, wanted = Unrounded(source), OnnxRuntime(open_graph(dequantized), level=0)
    ids, mask = np.arange(12).reshape(2, 6), np.array([[1] * 6, [1] * 4 + [0] * 2])
    got, answer = (runner.run(ids, mask, mask * 0)["last_hidden_state"] for runner in (truth, wanted))
    np.testing.assert_allclose(got, answer, rtol=1e-4, atol=1e-5)


def test_compare_has_the_same_policy_and_refuses_what_is_farther(rounded, run):
    good, coarse = rounded["channel"], rounded["coarse"]
    found = compare(coarse, open_runner(good, "int8"), **FEW)
    assert found.same
    assert str(found.facts["verdict"]).startswith("at least as near to the truth")
    told = json.loads(run("compare", good, coarse, "--samples", 4, "--sequence-length", 8, "--json", code=1))
    assert told["verdict"].startswith("different answers")
    assert "from the truth, the original" in told["verdict"]
    row = told["rounding"][0]
    assert row["result_to_truth"] > row["original_to_truth"]
    assert compare(coarse, coarse, **FEW).same
    strict = compare(coarse, open_runner(good, "int8"), rtol=1e-3, **FEW)
    assert not strict.same
    assert strict.rounding is None


def test_a_result_that_is_farther_is_not_written_and_the_advice_can_help(rounded, tmp_path):
    good, coarse = (open_graph(rounded[way]) for way in ("channel", "coarse"))
    for precision, advice in (("int8", "Try --precision bf16 or fp32"), ("fp32", "please report")):
        request = Request(good, tmp_path / "out.onnx", make_target("onnxruntime", {"precision": precision}))
        with pytest.raises(DifferentError, match=rf"it differs.*nothing was written.*{advice}"):
            request.compared(good, coarse, "it differs")


def test_a_plain_graph_has_no_such_policy(tmp_path):
    report = fusebert.optimize(zoo.get("onnx-bert-14-eager").make(), tmp_path / "out.onnx", "int8")
    assert "policy" not in report.data()
    assert "rounding" not in report.data()
