"""Embed: a model on all texts of a data set, however large -> vectors, labels or scores on disk. Rows are read in
windows; while the engine runs one, the next is read and tokenised and the last one written. Killed at any moment, the
same command goes on and gives the same bytes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine.fingerprint import fingerprint
from fusebert.engine.load import load
from fusebert.engine.model import Model
from fusebert.engine.sentence import prompted
from fusebert.engine.tokenizer import Text, Tokens
from fusebert.errors import FusebertError, unknown
from fusebert.formats import dataset
from fusebert.formats.dataset import Row
from fusebert.formats.parts import Output, Part
from fusebert.ops.graph import Array
from fusebert.progress import Advance, progress
from fusebert.report import Report

TASKS = ("embed", "classify", "score", "tokens")
DTYPES = ("float32", "float16", "int8")
_ROWS, _CHARACTERS = 16384, 16 << 20  # of a window, which becomes a part
_TOKEN_ROWS = 512  # of a window whose answers are a vector for every token
_CHUNK = 256  # texts that are tokenised at a time


@dataclass(frozen=True)
class Settings:
    """What is made of every row. `columns` is one, or two for pairs; `keep` are copied to the answers; `strict` rejects
    texts that are too long instead of cutting them."""

    columns: tuple[str, ...] = ("text",)
    keep: tuple[str, ...] = ()
    task: str = "embed"
    dtype: str = "float32"
    strict: bool = False
    batch_tokens: int = 8192

    def __post_init__(self) -> None:
        for name, value, known in (("task", self.task, TASKS), ("dtype", self.dtype, DTYPES)):
            if value not in known:
                raise unknown(name, value, known)
        if not 1 <= len(self.columns) <= 2:
            raise FusebertError(f"{len(self.columns)} columns of text are given; use one, or two for pairs")
        if reserved := {"row", "embedding", "scale", "label", "score", "scores", "tokens"} & set(self.keep):
            raise FusebertError(f"column {min(reserved)!r} cannot be kept: the answers have a column of that name")


def embed(
    model: str | Path | Model,
    data: str | Path,
    out: str | Path,
    settings: Settings = Settings(),  # noqa: B008  (frozen)
    *,
    precision: str | None = None,
    threads: int | None = None,
    tokenizer: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool = False,
) -> Report:
    """Writes a vector, label, score or token vectors for every row of `data` (a file, a folder, a glob, or `-`)."""
    output, files = Output(Path(out)), dataset.list_files(data)
    loaded = model if isinstance(model, Model) else load(model, precision, threads)
    if tokenizer is not None:
        loaded.take_tokenizer(tokenizer)
    worker = Worker(loaded, settings)
    manifest = {
        "version": 1,
        "input": [dataset.fingerprint(path) for path in files],
        "model": fingerprint(loaded),
        "options": {**vars(settings), "columns": list(settings.columns), "keep": list(settings.keep)},
    }
    with output.opened(manifest, overwrite) as ready:
        if ready is None:
            return _report(data, out, output.stored, ("All of it was done before.",), output.rejected)
        start = time.monotonic()
        rows = dataset.read_rows(files, settings.columns, settings.keep)
        with progress("embedding", dataset.count_rows(files), show_progress) as advance:
            parts, count = _run(worker, windows(rows, settings), ready, output, advance)
        done = output.finish(manifest, parts, count)
    seconds = time.monotonic() - start
    speed = {"seconds": round(seconds, 3), "tokens": worker.tokens, "tokens_per_second": round(worker.tokens / seconds)}
    notes = (f"{len(ready)} parts were there already.",) if ready else ()
    return _report(data, out, {**done, **speed}, notes, output.rejected)


def windows(rows: Iterable[Row], settings: Settings) -> Iterator[list[Row]]:
    """Rows in stretches that are a part each. Where they end depends on the rows alone."""
    most = _TOKEN_ROWS if settings.task == "tokens" else _ROWS
    window: list[Row] = []
    characters = 0
    for row in rows:
        window.append(row)
        characters += sum(map(len, row.texts))
        if len(window) >= most or characters >= _CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


class Worker:
    """A model that answers windows: first their texts are tokenised, which may run beside another window's answer."""

    def __init__(self, model: Model, settings: Settings) -> None:
        if model.tokenizer is None:
            raise FusebertError("the model's folder has no tokenizer.json or vocab.txt; name one with --tokenizer")
        head = model.network.head.kind
        if settings.task in ("classify", "score") and head != "sequence":
            raise FusebertError(f"task {settings.task!r} needs a sequence classifier; the model's head is {head!r}")
        if settings.task == "score" and len(model.network.labels) > 2:
            raise FusebertError(f"task 'score' needs one output, or no and yes; there are {len(model.network.labels)}")
        self.model, self.settings, self._tokenizer, self.tokens = model, settings, model.tokenizer, 0

    def tokenise(self, window: Sequence[Row]) -> tuple[list[Row], list[Tokens]]:
        """The window's rows, and the tokens of those that can be used; with `strict`, too long texts cannot."""
        rows, found = list(window), []
        usable = [i for i, row in enumerate(rows) if not row.reason]
        for first in range(0, len(usable), _CHUNK):
            chunk = usable[first : first + _CHUNK]
            texts: list[Text] = [_text(rows[i]) for i in chunk]
            if self.settings.task == "embed":
                texts = prompted(self.model.network.sentence, texts)
            for i, tokens in zip(chunk, self._tokenizer(texts), strict=True):
                if tokens.cut and self.settings.strict:
                    longest = self._tokenizer.max_length
                    rows[i] = replace(rows[i], texts=(), reason=f"the text is longer than {longest} tokens")
                else:
                    found.append(Tokens(tokens.ids, tokens.kinds, [], [], tokens.cut))
        return rows, found

    def answer(self, number: int, rows: Sequence[Row], tokens: list[Tokens]) -> Part:
        """The part that a window becomes."""
        usable = [row for row in rows if not row.reason]
        self.tokens += sum(len(one.ids) for one in tokens)
        kept = {name: [row.kept[name] for row in usable] for name in self.settings.keep}
        rejected = [{"row": row.number, "reason": row.reason, **row.kept} for row in rows if row.reason]
        return Part(number, len(rows), [row.number for row in usable], kept, self._answers(tokens), rejected)

    def _answers(self, tokens: list[Tokens]) -> dict[str, Any]:
        settings, budget = self.settings, self.settings.batch_tokens
        if settings.task == "embed":
            return _vectors(self.model.encode(tokens, batch_tokens=budget), settings.dtype)
        if settings.task == "tokens":
            found = self.model.encode_tokens(tokens, batch_tokens=budget)
            kind = np.float16 if settings.dtype == "float16" else np.float32
            return {"tokens": [rows.astype(kind) for rows in found]}
        labels = self.model.predict(tokens, batch_tokens=budget)
        scores = np.array([list(label.scores.values()) for label in labels], np.float32)
        scores = scores.reshape(len(labels), len(self.model.network.labels))
        if settings.task == "score":
            return {"score": scores[:, -1].copy()}
        return {"label": [label.label for label in labels], "scores": scores}


