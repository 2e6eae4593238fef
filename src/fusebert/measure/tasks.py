"""Tasks: files of labelled texts (MRPC, SST-2, STS-B, or your own) -> texts and what people said of them.

docs/calibration.md describes the forms. Which one a file has is told by its header, the task's name, or its lines."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fusebert.engine.tokenizer import Text
from fusebert.errors import FusebertError, unknown, unreadable
from fusebert.formats.table import hint, is_csv, read_cells
from fusebert.measure.sentences import PAIRS, SENTENCES
from fusebert.ops.graph import Array
from fusebert.values import limits

NAMES = ("mrpc", "sst2", "stsb")
_HEADERS = {
    "text": ("text", "text1", "sentence", "sentence1", "#1 string"),
    "text2": ("text2", "sentence2", "#2 string"),
    "label": ("label", "quality", "score"),
}
_LABELLED_LINE = re.compile(r"[01] \S")


@dataclass(frozen=True)
class Task:
    """Texts or pairs, each with a label: the name or number of a class, or a value. `kind` is "classes" or "values" if
    that is settled, else empty: whole numbers can be either."""

    name: str
    texts: tuple[Text, ...]
    labels: tuple[str, ...]
    kind: str = ""

    @property
    def pairs(self) -> bool:
        """Whether all texts are pairs."""
        return all(isinstance(text, tuple) for text in self.texts)

    @property
    def values(self) -> Array:
        """The labels as numbers."""
        return np.array([float(label) for label in self.labels])

    def spread(self, samples: int | None) -> Task:
        """The task with so many samples, taken evenly from the whole file."""
        if samples is None or samples >= len(self.texts):
            return self
        if samples < 1:
            raise FusebertError(f"samples must be at least 1, not {samples}")
        chosen = [i * len(self.texts) // samples for i in range(samples)]
        return replace(self, texts=tuple(self.texts[i] for i in chosen), labels=tuple(self.labels[i] for i in chosen))


def find_task(task: str | Path | None, data: str | Path | None) -> Task:
    """The task that a user names: one of NAMES with its file, or a file alone; built-in pairs, if nothing is named."""
    if task is None and data is None:
        first, second, rated = zip(*PAIRS, strict=True)
        return Task("built-in pairs", tuple(zip(first, second, strict=True)), tuple(map(str, rated)), "values")
    if task is not None and str(task) not in NAMES:
        is_name = not Path(task).suffix and not Path(task).exists()
        if is_name or (data is not None and Path(data) != Path(task)):
            raise unknown("task", str(task), (*NAMES, "a file of your own (then omit the data)"))
        return read_task(Path(task))
    if data is None:
        raise FusebertError(f"the file with the texts of {task} is missing; give --data FILE")
    return read_task(Path(data), None if task is None else str(task))


def read_task(path: Path, name: str | None = None) -> Task:
    """The labelled texts of a file; `name` is one of NAMES, or found out."""
    rows = _rows(path)
    columns = _columns(rows[0][1])
    name = name or _recognised(rows)
    if columns is not None:
        rows = rows[1:]
    elif name == "stsb":
        columns = {"label": 4, "text": 5, "text2": 6}
    elif name == "sst2":
        rows, columns = [(number, row[0].split(" ", 1)) for number, row in rows], {"label": 0, "text": 1}
    else:
        columns = {"text": 0, "label": 1} if len(rows[0][1]) == 2 else {"text": 0, "text2": 1, "label": 2}
    least = max(columns.values()) + 1
    for number, row in rows:
        if len(row) < least:
            told = f"{path}, line {number}: {len(row)} columns, but there must be {least}"
            raise FusebertError(f"{told}{hint(path, row)}")
    if not rows:
        raise FusebertError(f"{path} has no texts")
    labels = tuple(row[columns["label"]].strip() for _, row in rows)
    return Task(name or path.name, _texts([row for _, row in rows], columns), labels, _kind(path, name, labels))


def built_in_texts() -> Task:
    """Texts for models to be compared on where the user gives none."""
    return Task("built-in texts", SENTENCES, ("",) * len(SENTENCES))


def read_texts(path: Path) -> Task:
    """The texts of a labelled file, or of one with a text on every line; labels are empty there."""
    rows = _rows(path)
    header = [name.strip().lower() for name in rows[0][1]]
    if len(header) > 1 or _recognised(rows) is not None:
        return read_task(path)
    if is_csv(path) and header[0] in _HEADERS["text"]:
        rows = rows[1:]
    texts = tuple(row[0] for _, row in rows)
    return Task(path.name, texts, ("",) * len(texts))


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Columns of each line that is not empty, with the line's number."""
    try:
        if path.stat().st_size > limits.TABLE_BYTES:
            raise FusebertError(f"{path} is larger than {limits.TABLE_BYTES >> 20} MB; give a part of it")
        content = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise FusebertError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    rows = [row for row in read_cells(path, io.StringIO(content, newline="")) if any(map(str.strip, row[1]))]
    if not rows:
        raise FusebertError(f"{path} has no texts")
    return rows


def _columns(header: Sequence[str]) -> dict[str, int] | None:
    """The places of text, second text and label, if this is a header."""
    names = [name.strip().lower() for name in header]
    found = {column: names.index(name) for column, known in _HEADERS.items() for name in known[::-1] if name in names}
    return found if "text" in found and "label" in found else None


def _recognised(rows: Sequence[tuple[int, Sequence[str]]]) -> str | None:
    """Which of the three a file is, by its header or its lines."""
    header, some = [name.strip().lower() for name in rows[0][1]], [row for _, row in rows[:20]]
    if "#1 string" in header:
        return "mrpc"
    if all(len(row) >= 7 and _is_number(row[4]) for row in some):
        return "stsb"
    if all(len(row) == 1 and _LABELLED_LINE.match(row[0]) for row in some):
        return "sst2"
    return None


def _texts(rows: Sequence[Sequence[str]], columns: dict[str, int]) -> tuple[Text, ...]:
    if "text2" not in columns:
        return tuple(row[columns["text"]] for row in rows)
    return tuple((row[columns["text"]], row[columns["text2"]]) for row in rows)


def _kind(path: Path, name: str | None, labels: Sequence[str]) -> str:
    numbers = all(map(_is_number, labels))
    if name == "stsb" and not numbers:
        raise FusebertError(f"{path}: every score must be a number")
    if name in NAMES:
        return "values" if name == "stsb" else "classes"
    if not numbers:
        return "classes"
    return "" if all(float(label).is_integer() for label in labels) else "values"


def _is_number(word: str) -> bool:
    try:
        return bool(np.isfinite(float(word)))
    except ValueError:
        return False
