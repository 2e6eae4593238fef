"""Network: a whole BERT-family model as a value: embeddings, encoder, head. Readers make it, the engine runs it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.values.batch import as_array
from fusebert.values.blocks import Encoder, Linear, Norm
from fusebert.values.traverse import weights

HEADS = ("none", "sequence", "token", "question", "masked")
HEAD_POOLING = ("first", "mean", "each")
SCORES = ("sigmoid", "identity")
SPLADE = ("max", "sum", "max of log", "sum of log")


@dataclass(frozen=True)
class Embeddings:
    """projected_norm(project(norm(scale * (word + position + token type)))): tables `[entries, width]`, and all but the
    words may be absent.

    Positions count from 0; or, where `padding_id` is given (RoBERTa), from padding_id + 1 over all other ids. Without a
    table of positions a sequence may have `max_positions` tokens."""

    word: Array
    position: Array | None
    kind: Array | None
    norm: Norm | None
    project: Linear | None = None
    padding_id: int | None = None
    projected_norm: Norm | None = None
    scale: float = 1.0
    max_positions: int | None = None

    @property
    def longest(self) -> int:
        """The most tokens a sequence may have."""
        if self.position is None:
            return self.max_positions or 0
        return len(self.position) - (0 if self.padding_id is None else self.padding_id + 1)


@dataclass(frozen=True)
class Dense:
    """One step of a head: norm(activation(x Wᵀ + b))."""

    linear: Linear
    activation: str = "identity"
    norm: Norm | None = None


@dataclass(frozen=True)
class Head:
    """What is made of the encoder's rows, and of which: a "sequence" head reads by its `pooling` the first row of each
    sequence, the mean of its visible rows, or "each" of these, and gives the mean of the answers. "none" reads the
    first; its steps are the pooler, if there is one. The others read every row."""

    kind: str = "none"
    steps: tuple[Dense, ...] = ()
    pooling: str = "first"

    @property
    def pools(self) -> bool:
        """Whether there is an answer for each sequence, and not for each row."""
        return self.kind == "sequence" or (self.kind == "none" and bool(self.steps))

    @property
    def reads_first(self) -> bool:
        """Whether an answer depends on the first position even where the mask hides it."""
        return self.pools and self.pooling == "first"


@dataclass(frozen=True)
class Sentence:
    """How rows become the embedding of a text: pooled (names joined by "+" stand side by side), through steps, of unit
    length or not. A prompt, by name, is put before a text. `refusal` says why all that is not known. `splade` is what
    makes a text's weights of words of those of its tokens, where the folder is a sparse encoder's."""

    pooling: str = "mean"
    steps: tuple[Dense, ...] = ()
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    refusal: str = ""
    splade: str = ""


@dataclass(frozen=True)
class TokenHeads:
    """What bge-m3 makes of every token's row beside the embedding: a weight of its word, and a vector."""

    weight: Linear
    vector: Linear


@dataclass(frozen=True)
class Network:
    """`family` is the architecture's model_type; `labels` name a classifier's outputs; `problem` is "single_label",
    "multi_label" or "regression"; `sentence` is there if the model's files say how texts are embedded, `token_heads` if
    they have such heads. `scores` is what a cross-encoder's files make of its one logit, "sigmoid" or "identity"."""

    family: str
    embeddings: Embeddings
    encoder: Encoder
    head: Head
    labels: tuple[str, ...] = ()
    problem: str = "single_label"
    sentence: Sentence | None = None
    token_heads: TokenHeads | None = None
    scores: str = "sigmoid"

    @property
    def bytes(self) -> int:
        """Of all weights; one that is used in two places counts once."""
        return sum({id(array): array.nbytes for _, array in self.weights()}.values())

    def weights(self) -> Iterator[tuple[str, Array]]:
        """Every weight with the name it has in an artifact."""
        e = self.embeddings
        yield "embeddings.word", e.word
        yield from ((f"embeddings.{n}", t) for n, t in (("position", e.position), ("kind", e.kind)) if t is not None)
        yield from _named("embeddings.norm", e.norm)
        yield from _named("embeddings.project", e.project)
        yield from _named("embeddings.projected_norm", e.projected_norm)
        yield from weights(self.encoder)
        for part, steps in (("head", self.head.steps), ("sentence", self.sentence.steps if self.sentence else ())):
            for i, step in enumerate(steps):
                yield from _named(f"{part}.{i}", step.linear)
                yield from _named(f"{part}.{i}.norm", step.norm)
        if self.token_heads is not None:
            yield from _named("token_heads.weight", self.token_heads.weight)
            yield from _named("token_heads.vector", self.token_heads.vector)


def _named(name: str, part: Linear | Norm | None) -> Iterator[tuple[str, Array]]:
    if part is not None:
        yield from ((f"{name}.{field}", array) for field, array in part.arrays())


def positions(embeddings: Embeddings, input_ids: Array) -> Array:
    """The position of every token of a padded batch `[sequences, length]`."""
    if embeddings.padding_id is None:
        counted: Array = np.empty(input_ids.shape, np.int64)
        counted[:] = np.arange(input_ids.shape[1])
    else:
        real = input_ids != embeddings.padding_id
        counted = np.cumsum(real, axis=1, dtype=np.int64) * real + embeddings.padding_id
    return counted


def ragged_positions(embeddings: Embeddings, ids: Array, offsets: Array) -> Array:
    """The position of every token of sequences that stand one after the other."""
    lengths = np.diff(offsets)
    if embeddings.padding_id is None:
        places: Array = np.arange(len(ids), dtype=np.int64) - np.repeat(offsets[:-1], lengths)
    else:
        real = ids != embeddings.padding_id
        counted = np.concatenate([[0], np.cumsum(real, dtype=np.int64)])
        places = (counted[1:] - np.repeat(counted[offsets[:-1]], lengths)) * real + embeddings.padding_id
    return places


def check_ids(name: str, values: Any, shape: tuple[int, ...] | None = None) -> Array:
    """Token ids or types as int64 `[sequences, length]`."""
    array = as_array(name, values)
    if array.dtype.kind not in "iub" or array.ndim != 2:
        raise FusebertError(
            f"{name}: a two-dimensional array of integers is expected, not {array.dtype} with shape {array.shape}"
        )
    if shape is not None and array.shape != shape:
        raise FusebertError(f"{name} has shape {array.shape}, but input_ids {shape}")
    return array.astype(np.int64)
