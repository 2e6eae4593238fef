"""The models and batches of the benchmarks: BERT in three sizes with random weights, ids and 0/1 masks by shape."""

from pathlib import Path
from typing import Any

import numpy as np

from fusebert.ops.graph import Array

SIZES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}


def inputs(shape: str) -> tuple[Array, Array]:
    """Random ids and 0/1 rows; a shape is batch x length, with an r behind it rows have real lengths."""
    batch, length = (int(n) for n in shape.rstrip("r").split("x"))
    random = np.random.default_rng(1)
    lengths = np.full(batch, length)
    if shape.endswith("r"):
        lengths = np.clip(random.normal(0.41 * length, 0.13 * length, batch).astype(int), min(8, length), length)
    return random.integers(1000, 30000, (batch, length)), (np.arange(length) < lengths[:, None]).astype(np.int64)


def weights(size: dict[str, int]) -> int:
    """The numbers in the matrices of all layers."""
    hidden, inner = size["hidden_size"], size["intermediate_size"]
    return size["num_hidden_layers"] * (4 * hidden * hidden + 2 * hidden * inner)


def operations(size: dict[str, int], mask: Array) -> float:
    """Multiplications and additions of the products, for the visible tokens."""
    lengths = mask.sum(1).astype(float)
    attention = size["num_hidden_layers"] * 4 * size["hidden_size"] * (lengths**2).sum()
    return float(lengths.sum() * 2 * weights(size) + attention)


def checkpoint(size: dict[str, int], folder: Path) -> Path:
    """A random BERT as a Hugging Face checkpoint, made once."""
    if not (folder / "model.safetensors").is_file():
        import torch
        import transformers

        torch.manual_seed(0)
        config: Any = transformers.BertConfig
        bert: Any = transformers.BertModel
        # CTranslate2's converter asks for the position embeddings' type, which transformers no longer writes.
        bert(config(**size, position_embedding_type="absolute")).save_pretrained(folder)
    return folder
