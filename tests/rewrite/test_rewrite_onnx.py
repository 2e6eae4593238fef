"""ONNX models with fused operators: every exporter's output, rewritten, is run by ONNX Runtime and answers as its
framework did; what is not replaced stays, and nothing is half-written."""

import collections
import dataclasses
from pathlib import Path

import numpy as np
import onnx
import pytest
import zoo

import fusebert
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.onnxruntime import session
from fusebert.rewrite.onnx import rewrite_onnx, rewrite_stock
from fusebert.source import OnnxFile
from fusebert.values.target import FusedOnnx, StockOnnx

ONNX = [name for name, entry in zoo.ZOO.items() if entry.file == "model.onnx" and not entry.refused]
BERTS = ("onnx-bert-1-input", "onnx-bert-2-inputs", "onnx-bert-14-eager", "onnx-bert-dynamo-sdpa", "tf2onnx-bert")


def worst(entry: zoo.Entry, path: Path) -> float:
    """The largest error of a rewritten model, as a share of scale, over all kinds of masks."""
    running = session(path, threads=1)
    errors = [0.0]
    for kind in entry.kinds:
        wanted = entry.outputs(kind)
        for got, want in zip(running.run(list(wanted), entry.inputs(kind)), wanted.values(), strict=True):
            assert got.shape == want.shape
            errors.append(np.abs(got.astype(np.float64) - want).max() / max(np.abs(want).max(), 1e-9))
    return float(max(errors))


def words(path: Path) -> collections.Counter:
    return collections.Counter(node.op.removeprefix("com.microsoft.") for node in fusebert.read(path).nodes)


@pytest.mark.parametrize("name", ONNX)
def test_fused_operators_answer_as_the_framework(name, tmp_path):
    entry = zoo.get(name)
    rewrite_onnx(OnnxFile(entry.make()), tmp_path / "fused.onnx", FusedOnnx("fp32", "compute"))
    assert words(tmp_path / "fused.onnx")["fusebert.Encoder"] == len(entry.encoders)
    assert worst(entry, tmp_path / "fused.onnx") <= entry.tolerance
    onnx.load(str(tmp_path / "fused.onnx"))


@pytest.mark.parametrize("name", [name for name in ONNX if name != "strange-turned"])  # its second layer is pre-norm
def test_stock_kernels_answer_as_the_framework(name, tmp_path):
    entry = zoo.get(name)
    rewrite_stock(OnnxFile(entry.make()), tmp_path / "stock.onnx", StockOnnx())
    assert worst(entry, tmp_path / "stock.onnx") <= entry.tolerance
    layers = sum(encoder.layers for encoder in entry.encoders)
    assert words(tmp_path / "stock.onnx")["SkipLayerNormalization"] == 2 * layers
    assert words(tmp_path / "stock.onnx")["Attention"] == layers


def test_the_other_attention_kernel_answers_as_the_framework(tmp_path):
    entry = zoo.get("onnx-bert-14-eager")
    rewrite_stock(OnnxFile(entry.make()), tmp_path / "stock.onnx", StockOnnx(multi_head=True))
    assert words(tmp_path / "stock.onnx")["MultiHeadAttention"] == 3
    assert worst(entry, tmp_path / "stock.onnx") <= entry.tolerance


@pytest.mark.parametrize("name", BERTS)
def test_a_bert_has_the_kernels_that_upstream_counts(name, tmp_path):
    rewrite_stock(OnnxFile(zoo.get(name).make()), tmp_path / "stock.onnx", StockOnnx())
    counted = words(tmp_path / "stock.onnx")
    found = [counted[w] for w in ("EmbedLayerNormalization", "Attention", "BiasGelu", "SkipLayerNormalization")]
    assert found == [1, 3, 3, 6]


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8-bf16"])
@pytest.mark.parametrize("name", ["onnx-bert-14-sdpa", "onnx-roberta-sequence", "onnx-bert-fp16", "tf2onnx-tf1"])
def test_precisions_stay_near(name, precision, tmp_path):
    entry = zoo.get(name)
    rewrite_onnx(OnnxFile(entry.make()), tmp_path / "fused.onnx", FusedOnnx(precision, "compute"))
    assert worst(entry, tmp_path / "fused.onnx") < (0.1 if precision == "bf16" else 0.25)


def test_stock_int8_stays_near(tmp_path):
    entry = zoo.get("onnx-bert-14-eager")
    rewrite_stock(OnnxFile(entry.make()), tmp_path / "stock.onnx", StockOnnx("int8"))
    assert words(tmp_path / "stock.onnx")["MatMulNBits"] == 12
    assert worst(entry, tmp_path / "stock.onnx") < 0.25


def test_inner_layers_that_are_outputs_stay_right(tmp_path):
    entry = zoo.get("onnx-bert-taps")
    rewritten = rewrite_onnx(OnnxFile(entry.make()), tmp_path / "fused.onnx", FusedOnnx("fp32", "compute"))
    assert rewritten.cuts[0].taps == (0, 1)
    assert worst(entry, tmp_path / "fused.onnx") <= entry.tolerance


