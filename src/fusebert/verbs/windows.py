"""Windows: stretches of a data set's rows, and the worker that makes a part of each, with vectors, labels or scores.
Rows that cannot be used, because of what they are or of what the model makes of them, are named with the reason."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fusebert.engine.model import Model
from fusebert.engine.sentence import Embedder, prompted
from fusebert.engine.tokenizer import Text, Tokens
from fusebert.errors import FusebertError, UnsupportedError, unknown
from fusebert.formats.dataset import Row
from fusebert.formats.parts import Part
from fusebert.ops.graph import Array

TASKS = ("embed", "classify", "score", "tokens")
DTYPES = ("float32", "float16", "int8")
_ROWS, _CHARACTERS = 16384, 16 << 20  # of a window, which becomes a part
_TOKEN_ROWS = 512  # of a window whose answers are a vector for every token
Call = Callable[[list[Any]], Sequence[Any]]
Tell = Callable[[int, int], None]  # so many rows more were answered, of so many tokens
_CHUNK = 256  # texts that are tokenised at a time


@dataclass(frozen=True)
class Place:
    """Where windows are answered: in this process, or `on` "ray", which is one that is started here or that RAY_ADDRESS
    names, or "ray://HOST:PORT". `workers` answer side by side: here one for each NUMA node, unless given, that share
    the threads; on Ray as many as it has room for, unless given."""

    on: str | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if self.on not in (None, "ray") and not str(self.on).startswith("ray://"):
            raise FusebertError(f"on {self.on!r:.80} is unknown; use ray, or ray://HOST:PORT")

    @property
    def address(self) -> str | None:
        """Of the cluster, if one is named."""
        return self.on.removeprefix("ray://") if self.on and self.on != "ray" else None


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
    """A model that answers windows: first their texts are tokenised, which may run beside another window's answer. A
    `careful` one does it in other processes, so that a row that ends them is only a row that is rejected."""

    def __init__(self, model: Model, settings: Settings, careful: bool = False) -> None:
        if model.tokenizer is None:
            raise FusebertError("the model's folder has no tokenizer.json or vocab.txt; name one with --tokenizer")
        head = model.network.head.kind
        if settings.task in ("classify", "score") and head != "sequence":
            raise FusebertError(f"task {settings.task!r} needs a sequence classifier; the model's head is {head!r}")
        if settings.task == "score" and len(model.network.labels) > 2:
            raise FusebertError(f"task 'score' needs one output, or no and yes; there are {len(model.network.labels)}")
        self.model, self.settings, self._tokenizer = model, settings, model.tokenizer
        self._careful = careful
        self._embedder = Embedder(model.engine, model.network.sentence)

    def tokenise(self, window: Sequence[Row]) -> tuple[list[Row], list[Tokens]]:
        """The window's rows, and the tokens of those that can be used; with `strict`, too long texts cannot."""
        rows, found = list(window), []
        usable = [i for i, row in enumerate(rows) if not row.reason]
        for first in range(0, len(usable), _CHUNK):
            chunk = usable[first : first + _CHUNK]
            for i, tokens in zip(chunk, self._each(self._encode, [_text(rows[i]) for i in chunk]), strict=True):
                if isinstance(tokens, BaseException):
                    rows[i] = _rejected(rows[i], f"the tokenizer failed on it: {tokens}")
                elif tokens.cut and self.settings.strict:
                    rows[i] = _rejected(rows[i], f"the text is longer than {self._tokenizer.max_length} tokens")
                else:
                    found.append(Tokens(tokens.ids, tokens.kinds, [], [], tokens.cut))
        return rows, found

    def _encode(self, texts: list[Text]) -> list[Tokens]:
        if self.settings.task == "embed":
            texts = prompted(self.model.network.sentence, texts)
        return self._tokenizer(texts)

    def answer(self, number: int, window: Sequence[Row], tokens: list[Tokens]) -> Part:
        """The part that a window becomes. A row whose answer fails, or is not a number, is rejected alone."""
        rows, outputs = list(window), []
        waiting = [i for i, row in enumerate(rows) if not row.reason]
        for i, output in zip(waiting, self._each(self._outputs, tokens), strict=True):
            if isinstance(output, BaseException):
                rows[i] = _rejected(rows[i], f"the model failed on it: {output}")
            elif not _is_finite(output):
                rows[i] = _rejected(rows[i], "the model's answer is not a finite number")
            else:
                outputs.append(output)
        usable = [row for row in rows if not row.reason]
        kept = {name: [row.kept[name] for row in usable] for name in self.settings.keep}
        rejected = [{"row": row.number, "reason": row.reason, **row.kept} for row in rows if row.reason]
        return Part(number, len(rows), [row.number for row in usable], kept, self._columns(outputs), rejected)

    def _outputs(self, tokens: list[Tokens]) -> Sequence[Any]:
        """What the model says of each: a vector, a vector for every token, or a Label."""
        calls: dict[str, Any] = {"embed": self.model.encode, "tokens": self.model.encode_tokens}
        call = calls.get(self.settings.task, self.model.predict)
        found: Sequence[Any] = call(tokens, batch_tokens=self.settings.batch_tokens)
        return found

    def _columns(self, outputs: list[Any]) -> dict[str, Any]:
        """Outputs as columns of a part."""
        settings, network = self.settings, self.model.network
        if settings.task == "embed":
            width = self._embedder.width(network.encoder.hidden_size)
            return _vectors(np.array(outputs, np.float32).reshape(-1, width), settings.dtype)
        if settings.task == "tokens":
            kind = np.float16 if settings.dtype == "float16" else np.float32
            return {"tokens": [rows.astype(kind) for rows in outputs]}
        scores = np.array([list(label.scores.values()) for label in outputs], np.float32)
        scores = scores.reshape(len(outputs), len(network.labels))
        if settings.task == "score":
            return {"score": scores[:, -1].copy()}
        return {"label": [label.label for label in outputs], "scores": scores}

    def _each(self, call: Call, items: list[Any]) -> list[Any]:
        """What a call makes of each item, or the error that it meets there. If it meets one everywhere, it is no matter
        of items, and the error is raised."""
        found = _try(partial(apart, call) if self._careful else call, items)
        if len(items) > 1 and all(isinstance(one, BaseException) for one in found):
            raise found[0]
        return found


