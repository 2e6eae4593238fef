"""The models and batches of the benchmarks: BERT in three sizes and other families in their base size, with random
weights; ids and 0/1 masks by shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from fusebert.ops.graph import Array
from fusebert.values.blocks import Attention, Disentangled, Encoder, FeedForward

SIZES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}
# Classes of transformers with the fields of their configs that differ from BERT-base's or from transformers' defaults.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mpnet": ("MPNet", {"vocab_size": 30527, "max_position_embeddings": 1026}),
    "deberta": ("DebertaV2", {
        "vocab_size": 32000, "type_vocab_size": 0, "relative_attention": True, "position_buckets": 256,
        "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
        "intermediate_size": 3072}),
    "modernbert": ("ModernBert", {"vocab_size": 50368}),
    "albert": ("Albert", {
        "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 1026}),
}  # fmt: skip
MODELS = (*SIZES, *FAMILIES)
SHAPES = {"modernbert": "1x128,8x128,32x128r,1x1024"}  # of models that have their own
SHAPES |= dict.fromkeys(FAMILIES.keys() - SHAPES.keys(), "1x128,8x128,32x128r")


def inputs(shape: str) -> tuple[Array, Array]:
    """Random ids and 0/1 rows; a shape is batch x length, with an r behind it rows have real lengths."""
    batch, length = (int(n) for n in shape.rstrip("r").split("x"))
    random = np.random.default_rng(1)
    lengths = np.full(batch, length)
    if shape.endswith("r"):
        lengths = np.clip(random.normal(0.41 * length, 0.13 * length, batch).astype(int), min(8, length), length)
    return random.integers(1000, 30000, (batch, length)), (np.arange(length) < lengths[:, None]).astype(np.int64)


def weights(encoder: Encoder) -> int:
    """The numbers in the matrices of all layers, as often as they are used."""
    return sum(_matrices(encoder.blocks[number].body) for number in encoder.order)


def _matrices(body: Attention | FeedForward) -> int:
    return sum(getattr(body, name).weight.size for names in body.products() for name in names)


def operations(encoder: Encoder, mask: Array) -> float:
    """Multiplications and additions of the products, for the visible tokens."""
    lengths = mask.sum(1).astype(float)
    bodies = [encoder.blocks[number].body for number in encoder.order]
    scores = sum(_scores(body, lengths) for body in bodies if isinstance(body, Attention))
    return float(lengths.sum() * 2 * weights(encoder) + scores)


def _scores(attention: Attention, lengths: Array) -> float:
    """Of queries with the keys they see, of these scores with the values, and of what positions add to scores."""
    width = len(attention.query.weight)
    seen = lengths if attention.window is None else np.minimum(lengths, 2 * attention.window + 1)
    total = 4 * width * (lengths * seen).sum()
    if isinstance(position := attention.position, Disentangled):
        tables = [t for t in (position.content_to_position, position.position_to_content) if t is not None]
        total += sum(2 * width * (lengths * np.minimum(2 * lengths - 1, len(table))).sum() for table in tables)
    return float(total)


def checkpoint(name: str, folder: Path) -> Path:
    """A random model as a Hugging Face checkpoint, made once. Only BERT has a pooler."""
    if not (folder / "model.safetensors").is_file():
        import torch
        import transformers

        torch.manual_seed(0)
        # CTranslate2's converter asks for the position embeddings' type, which transformers no longer writes.
        bert = "Bert", {**SIZES.get(name, {}), "position_embedding_type": "absolute"}
        kind, fields = FAMILIES.get(name, bert)
        model: Any = getattr(transformers, f"{kind}Model")
        bare = {"add_pooling_layer": False} if kind in ("MPNet", "Albert") else {}
        model(getattr(transformers, f"{kind}Config")(**fields), **bare).save_pretrained(folder)
    return folder
