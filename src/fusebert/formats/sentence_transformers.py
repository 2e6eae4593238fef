"""The files that sentence-transformers puts around a checkpoint -> Sentence: modules.json, its folders, prompts.

A module that is not known is no reason to refuse the encoder; it is remembered, and `encode` names it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.files import read_json, read_json_list
from fusebert.formats.tensors import Weights
from fusebert.values.network import SPLADE, Dense, Sentence

MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
_POOLING = {  # flags of older files, in the order in which their results stand side by side
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens", "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
_ENCODERS = ("Transformer", "MLMTransformer")
_ACTIVATIONS = {"Identity": "identity", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu_erf", "SiLU": "silu"}


def checkpoint_folder(path: Path) -> Path:
    """The folder with the encoder's checkpoint: the one given, or where modules.json says."""
    if (path / "config.json").is_file() or not (path / MODULES).is_file():
        return path
    return next((path / own for kind, own in _modules(path) if kind in _ENCODERS), path)


def scores(path: Path) -> str:
    """What the files make of a cross-encoder's one logit, "sigmoid" or "identity": in a file of its own, or, as older
    versions wrote it, in config.json."""
    told = read_json(path / _SETTINGS).get("activation_fn") if (path / _SETTINGS).is_file() else None
    config = read_json(checkpoint_folder(path) / "config.json")
    own = config.get("sentence_transformers")
    told = told or (own.get("activation_fn") if isinstance(own, dict) else None)
    told = told or config.get("sbert_ce_default_activation_function")
    return "identity" if str(told).endswith(".Identity") else "sigmoid"


def read(path: Path) -> Sentence | None:
    """What the folder's modules make of the encoder's rows; None if it has no modules.json."""
    if not (path / MODULES).is_file():
        return None
    prompts = read_json(path / _SETTINGS) if (path / _SETTINGS).is_file() else {}
    texts, default = prompts.get("prompts") or {}, prompts.get("default_prompt_name")
    if not isinstance(texts, dict) or not all(isinstance(text, str) for text in texts.values()):
        raise FusebertError(f"{path / _SETTINGS}: prompts must map names to texts")
    if default is not None and not (isinstance(default, str) and default in texts):
        raise FusebertError(f"{path / _SETTINGS}: default_prompt_name {default!r:.60} is not among the prompts")
    try:
        return _read_modules(path, dict(texts), default)
    except UnsupportedError as error:
        return Sentence(prompts=dict(texts), default_prompt=default, refusal=str(error))


def _read_modules(path: Path, prompts: dict[str, str], default: str | None) -> Sentence:
    modules = _modules(path)
    if [kind for kind, _ in modules[1:]] == ["SpladePooling"]:
        why = f"{path / MODULES}: its modules give a text weights of words, as encode_sparse does"
        splade = _splade(path / modules[1][1] / "config.json")
        return Sentence(prompts=prompts, default_prompt=default, refusal=why, splade=splade)
    pooling, steps, normalize = "", list[Dense](), False
    for number, (kind, own) in enumerate(modules):
        if (kind == "Transformer") != (number == 0) or normalize:
            raise UnsupportedError(f"{path / MODULES}: a {kind} as module {number} is not supported")
        if kind == "Pooling" and not pooling:
            pooling = _pooling(path / own / "config.json")
        elif kind == "Dense" and pooling:
            steps.append(_dense(path / own))
        elif kind == "Normalize" and pooling:
            normalize = True
        elif kind not in ("Transformer", "Dropout"):
            raise UnsupportedError(f"{path / MODULES}: a {kind} as module {number} is not supported")
    if not pooling:
        raise UnsupportedError(f"{path / MODULES} has no Pooling")
    return Sentence(pooling, tuple(steps), normalize, prompts, default)


def _modules(path: Path) -> list[tuple[str, str]]:
    """The last word of every module's type, and its folder."""
    found = []
    for module in read_json_list(path / MODULES):
        kind, own = (module.get("type"), module.get("path")) if isinstance(module, dict) else (None, None)
        if not isinstance(kind, str) or not isinstance(own, str) or Path(own).is_absolute() or ".." in Path(own).parts:
            raise FusebertError(f"{path / MODULES}: {json.dumps(module):.80} does not name a type and a folder inside")
        found.append((kind.rpartition(".")[2], own))
    return found


def _pooling(path: Path) -> str:
    config = read_json(path)
    if config.get("include_prompt", True) is not True:
        raise UnsupportedError(f"{path}: include_prompt {config['include_prompt']!r} is not supported")
    modes: Any = config.get("pooling_mode") or [mode for flag, mode in _POOLING.items() if config.get(flag) is True]
    modes = [modes] if isinstance(modes, str) else modes
    if not isinstance(modes, list) or not modes or not set(map(str, modes)) <= set(_POOLING.values()):
        raise UnsupportedError(f"{path}: pooling_mode {modes!r:.60} is not supported")
    return "+".join(modes)


def _splade(path: Path) -> str:
    config = read_json(path)
    pooling, activation = config.get("pooling_strategy", "max"), config.get("activation_function", "relu")
    name = f"{pooling}{ {'relu': '', 'log1p_relu': ' of log'}.get(str(activation), ' of ?') }"
    if name not in SPLADE:
        raise UnsupportedError(f"{path}: pooling_strategy {pooling!r} of {activation!r} is not supported")
    return name


def _dense(folder: Path) -> Dense:
    config = read_json(folder / "config.json")
    outputs, inputs = config.get("out_features"), config.get("in_features")
    if not isinstance(outputs, int) or not isinstance(inputs, int) or min(outputs, inputs) < 1:
        raise FusebertError(f"{folder / 'config.json'}: in_features and out_features must be whole numbers")
    name = str(config.get("activation_function", "Tanh")).rpartition(".")[2].removesuffix("()")
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"{folder / 'config.json'}: activation_function {name!r} is not supported")
    weights = Weights(folder, "")
    linear = weights.linear("linear", outputs, inputs, bias=config.get("bias", True) is True)
    return Dense(linear, _ACTIVATIONS[name])
