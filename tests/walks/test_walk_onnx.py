"""The document about the ONNX optimizer from start to end, as its reader goes, with the command lines of
docs/coming-from.md: a classifier of torch, exported with a fixed length, optimised, verified and timed."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from documented import lines, words

import fusebert.onnxruntime

pytestmark = pytest.mark.filterwarnings("ignore")  # the exporter's own


def export(path: Path) -> None:
    """As wide as BERT-large, which the document's numbers are for; else tiny. Inputs and output as the document names
    them; the batch is free, the length is not."""
    sizes = {"hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 1, "intermediate_size": 76}
    torch.manual_seed(0)
    config = transformers.BertConfig(**sizes, vocab_size=97, max_position_embeddings=128, attn_implementation="eager")
    model = transformers.BertForSequenceClassification(config).eval()
    ones = torch.ones(8, 128, dtype=torch.long)
    names = ["input_ids", "input_mask", "segment_ids"]
    torch.onnx.export(
        model, (ones, ones, 0 * ones), path, opset_version=10, do_constant_folding=True, input_names=names,
        output_names=["output"], dynamic_axes={name: {0: "batch_size"} for name in (*names, "output")}, dynamo=False,
    )  # fmt: skip


def test_the_onnx_optimizer(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    export(tmp_path / "original_model.onnx")
    optimize, *others = (words(line, tmp_path) for line in lines("The ONNX optimizer"))
    said = run(*optimize, code=2)  # the document takes BERT-large for a model of 24 heads
    assert "16" in said
    assert "--gpu_only is left out: fusebert writes models for CPUs" in said
    assert not Path("optimized_model_gpu.onnx").exists()
    right = ["16" if word == "24" else word for word in optimize]
    run(*right)
    run(*(word.replace("gpu.onnx", "cpu.onnx") for word in right if "float16" not in word), "--no-verify")
    for line in others:
        said = run(*("5" if word == "100" else word for word in line))  # samples: a hundred take a minute
        assert ("--use_gpu is left out: fusebert runs on CPUs" in said) == ("--use_gpu" in line)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "optimized_model_cpu.onnx",
        "optimized_model_gpu.onnx",
        "original_model.onnx",
    ]
    random = np.random.default_rng(0)
    feeds = {"input_ids": random.integers(0, 97, (5, 128)), "input_mask": np.ones((5, 128), np.int64),
             "segment_ids": random.integers(0, 2, (5, 128))}  # fmt: skip
    (want,) = onnxruntime.InferenceSession("original_model.onnx").run(None, feeds)
    for name in ("optimized_model_cpu.onnx", "optimized_model_gpu.onnx"):
        session = fusebert.onnxruntime.session(name)
        (got,) = session.run(None, {key: value.astype(np.int32) for key, value in feeds.items()})
        assert np.abs(got - want).max() < 0.02 * np.abs(want).max()
