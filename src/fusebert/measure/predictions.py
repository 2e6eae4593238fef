"""Answering: a runner and tokenised texts -> one row of numbers per text. Which of a model's outputs that is, and
whether it classifies, rates or embeds, is found out on a first batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fusebert.engine.pooling import pool
from fusebert.engine.tokenizer import Tokens
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.measure.kinds import kind_of
from fusebert.measure.runners import Runner
from fusebert.measure.samples import Sample
from fusebert.ops.graph import Array
from fusebert.source import Source, has_tokenizer

_USUAL = 512  # tokens that a model takes about which nothing is known
_PER_TOKEN = ("last_hidden_state", "sequence_output", "token_embeddings")  # the best of several


@dataclass(frozen=True)
class Form:
    """The output to read, and what it is: "classes" (a number for each), "values" (one number) or "embeddings"; those
    are pooled if the output has a row per token."""

    output: str
    kind: str
    per_token: bool = False


def longest(runner: Runner) -> int:
    """The most tokens that a runner takes."""
    limits = [size for size in (runner.roles.longest, runner.roles.settled.get(1)) if size]
    return min(limits, default=_USUAL)


def tokenizer_folder(sources: Sequence[Source], given: str | Path | None) -> Path:
    """The folder given, or the first one in or beside a model that has a tokenizer."""
    places = [Path(given)] if given is not None else [folder for source in sources for folder in source.folders]
    found = next(filter(has_tokenizer, places), None)
    if found is not None:
        return found
    raise FusebertError(
        f"there is no tokenizer.json or vocab.txt in {', '.join(map(str, places))}; give --tokenizer FOLDER"
    )


def batches(runner: Runner, tokens: Sequence[Tokens], size: int, padding_id: int) -> Iterator[Sample]:
    """Texts in the order given, `size` in a batch, each batch padded to its longest; a runner that insists on sizes
    gets those, with the last text repeated where some are missing."""
    settled = runner.roles.settled
    size = settled.get(0, size)
    for begin in range(0, len(tokens), size):
        some = list(tokens[begin : begin + size])
        if 0 in settled:
            some += some[-1:] * (size - len(some))
        length = settled.get(1) or max(1, *(len(one.ids) for one in some))
        ids, mask, types = (np.full((len(some), length), fill, np.int64) for fill in (padding_id, 0, 0))
        for row, one in enumerate(some):
            if len(one.ids) > length:
                raise FusebertError(
                    f"{runner.name} takes {length} tokens, but a text has {len(one.ids)}; cut texts to that"
                )
            ids[row, : len(one.ids)], mask[row, : len(one.ids)] = one.ids, 1
            types[row, : len(one.ids)] = one.kinds
        yield Sample(ids, mask, types, "right")


def find_form(runner: Runner, sample: Sample) -> Form:
    """What a runner answers: classes or a value, if an output with a row per text is that; a model without one
    embeds."""
    shape = sample.ids.shape
    answers = {name: value for name, value in _run(runner, sample).items() if "float" in value.dtype.name}
    tokens = {name: value.shape[-1] for name, value in answers.items() if value.ndim == 3 and value.shape[:2] == shape}
    rows = {
        name: value.size // shape[0]
        for name, value in answers.items()
        if value.ndim in (1, 2) and value.shape[0] == shape[0]
    }
    embedded = next((name for name in rows if "embedding" in name), None)
    heads = [name for name, width in rows.items() if _is_head(runner, name, answers[name], width, tokens.values())]
    if heads:
        best = min(heads, key=lambda name: ("logit" not in name, rows[name]))
        return Form(best, "classes" if rows[best] > 1 else "values")
    if embedded is not None or (rows and not tokens):
        return Form(embedded or next(iter(rows)), "embeddings")
    if tokens:
        return Form(min(tokens, key=lambda name: name not in _PER_TOKEN), "embeddings", True)
    shapes = ", ".join(f"{name} {' x '.join(map(str, value.shape))}" for name, value in answers.items())
    raise UnsupportedError(f"{runner.name}: none of its outputs has a row per text or per token: {shapes}")


def _is_head(runner: Runner, name: str, value: Array, width: int, widths: Collection[int]) -> bool:
    """Whether an output with a row per text is of classes or a value: as the graph makes it; else if it is not as wide
    as a token's row, and not called an embedding."""
    ending = runner.endings.get(name)
    if ending is None:
        return width not in widths and "embedding" not in name
    return kind_of(name, value, width, False, ending, None).name in ("classes", "value")


def answer(
    runner: Runner,
    form: Form,
    samples: Sequence[Sample],
    count: int,
    pooling: str = "mean",
    advance: Callable[[int], None] = lambda _: None,
) -> tuple[Array, float]:
    """Rows `[count, width]`, and the seconds it took. The first batch runs twice, and is timed the second time."""
    _run(runner, samples[0])
    rows, seconds = [], 0.0
    for sample in samples:
        start = time.perf_counter()
        value = _run(runner, sample)[form.output]
        seconds += time.perf_counter() - start
        value = np.asarray(value, np.float32)
        rows.append(_pooled(value, sample.mask, pooling) if form.per_token else value.reshape(len(sample.ids), -1))
        advance(len(sample.ids))
    return np.concatenate(rows)[:count], seconds


def _pooled(rows: Array, mask: Array, pooling: str) -> Array:
    """One row per text, of the visible tokens' `[texts, tokens, width]`."""
    visible = mask != 0
    return pool(rows[visible], np.concatenate([[0], np.cumsum(visible.sum(1))]), pooling)


def _run(runner: Runner, sample: Sample) -> Mapping[str, Array]:
    return runner.run(sample.ids, sample.mask, sample.types)
