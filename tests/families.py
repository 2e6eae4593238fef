"""Every family of checkpoints as small random models of transformers, in each spelling that is read: the cases of
tests/formats/test_families.py. A new family is a line of CASES; its tests come by themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import stock
import torch
import transformers
from safetensors.numpy import save_file

from fusebert.ops.vocabulary import Numpy
from fusebert.values.batch import LOWEST
from fusebert.values.forms import norm, reference
from fusebert.values.network import Dense, Network, positions

ALL = ("none", "sequence", "token", "question", "masked")
NO_QUESTION = ("none", "sequence", "token", "masked")
SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 70}
ODD = {"hidden_size": 312, "num_hidden_layers": 2, "num_attention_heads": 12, "intermediate_size": 600}


@dataclass(frozen=True)
class Case:
    """A transformers class with a config. transformers saves tensors under the names of the Hub's files; `own_names`
    saves them under those of its classes. `old` gives config.json the fields that the Hub's files have."""

    name: str
    heads: tuple[str, ...] = ALL
    config: dict[str, Any] = field(default_factory=dict)
    own_names: bool = False
    old: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def _old_nomic(config: dict[str, Any]) -> dict[str, Any]:
    old = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
           "intermediate_size": "n_inner", "max_position_embeddings": "n_positions",
           "layer_norm_eps": "layer_norm_epsilon"}  # fmt: skip
    kept = ("architectures", "model_type", "vocab_size", "type_vocab_size", "id2label", "num_labels", *old)
    fields = {old.get(name, name): config[name] for name in kept if name in config}
    fields |= {"rotary_emb_base": config["rope_parameters"]["rope_theta"], "activation_function": "swiglu",
               "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "prenorm": False,
               "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False}  # fmt: skip
    return fields


def _old_gte(config: dict[str, Any]) -> dict[str, Any]:
    rope = config.pop("rope_parameters")
    more = {"model_type": "new", "rope_theta": rope["rope_theta"], "position_embedding_type": "rope", "pack_qkv": True,
            "layer_norm_type": "layer_norm", "logn_attention_scale": False}  # fmt: skip
    return {**config, **more}


def _old_jina(config: dict[str, Any]) -> dict[str, Any]:
    config["rotary_emb_base"] = config.pop("rope_parameters")["rope_theta"]
    return config


def _old_modernbert(config: dict[str, Any]) -> dict[str, Any]:
    thetas = config.pop("rope_parameters")
    types = config.pop("layer_types")
    assert types == ["full_attention", "sliding_attention", "sliding_attention"][: len(types)]
    config |= {"global_rope_theta": thetas["full_attention"]["rope_theta"], "global_attn_every_n_layers": 3,
               "local_rope_theta": thetas["sliding_attention"]["rope_theta"]}  # fmt: skip
    return config


_DEBERTA_V3 = {
    "type_vocab_size": 0, "relative_attention": True, "position_buckets": 32, "norm_rel_ebd": "layer_norm",
    "share_att_key": True, "pos_att_type": "p2c|c2p", "position_biased_input": False, "max_position_embeddings": 600,
    "pooler_hidden_size": None,
}  # fmt: skip
_GEMMA = {
    "num_key_value_heads": 2, "head_dim": 10, "query_pre_attn_scalar": 7, "sliding_window": 24,
    "use_bidirectional_attention": True, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
CASES = {
    "mpnet": Case("MPNet", config={"pad_token_id": 1}),
    "xlm-roberta-long": Case("XLMRoberta", config={"max_position_embeddings": 1030, "pad_token_id": 1}),
    "xlm-roberta-xl": Case("XLMRobertaXL", config={"pad_token_id": 1}),
    "modernbert": Case("ModernBert", config={"local_attention": 16}),
    "modernbert-biases-mean": Case("ModernBert", config={
        "local_attention": 30, "attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True,
        "classifier_pooling": "mean", "classifier_activation": "silu", "decoder_bias": False}),
    "modernbert-hub": Case("ModernBert", ("none", "masked"), {"local_attention": 16}, old=_old_modernbert),
    "deberta-v3": Case("DebertaV2", config=_DEBERTA_V3),
    "deberta-v2": Case("DebertaV2", config={
        **_DEBERTA_V3, "share_att_key": False, "position_buckets": -1, "max_relative_positions": 64,
        "norm_rel_ebd": "none", "position_biased_input": True, "type_vocab_size": 2, "pos_att_type": ["c2p"],
        "legacy": False}),
    "deberta-v1": Case("Deberta", ("none", "sequence", "token", "question"), {
        "type_vocab_size": 0, "relative_attention": True, "pos_att_type": ["c2p", "p2c"], "legacy": False,
        "position_biased_input": False, "pooler_hidden_size": None}),
    "nomic": Case("NomicBert", NO_QUESTION),
    "nomic-old-fields": Case("NomicBert", ("none",), old=_old_nomic),
    "nomic-own-names": Case("NomicBert", ("none", "sequence"), own_names=True),
    "gte": Case("Gte", NO_QUESTION),
    "gte-old-fields": Case("Gte", ("none",), {"type_vocab_size": 0}, old=_old_gte),
    "gte-own-names": Case("Gte", ("none", "masked"), own_names=True),
    "jina-v3": Case("JinaEmbeddingsV3"),
    "jina-v3-old-fields": Case("JinaEmbeddingsV3", ("none",), old=_old_jina),
    "jina-v3-own-names": Case("JinaEmbeddingsV3", ("none",), own_names=True),
    "albert": Case("Albert", config={"embedding_size": 20, "num_hidden_groups": 2, "inner_group_num": 2}),
    "eurobert": Case("EuroBert", NO_QUESTION, {"num_key_value_heads": 2}),
    "eurobert-mean": Case("EuroBert", ("sequence",), {
        "num_key_value_heads": 3, "classifier_pooling": "mean", "attention_bias": True, "mlp_bias": True}),
    "gemma": Case("Gemma3Text", ("none",), _GEMMA),
}  # fmt: skip


def make(folder: Path, case: str, head: str = "none", odd: bool = False) -> tuple[Path, Any]:
    """Saves a random model of a case as a checkpoint; returns it with the stock model. Weights are wide enough that
    attention, gates and positions do something."""
    given = CASES[case]
    sizes = ODD if odd else SIZES
    own = {name: value for name, value in given.config.items() if not (odd and name == "layer_types")}
    if "pooler_hidden_size" in own:
        own["pooler_hidden_size"] = sizes["hidden_size"]
    fields = {"vocab_size": 97, "max_position_embeddings": 640, "pad_token_id": 0, **sizes, **own}
    fields["num_labels"] = 2 if head == "question" else 3
    config = getattr(transformers, f"{given.name}Config")(**fields)
    torch.manual_seed(len(case))
    model = getattr(transformers, given.name + stock.HEADS[head])._from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
            elif "embed" in name:
                parameter += 0.5 * torch.randn_like(parameter)
            else:
                parameter.copy_(torch.randn_like(parameter) * 1.3 / parameter.shape[-1] ** 0.5)
    model.eval().save_pretrained(folder)
    if given.own_names:
        tensors = {name: np.ascontiguousarray(array.numpy()) for name, array in model.state_dict().items()}
        save_file(tensors, folder / "model.safetensors")
    if given.old:
        path = folder / "config.json"
        path.write_text(json.dumps(given.old(json.loads(path.read_text()))))
    return folder, model


def compute(network: Network, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """What a Network answers, in NumPy and float32; hidden rows are computed as well."""
    rows = _embedded(network, ids)
    added = np.where(mask[:, None, None, :] == 1, np.float32(0), np.float32(LOWEST))
    rows = reference(network.encoder, rows, added)
    head = network.head
    if head.kind == "none":
        outputs = {"last_hidden_state": rows}
        return outputs | ({"pooler_output": _steps(head.steps, rows[:, 0])} if head.steps else {})
    if head.kind == "sequence":
        weights = (mask / mask.sum(1, keepdims=True))[..., None]
        if head.pooling == "each":
            return {"logits": (_steps(head.steps, rows) * weights).sum(1)}
        return {"logits": _steps(head.steps, rows[:, 0] if head.pooling == "first" else (rows * weights).sum(1))}
    logits = _steps(head.steps, rows)
    return (
        {"start_logits": logits[..., 0], "end_logits": logits[..., 1]}
        if head.kind == "question"
        else {"logits": logits}
    )


def _embedded(network: Network, ids: np.ndarray) -> np.ndarray:
    e = network.embeddings
    rows = e.word[ids].astype(np.float32)
    if e.position is not None:
        rows = rows + e.position[positions(e, ids)]
    if e.kind is not None:
        rows = rows + e.kind[0]
    rows = norm(Numpy(), rows * np.float32(e.scale), e.norm)
    if e.project is not None:
        rows = Numpy().linear(rows, e.project.floats(), e.project.bias)
    return norm(Numpy(), rows, e.projected_norm)


def _steps(steps: tuple[Dense, ...], rows: np.ndarray) -> np.ndarray:
    for step in steps:
        rows = Numpy().activation(Numpy().linear(rows, step.linear.floats(), step.linear.bias), step.activation)
        rows = norm(Numpy(), rows, step.norm)
    return rows
