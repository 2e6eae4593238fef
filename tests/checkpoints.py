"""Tiny Hugging Face checkpoints with random weights, made without any framework."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

FAMILIES = ("bert", "roberta", "distilbert", "electra")
HEADS = ("none", "sequence", "token", "question", "masked")
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "sat", "on", "mat", "dog", "ran", "un", "##able", "##s", "##ing", ".", ",", "!", "?"]

_NAMES = {"bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert", "electra": "Electra"}
_ENDINGS = {"none": "Model", "sequence": "ForSequenceClassification", "token": "ForTokenClassification",
            "question": "ForQuestionAnswering", "masked": "ForMaskedLM"}  # fmt: skip
_LAYER = {
    "bert": ["attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense",
             "intermediate.dense", "output.dense", "attention.output.LayerNorm", "output.LayerNorm"],
    "distilbert": ["attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin",
                   "ffn.lin1", "ffn.lin2", "sa_layer_norm", "output_layer_norm"],
}  # fmt: skip
# Transform, norm and bias of a masked-language head.
_MASKED = {
    "bert": ("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.bias"),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "electra": ("generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head.bias"),
}


def make_checkpoint(
    folder: Path,
    family: str = "bert",
    head: str = "none",
    *,
    hidden: int = 16,
    layers: int = 2,
    heads: int = 2,
    inner: int = 24,
    vocabulary: int = 40,
    positions: int = 20,
    labels: int = 3,
    seed: int = 0,
    vocab: bool = False,
) -> Path:
    """Writes config.json, model.safetensors with the names that transformers uses, and vocab.txt if asked for."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = 2 if head == "question" else labels  # as transformers demands
    config: dict[str, Any] = {
        "model_type": family,
        "architectures": [_NAMES[family] + _ENDINGS[head]],
        "vocab_size": vocabulary,
        "max_position_embeddings": positions,
        "id2label": {str(i): f"label {i}" for i in range(labels)},
        "pad_token_id": 1 if family == "roberta" else 0,
    }
    if family == "distilbert":
        config |= {"dim": hidden, "n_layers": layers, "n_heads": heads, "hidden_dim": inner, "activation": "gelu"}
    else:
        config |= {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads}
        config |= {"intermediate_size": inner, "hidden_act": "gelu", "layer_norm_eps": 1e-12}
        config |= {"type_vocab_size": 1 if family == "roberta" else 2, "position_embedding_type": "absolute"}
    if family == "electra":
        config |= {"embedding_size": hidden // 2}
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(_tensors(config, family, head, hidden, layers, inner, labels, seed), folder / "model.safetensors")
    if vocab:
        words = [*SPECIAL, *WORDS, *(f"word{i}" for i in range(vocabulary))][:vocabulary]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder


def _tensors(
    config: dict[str, Any], family: str, head: str, hidden: int, layers: int, inner: int, labels: int, seed: int
) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}

    def weight(name: str, *shape: int) -> None:
        made[name] = (random.standard_normal(shape) * 0.2).astype(np.float32)

    def linear(name: str, outputs: int, inputs: int) -> None:
        weight(f"{name}.weight", outputs, inputs)
        weight(f"{name}.bias", outputs)

    def norm(name: str, width: int) -> None:
        weight(f"{name}.weight", width)
        made[f"{name}.weight"] += 1
        weight(f"{name}.bias", width)

    base = "" if head == "none" else f"{family}."
    width = config.get("embedding_size", hidden)
    weight(f"{base}embeddings.word_embeddings.weight", config["vocab_size"], width)
    weight(f"{base}embeddings.position_embeddings.weight", config["max_position_embeddings"], width)
    if family != "distilbert":
        weight(f"{base}embeddings.token_type_embeddings.weight", config["type_vocab_size"], width)
    norm(f"{base}embeddings.LayerNorm", width)
    if width != hidden:
        linear(f"{base}embeddings_project", hidden, width)
    for i in range(layers):
        layer = f"{base}{'transformer' if family == 'distilbert' else 'encoder'}.layer.{i}."
        *square, first, second, norm1, norm2 = (layer + name for name in _LAYER.get(family, _LAYER["bert"]))
        for name in square:
            linear(name, hidden, hidden)
        linear(first, inner, hidden)
        linear(second, hidden, inner)
        norm(norm1, hidden)
        norm(norm2, hidden)
    if family in ("bert", "roberta") and (head == "none" or (family == "bert" and head == "sequence")):
        linear(f"{base}pooler.dense", hidden, hidden)
    if head == "sequence" and family in ("roberta", "electra"):
        linear("classifier.dense", hidden, hidden)
        linear("classifier.out_proj", labels, hidden)
    elif head in ("sequence", "token"):
        if head == "sequence" and family == "distilbert":
            linear("pre_classifier", hidden, hidden)
        linear("classifier", labels, hidden)
    elif head == "question":
        linear("qa_outputs", 2, hidden)
    elif head == "masked":
        transform, norm_name, bias = _MASKED[family]
        linear(transform, width, hidden)
        norm(norm_name, width)
        weight(bias, config["vocab_size"])
    return made


def edit_config(folder: Path, **changes: Any) -> Path:
    """Sets fields of config.json; a field set to Ellipsis is taken out."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not ...}))
    return folder


def edit_tensors(folder: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> Path:
    """Rewrites model.safetensors with the dictionary as `change` left it, or with the one it returned."""
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors)
    save_file(changed if isinstance(changed, dict) else tensors, folder / "model.safetensors")
    return folder