@pytest.mark.parametrize(
    ("name", "padding"),
    [("onnx-bert-sequence", "first"), ("onnx-bert-token", "compute"), ("onnx-bert-masked-mean", "skip"),
     ("onnx-bert-mean", "compute"), ("onnx-bert-question", "compute"), ("onnx-bert-1-input", "compute")],
)  # fmt: skip
def test_hidden_positions_are_left_out_only_where_nobody_can_read_them(name, padding, tmp_path):
    entry = zoo.get(name)
    rewritten = rewrite_onnx(OnnxFile(entry.make()), tmp_path / "fused.onnx", FusedOnnx())
    assert rewritten.padding == (padding,)
    if name != "onnx-bert-token":  # whose hidden positions are zeros, which is allowed
        assert worst(entry, tmp_path / "fused.onnx") <= entry.tolerance


def test_weights_beside_the_model_come_along(tmp_path):
    entry = zoo.get("onnx-bert-17-eager")
    model = onnx.load(str(entry.make()))
    (tmp_path / "from").mkdir()
    onnx.save(
        model, str(tmp_path / "from" / "model.onnx"), save_as_external_data=True, location="data", size_threshold=0
    )
    (tmp_path / "to").mkdir()
    rewrite_onnx(
        OnnxFile(tmp_path / "from" / "model.onnx"), tmp_path / "to" / "model.onnx", FusedOnnx("fp32", "compute")
    )
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["model.onnx"]
    assert worst(entry, tmp_path / "to" / "model.onnx") <= entry.tolerance


def test_a_model_too_large_for_one_file_gets_two(tmp_path, monkeypatch):
    from fusebert.formats.onnx import edit as onnx_write

    monkeypatch.setattr(onnx_write, "_LARGEST", 1000)
    entry = zoo.get("onnx-bert-17-eager")
    rewrite_onnx(OnnxFile(entry.make()), tmp_path / "model.onnx", FusedOnnx("fp32", "compute"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "model.onnx.data"]
    assert worst(entry, tmp_path / "model.onnx") <= entry.tolerance


def test_the_original_is_not_touched(tmp_path):
    path = zoo.get("onnx-bert-14-eager").make()
    before = path.read_bytes()
    fusebert.optimize(path, tmp_path / "out.onnx", "fp32")
    assert path.read_bytes() == before
    with pytest.raises(FusebertError, match="never overwritten"):
        fusebert.optimize(path, path, "fp32", overwrite=True)


def test_optimize_compares_and_reports(tmp_path):
    report = fusebert.optimize(zoo.get("onnx-bert-sequence").make(), tmp_path / "out.onnx", "int8")
    data = report.data()
    assert data["for"] == "onnxruntime"
    assert data["verdict"] == "same answers within tolerance"
    assert data["encoders"][0]["hidden_positions"] == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["out.onnx"]


def test_nothing_is_written_if_answers_differ(tmp_path, monkeypatch):
    from fusebert.errors import DifferentError
    from fusebert.rewrite import onnx as rewriting

    packed = rewriting.packed_encoder

    def wrong(*args):
        encoder, notes = packed(*args)
        attention, first, *rest = encoder.blocks
        shifted = dataclasses.replace(first.after, bias=first.after.bias + 1)
        blocks = attention, dataclasses.replace(first, after=shifted), *rest
        return dataclasses.replace(encoder, blocks=blocks), notes

    monkeypatch.setattr(rewriting, "packed_encoder", wrong)
    with pytest.raises(DifferentError, match="nothing was written"):
        fusebert.optimize(zoo.get("onnx-bert-14-eager").make(), tmp_path / "out.onnx", "fp32")
    assert not list(tmp_path.iterdir())


def test_a_dry_run_writes_nothing(tmp_path):
    report = fusebert.optimize(zoo.get("onnx-bert-14-eager").make(), tmp_path / "out.onnx", "fp32", dry_run=True)
    assert report.data()["encoders"][0]["layers"] == 3
    assert not list(tmp_path.iterdir())


def test_sizes_that_are_expected_are_checked(tmp_path):
    with pytest.raises(FusebertError, match="heads 3, not 24"):
        fusebert.optimize(zoo.get("onnx-bert-14-eager").make(), tmp_path / "out.onnx", "fp32", expected={"heads": 24})


def test_what_has_no_encoder_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match="no encoder was found"):
        fusebert.optimize(zoo.get("refuse-perceptron").make(), tmp_path / "out.onnx", "fp32")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("target", ["onnxruntime", "stock-onnxruntime"])
def test_ids_and_masks_can_be_int32(target, tmp_path):
    entry = zoo.get("onnx-bert-14-eager")
    fusebert.optimize(entry.make(), tmp_path / "out.onnx", "fp32", target, int32=True)
    running = session(tmp_path / "out.onnx")
    assert {given.type for given in running.get_inputs()} == {"tensor(int32)"}
    feeds = {name: array.astype(np.int32) for name, array in entry.inputs("right").items()}
    for got, want in zip(running.run(None, feeds), entry.outputs("right").values(), strict=True):
        seen = entry.inputs("right")["attention_mask"].astype(bool) if want.ndim == 3 else slice(None)
        assert np.abs(got - want)[seen].max() < 1e-4
