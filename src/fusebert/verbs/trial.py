"""Trial: `python -m fusebert.verbs.trial FRAMEWORK` runs a tiny encoder in that framework, by the framework's own
operators and by the fused one, and raises whatever is wrong. `doctor` starts it in a process of its own, since a
framework may also hang or crash."""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fusebert.errors import DifferentError
from fusebert.rewrite.network import write_onnx, write_saved_model
from fusebert.values.blocks import Encoder, Linear, Norm
from fusebert.values.network import Embeddings, Head, Network
from fusebert.values.traverse import is_norm, post_norm_layer
from fusebert.verbs.optimize import optimize

_HIDDEN, _INNER, _WORDS, _LONGEST = 32, 64, 50, 16
_TOLERANCE = 1e-4  # of rows whose LayerNorm makes them about 1


def onnxruntime() -> None:
    """Fuses an ONNX file; `optimize` compares both in ONNX Runtime."""
    with TemporaryDirectory() as folder:
        write_onnx(_network(), plain := Path(folder, "plain.onnx"))
        optimize(plain, Path(folder, "fused.onnx"), "fp32", "onnxruntime")


def tensorflow() -> None:
    """Fuses a SavedModel; `optimize` compares both in TensorFlow."""
    with TemporaryDirectory() as folder:
        write_saved_model(_network(), plain := Path(folder, "plain"))
        optimize(plain, Path(folder, "fused"), "fp32", "tensorflow")


def torch() -> None:
    """Fuses a BERT of transformers."""
    import torch
    from transformers import BertConfig, BertModel

    import fusebert.torch

    config = BertConfig(
        vocab_size=_WORDS, hidden_size=_HIDDEN, intermediate_size=_INNER, num_hidden_layers=2, num_attention_heads=2
    )
    with fusebert.torch.disabled(), torch.inference_mode():
        model = BertModel(config).eval()  # type: ignore[no-untyped-call]
        ids = torch.arange(24).reshape(2, 12)
        wanted = model(ids).last_hidden_state
        found = fusebert.torch.optimize(model)(ids).last_hidden_state
    if (worst := float((found - wanted).abs().max())) > _TOLERANCE:
        raise DifferentError(f"answers of the fused operator differ from torch's by {worst:.2g}")


TRIALS = {"torch": torch, "tensorflow": tensorflow, "onnxruntime": onnxruntime}


def _network() -> Network:
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return random.normal(0, shape[-1] ** -0.5, shape).astype(np.float32)

    def norm() -> Norm:
        return Norm(1 + 0.1 * matrix(_HIDDEN), 0.1 * matrix(_HIDDEN), 1e-12)

    def part(path: str) -> Linear | Norm:
        if is_norm(path):
            return norm()
        outputs = _INNER if path.endswith("up") else _HIDDEN
        return Linear(matrix(outputs, _INNER if path.endswith("down") else _HIDDEN), 0.1 * matrix(outputs))

    blocks = (*post_norm_layer(part, 2, "gelu_erf"), *post_norm_layer(part, 2, "gelu_erf"))
    embeddings = Embeddings(matrix(_WORDS, _HIDDEN), matrix(_LONGEST, _HIDDEN), matrix(2, _HIDDEN), norm())
    return Network("bert", embeddings, Encoder.of(_HIDDEN, blocks), Head())


if __name__ == "__main__":
    TRIALS[sys.argv[1]]()
