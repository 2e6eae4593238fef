"""A head's logits -> what a person asked for: labels, entities, answers, words. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.engine.tokenizer import Text, Tokenizer, Tokens
from fusebert.ops.graph import Array
from fusebert.values.network import Network

_LONGEST_ANSWER = 64  # tokens


@dataclass(frozen=True)
class Label:
    """A text's label and its score; `scores` holds every label's. For a regression `score` is the value itself."""

    label: str
    score: float
    scores: dict[str, float]


@dataclass(frozen=True)
class Span:
    """A piece of text, characters `start` to `end`, with a label (empty for an answer) and a score."""

    text: str
    start: int
    end: int
    label: str
    score: float


def softmax(x: Array) -> Array:
    """Along the last axis, in double precision."""
    e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    y: Array = e / e.sum(-1, keepdims=True)
    return y


def label(network: Network, logits: Array) -> Label:
    """Of one text's logits `[labels]`."""
    if network.problem == "regression":
        values = logits.astype(np.float64)
    elif network.problem == "multi_label":
        values = 1 / (1 + np.exp(-logits.astype(np.float64)))
    else:
        values = softmax(logits)
    best = int(np.argmax(values))
    return Label(network.labels[best], float(values[best]), dict(zip(network.labels, map(float, values), strict=True)))


def entities(network: Network, text: Text, tokens: Tokens, logits: Array) -> list[Span]:
    """A label for every token of the text that comes from the text itself; logits are `[tokens, labels]`."""
    shares = softmax(logits)
    found = []
    for i, source in enumerate(tokens.sources):
        if source is not None:
            best = int(np.argmax(shares[i]))
            found.append(_span(text, tokens, i, i, network.labels[best], float(shares[i, best])))
    return found


def answer(text: Text, tokens: Tokens, logits: Array) -> Span:
    """The likeliest stretch of the second text (or the only one); logits are `[tokens, 2]` for start and end."""
    wanted = 1 if 1 in tokens.sources else 0
    places = [i for i, source in enumerate(tokens.sources) if source == wanted]
    if not places:
        return Span("", 0, 0, "", 0.0)
    first, last = places[0], places[-1] + 1
    begin, end, scores = likeliest(softmax(logits[:, 0])[first:last], softmax(logits[:, 1])[first:last])
    return _span(text, tokens, first + begin, first + end, "", float(scores[begin, end]))


def likeliest(starts: Array, ends: Array) -> tuple[int, int, Array]:
    """Where the likeliest answer begins and ends, given the probabilities of both; and the scores `[starts, ends]`."""
    scores = np.triu(np.outer(starts, ends)) - np.triu(np.outer(starts, ends), _LONGEST_ANSWER)
    begin, end = np.unravel_index(int(np.argmax(scores)), scores.shape)
    return int(begin), int(end), scores


def fills(tokenizer: Tokenizer, tokens: Tokens, logits: Array, count: int = 5) -> list[list[tuple[str, float]]]:
    """For every mask token, the likeliest words and their scores; logits are `[tokens, vocabulary]`."""
    mask = tokenizer.mask_id()
    found = []
    for i, token in enumerate(tokens.ids):
        if token == mask:
            shares = softmax(logits[i])
            best = np.argsort(-shares)[:count]
            found.append([(tokenizer.decode([int(word)]).strip(), float(shares[word])) for word in best])
    return found


def _span(text: Text, tokens: Tokens, first: int, last: int, name: str, score: float) -> Span:
    source: Any = text if isinstance(text, str) else text[tokens.sources[first] or 0]
    start, end = tokens.spans[first][0], tokens.spans[last][1]
    return Span(source[start:end], start, end, name, score)
