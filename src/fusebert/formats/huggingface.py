"""Hugging Face checkpoint folder -> Network. Reads config.json and the weights; runs nothing that came with the model.

Families differ in names and in a few rules; each is a table in families/. Whatever changes the mathematics and is not
known here is refused by the name of its field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.families import FAMILIES, Family
from fusebert.formats.files import read_json
from fusebert.formats.tensors import Weights
from fusebert.values.blocks import Block, Encoder, Linear, Norm
from fusebert.values.network import HEADS, Dense, Embeddings, Head, Network
from fusebert.values.traverse import is_norm, post_norm_layer

_ACTIVATIONS = {
    "gelu": "gelu_erf", "gelu_python": "gelu_erf", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "gelu_quick", "relu": "relu",
}  # fmt: skip

# The end of an architecture's name -> the head it carries.
_ARCHITECTURES = {
    "Model": "none",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "question",
    "ForMaskedLM": "masked",
}


def is_checkpoint(path: Path) -> bool:
    """Whether a folder looks like a checkpoint."""
    return (path / "config.json").is_file()


def read(path: Path, head: str | None = None) -> Network:
    """The Network in a checkpoint folder; `head` overrides the one that config.json names ("none" drops it)."""
    config = _Config(path / "config.json", read_json(path / "config.json"))
    family = config.family()
    config.refuse_other_mathematics()
    weights = Weights(path, family.prefix)
    kind = head or config.head()
    if kind not in HEADS:
        raise FusebertError(f"head {kind!r} is unknown; use one of {', '.join(HEADS)}")
    sizes = _Sizes(config, family, weights)
    return Network(
        family=str(config.values["model_type"]),
        embeddings=_embeddings(config, family, weights, sizes),
        encoder=Encoder.of(sizes.hidden, tuple(_blocks(config, family, weights, sizes))),
        head=_HEADS[kind](config, weights, sizes),
        labels=config.labels() if kind in ("sequence", "token") else (),
        problem=config.problem() if kind == "sequence" else "single_label",
    )


class _Config:
    """config.json with checked access: a missing or absurd field is an error that names it."""

    def __init__(self, path: Path, values: dict[str, Any]) -> None:
        self.path, self.values = path, values

    def family(self) -> Family:
        name = self.values.get("model_type")
        if not isinstance(name, str) or name not in FAMILIES:
            raise UnsupportedError(
                f"{self.path}: model_type {name!r} is not supported; these are: {', '.join(FAMILIES)}"
            )
        return FAMILIES[name]

    def refuse_other_mathematics(self) -> None:
        expected = {
            "position_embedding_type": ("absolute", None),
            "is_decoder": (False, None),
            "add_cross_attention": (False, None),
            "is_encoder_decoder": (False, None),
            "quantization_config": (None,),
        }
        for name, good in expected.items():
            if (value := self.values.get(name)) not in good:
                raise UnsupportedError(f"{self.path}: {name} {value!r} is not supported; only {good[0]!r} is")

    def size(self, name: str) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 24:
            raise FusebertError(f"{self.path}: {name} is {value!r}, but must be a whole number from 1 to {1 << 24}")
        return value

    def activation(self, name: str) -> str:
        value = self.values.get(name, "gelu")
        if not isinstance(value, str) or value not in _ACTIVATIONS:
            raise UnsupportedError(
                f"{self.path}: {name} {value!r} is not supported; these are: {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[value]

    def epsilon(self) -> float:
        if (fixed := self.family().epsilon) is not None:
            return fixed
        value = self.values.get("layer_norm_eps", 1e-12)
        if not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise FusebertError(f"{self.path}: layer_norm_eps is {value!r}, but must be from 0 to 1")
        return float(value)

    def head(self) -> str:
        names = self.values.get("architectures") or ["Model"]
        name = names[0] if isinstance(names, list) else names
        for ending, head in _ARCHITECTURES.items():
            if str(name).endswith(ending):
                return head
        raise UnsupportedError(
            f'{self.path}: the head of {name!r} is not supported; head="none" runs the model without it, '
            f"and these heads are known: {', '.join('...' + e for e in _ARCHITECTURES)}"
        )

    def labels(self) -> tuple[str, ...]:
        names = self.values.get("id2label")
        if isinstance(names, dict) and sorted(names, key=str) == sorted(map(str, range(len(names)))):
            labels = [str(names[str(i)]) for i in range(len(names))]
            twice = len(set(labels)) < len(labels)  # answers are told apart by their labels
            return tuple(f"{label} ({i})" if twice else label for i, label in enumerate(labels))
        count = self.values.get("num_labels", 2)
        return tuple(f"LABEL_{i}" for i in range(count if isinstance(count, int) and 0 < count < 1 << 20 else 2))

    def problem(self) -> str:
        named = self.values.get("problem_type")
        if named is None:
            return "regression" if len(self.labels()) == 1 else "single_label"
        known = {
            "single_label_classification": "single_label",
            "multi_label_classification": "multi_label",
            "regression": "regression",
        }
        if not isinstance(named, str) or named not in known:
            raise UnsupportedError(
                f"{self.path}: problem_type {named!r} is not supported; these are: {', '.join(known)}"
            )
        return known[named]


class _Sizes:
    """The sizes that config.json claims, checked against each other and against the weights before anything is made."""

    def __init__(self, config: _Config, family: Family, weights: Weights) -> None:
        fields = family.fields
        self.hidden = config.size(fields["hidden"])
        self.heads = config.size(fields["heads"])
        self.inner = config.size(fields["inner"])
        self.layers = config.size(fields["layers"])
        self.vocabulary = config.size("vocab_size")
        self.activation = config.activation(fields["activation"])
        if self.hidden % self.heads:
            raise FusebertError(
                f"{config.path}: {fields['hidden']} {self.hidden} cannot be shared by {self.heads} heads"
            )
        last = f"{family.layers}.{self.layers - 1}.{family.layer['attention.query']}.weight"
        if not weights.find(last):
            raise FusebertError(
                f"{config.path}: {fields['layers']} is {self.layers}, but the weights have no tensor {last}"
            )


def _embeddings(config: _Config, family: Family, weights: Weights, sizes: _Sizes) -> Embeddings:
    columns = None if family.narrow_words else sizes.hidden
    word = weights.get("embeddings.word_embeddings.weight", shape=(sizes.vocabulary, columns))
    width = word.shape[1]
    padding = None
    if family.counts_from_padding:
        padding = config.values.get("pad_token_id", 1)
        if not isinstance(padding, int) or isinstance(padding, bool) or not 0 <= padding < sizes.vocabulary:
            raise FusebertError(f"{config.path}: pad_token_id is {padding!r}, but must be a token id")
    types = "embeddings.token_type_embeddings.weight"
    embeddings = Embeddings(
        word=word,
        position=weights.get("embeddings.position_embeddings.weight", shape=(None, width)),
        kind=weights.get(types, shape=(None, width)) if family.token_types else None,
        norm=weights.norm("embeddings.LayerNorm", width, config.epsilon()),
        project=weights.linear("embeddings_project", sizes.hidden, width) if width != sizes.hidden else None,
        padding_id=padding,
    )
    if embeddings.longest < 1:
        raise FusebertError(f"{weights.path}: the position table has too few rows for any token")
    return embeddings


def _blocks(config: _Config, family: Family, weights: Weights, sizes: _Sizes) -> Iterator[Block]:
    for number in range(sizes.layers):
        yield from _layer(config, family, weights, sizes, number)


def _layer(config: _Config, family: Family, weights: Weights, sizes: _Sizes, number: int) -> tuple[Block, Block]:
    shapes = {"feed_forward.up": (sizes.inner, sizes.hidden), "feed_forward.down": (sizes.hidden, sizes.inner)}

    def part(path: str) -> Linear | Norm:
        name = f"{family.layers}.{number}.{family.layer[path]}"
        if is_norm(path):
            return weights.norm(name, sizes.hidden, config.epsilon())
        return weights.linear(name, *shapes.get(path, (sizes.hidden, sizes.hidden)))

    return post_norm_layer(part, sizes.heads, sizes.activation)


def _bare(_: _Config, weights: Weights, sizes: _Sizes) -> Head:
    if not weights.find("pooler.dense.weight"):
        return Head()
    return Head("none", (Dense(weights.linear("pooler.dense", sizes.hidden, sizes.hidden), "tanh"),))


def _sequence(config: _Config, weights: Weights, sizes: _Sizes) -> Head:
    first, last, activation = config.family().classifier
    steps = (
        Dense(weights.linear(first, sizes.hidden, sizes.hidden), activation),
        Dense(weights.linear(last, len(config.labels()), sizes.hidden)),
    )
    return Head("sequence", steps)


def _token(config: _Config, weights: Weights, sizes: _Sizes) -> Head:
    return Head("token", (Dense(weights.linear("classifier", len(config.labels()), sizes.hidden)),))


def _question(_: _Config, weights: Weights, sizes: _Sizes) -> Head:
    return Head("question", (Dense(weights.linear("qa_outputs", 2, sizes.hidden)),))


def _masked(config: _Config, weights: Weights, sizes: _Sizes) -> Head:
    """Transform, then the product with the word table (tied unless a decoder is stored), plus a bias per word."""
    family = config.family()
    transform, norm, decoder, bias = family.decoder
    activation = family.decoder_activation or sizes.activation
    width = weights.get("embeddings.word_embeddings.weight", shape=(sizes.vocabulary, None)).shape[1]
    first = Dense(
        weights.linear(transform, width, sizes.hidden), activation, weights.norm(norm, width, config.epsilon())
    )
    tied = config.values.get("tie_word_embeddings", True)
    names = (f"{decoder}.weight", "embeddings.word_embeddings.weight") if tied else (f"{decoder}.weight",)
    table = weights.get(*names, shape=(sizes.vocabulary, width))
    last = Linear(table, weights.get(bias, f"{decoder}.bias", shape=(sizes.vocabulary,)))
    return Head("masked", (first, Dense(last)))


_HEADS = {"none": _bare, "sequence": _sequence, "token": _token, "question": _question, "masked": _masked}