def apart(call: Call, items: list[Any]) -> list[Any]:
    """What a call makes of a list, in a process that is forked for it."""
    link, end = os.pipe()
    child = os.fork()
    if not child:
        try:
            with open(end, "wb") as file:  # noqa: PTH123
                try:
                    pickle.dump(list(call(items)), file)
                except Exception as error:
                    pickle.dump(FusebertError(str(error)), file)
        finally:
            os._exit(0)
    os.close(end)
    with open(link, "rb") as file:  # noqa: PTH123
        told = file.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code or not told:
        raise FusebertError(f"its process ended with {code}")
    found: list[Any] = pickle.loads(told)
    if isinstance(found, FusebertError):
        raise found
    return found


def _try(call: Call, items: list[Any]) -> list[Any]:
    try:
        return list(call(items))
    except (KeyboardInterrupt, SystemExit, UnsupportedError):
        raise
    except BaseException as error:  # a tokenizer's panic is no Exception
        if len(items) == 1:
            return [error]
    half = len(items) // 2
    return [*_try(call, items[:half]), *_try(call, items[half:])]


def _rejected(row: Row, reason: str) -> Row:
    return replace(row, texts=(), reason=reason)


def _is_finite(output: Any) -> bool:
    values = output if isinstance(output, np.ndarray) else list(output.scores.values())
    return bool(np.isfinite(values).all())


def _vectors(vectors: Array, dtype: str) -> dict[str, Array]:
    """In the type asked for; int8 keeps a vector's direction, and `scale` what gives its length back."""
    if dtype != "int8":
        return {"embedding": vectors.astype(dtype)}
    scale = np.abs(vectors).max(1, initial=1e-12) / 127
    return {"embedding": np.rint(vectors / scale[:, None]).astype(np.int8), "scale": scale.astype(np.float32)}


def _text(row: Row) -> Text:
    return row.texts[0] if len(row.texts) == 1 else (row.texts[0], row.texts[1])
