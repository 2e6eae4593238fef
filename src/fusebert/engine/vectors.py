"""What one pass over a text gives beside an embedding: words by weight (SPLADE), means of its chunks, relevance.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fusebert.engine.tokenizer import Tokens
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array


@dataclass(frozen=True)
class Sparse:
    """A text as weights of words of the vocabulary: those above zero, by rising id."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]


def sparse(logits: Array, splade: str = "max") -> Sparse:
    """Of one text's masked-LM logits `[tokens, vocabulary]`: log(1 + those above zero), of which each word has the
    largest or the sum; `of log`: log(1 + that log) of each first."""
    if not len(logits):
        return Sparse(np.empty(0, np.int64), np.empty(0, np.float32))
    if splade.startswith("max"):  # logarithms keep the order
        logits = logits.max(0, keepdims=True)
    weights = np.log1p(np.maximum(logits, 0))
    words = (np.log1p(weights) if splade.endswith("log") else weights).sum(0, dtype=np.float32)
    ids = np.flatnonzero(words > 0)
    return Sparse(ids, words[ids])


def own_words(tokens: Tokens, weights: Array, unknown: int | None) -> Sparse:
    """The words of a text by the weights of its tokens: the largest of each, special tokens left out."""
    left_out = {unknown, *(i for i, source in zip(tokens.ids, tokens.sources, strict=True) if source is None)}
    found: dict[int, float] = {}
    for word, weight in zip(tokens.ids, weights, strict=True):
        if word not in left_out and weight > found.get(word, 0.0):
            found[word] = float(weight)
    ids = sorted(found)
    return Sparse(np.array(ids, np.int64), np.array([found[i] for i in ids], np.float32))


def unit_rows(rows: Array) -> Array:
    """Rows of unit length."""
    scaled: Array = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return scaled


def chunk_means(rows: Array, tokens: Tokens, chunks: Sequence[tuple[int, int]], normalize: bool) -> Array:
    """The mean of the rows of each chunk's tokens, `[chunks, hidden]`; a chunk is characters from first to before last,
    and has the tokens that begin in it."""
    begins = np.array([span[0] if own == 0 else -1 for span, own in zip(tokens.spans, tokens.sources, strict=True)])
    means = np.zeros((len(chunks), rows.shape[1]), np.float32)
    for mean, (first, last) in zip(means, chunks, strict=True):
        inside = (begins >= first) & (begins < last)
        if not inside.any():
            why = f"; the text is cut after {len(tokens.ids)} tokens" if tokens.cut else ""
            raise FusebertError(f"chunks: no token begins in characters {first} to {last}{why}")
        mean[:] = rows[inside].mean(0)
    return unit_rows(means) if normalize else means


def relevance(logits: Array, raw: bool = False) -> Array:
    """How relevant each text is to its query, from 0 to 1, by logits `[pairs, outputs]` with one output, or with two of
    which the second says yes; `raw`: that output itself."""
    if logits.shape[1] not in (1, 2):
        raise FusebertError(f"the model has {logits.shape[1]} labels; scoring needs one output, or no and yes")
    logits = logits.astype(np.float64)
    yes: Array = logits[:, -1]
    return yes if raw else 1 / (1 + np.exp(logits[:, 0] - yes if logits.shape[1] == 2 else -yes))