def _vectors(vectors: Array, dtype: str) -> dict[str, Array]:
    """In the type asked for; int8 keeps a vector's direction, and `scale` what gives its length back."""
    if dtype != "int8":
        return {"embedding": vectors.astype(dtype)}
    scale = np.abs(vectors).max(1, initial=1e-12) / 127
    return {"embedding": np.rint(vectors / scale[:, None]).astype(np.int8), "scale": scale.astype(np.float32)}


def _text(row: Row) -> Text:
    return row.texts[0] if len(row.texts) == 1 else (row.texts[0], row.texts[1])


def _run(
    worker: Worker, found: Iterator[list[Row]], ready: set[int], output: Output, advance: Advance
) -> tuple[int, int]:
    """Reads and tokenises, answers and writes, each beside the others; how many parts and rows there are."""
    count = parts = 0
    writing: Future[None] | None = None
    start = time.monotonic()
    with ThreadPoolExecutor(1) as reader, ThreadPoolExecutor(1) as writer:

        def prepare(number: int) -> tuple[int, list[Row], list[Tokens] | None] | None:
            window = next(found, None)
            if window is None:
                return None
            if number in ready:
                return len(window), [], None
            return len(window), *worker.tokenise(window)

        following = reader.submit(prepare, 0)
        while (prepared := following.result()) is not None:
            rows, window, tokens = prepared
            following = reader.submit(prepare, parts + 1)
            if tokens is not None:
                part = worker.answer(parts, window, tokens)
                if writing:
                    writing.result()
                writing = writer.submit(output.add, part)
            parts, count = parts + 1, count + rows
            advance(rows, f"{count:,} rows, {worker.tokens / (time.monotonic() - start):,.0f} tokens/s")
        if writing:
            writing.result()
    return parts, count


def _report(data: Any, out: Any, done: Mapping[str, Any], notes: tuple[str, ...], rejected: Path) -> Report:
    names = ("rows", "rejected", "parts", "seconds", "tokens", "tokens_per_second", "model")
    if done["rejected"]:
        notes += (f"{done['rejected']} rows were not usable; {rejected} tells which, and why.",)
    return Report(f"{data} -> {out}", {name: done[name] for name in names if name in done}, notes=notes)
