"""Accuracy: what a precision costs on a real task. Models and labelled texts in; for the stock model and each precision
on the same batches the task's score, the difference to stock, flipped decisions and seconds out."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine.native import isa
from fusebert.engine.pooling import check_pooling
from fusebert.engine.tokenizer import Text, Tokenizer, Tokens
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats import write
from fusebert.formats.hub import packaged_model
from fusebert.measure.difference import Difference, difference
from fusebert.measure.inputs import Told, UnknownInputError
from fusebert.measure.predictions import Form, answer, batches, find_form, longest, tokenizer_folder
from fusebert.measure.runners import Runner, open_runner, open_told
from fusebert.measure.tasks import Task, find_task
from fusebert.ops.graph import Array
from fusebert.progress import progress
from fusebert.report import Report, Table
from fusebert.source import Artifact, GraphSource, Source, open
from fusebert.values.precision import PRECISIONS
from fusebert.values.precision import precision as named_precision

BATCH_SIZE = 32
_SETTINGS = ("task", "samples", "batch_size", "isa")  # the last columns of the CSV file
_LONGEST_LINE = 1 << 12
_ONE_TO_TRY = ["No model was given: this is the packaged one, all-MiniLM-L6-v2."]
_PAIRS_TO_TRY = ["No texts were given: these are built-in pairs, to try it, not to judge by; see --task and --data."]


@dataclass(frozen=True)
class Scored:
    """One engine's results. `scores` are in points: accuracy and F1, or Spearman's correlation; `rows` are its answers
    `[texts, width]`, `decisions` the classes they mean, if any."""

    engine: str
    scores: Mapping[str, float]
    difference: Difference
    flips: int | None
    seconds: float
    rows: Array
    decisions: Array | None


@dataclass(frozen=True)
class Settings:
    """How models are scored, as `accuracy` takes it."""

    precisions: Sequence[str] | None = None
    batch_size: int = BATCH_SIZE
    threads: int | None = None
    tokenizer: str | Path | None = None
    max_length: int | None = None
    pooling: str = "mean"
    inputs: Told | None = None
    in_torch: bool = False

    def __post_init__(self) -> None:
        check_pooling(self.pooling)
        if self.batch_size < 1:
            raise FusebertError(f"batch_size must be at least 1, not {self.batch_size}")
        for name in self.precisions or ():
            named_precision(name)


def accuracy(
    models: Sequence[str | Path] = (),
    task: str | Path | None = None,
    data: str | Path | None = None,
    samples: int | None = None,
    csv_file: str | Path | None = None,
    overwrite: bool = False,
    show_progress: bool = False,
    **settings: Any,
) -> Report:
    """Scores each model by its own framework and, in each precision, by fusebert; the first is what the others are
    compared with. Without models the packaged one is scored, and without texts on built-in pairs, to try it.

    task, data: "mrpc", "sst2" or "stsb" and its file, or a file of your own. samples: all, or so many, taken evenly.
    precisions: all four for a single model, none for several, unless given.
    tokenizer: a folder, where none is beside the models. max_length: tokens that texts are cut to; else what the first
    model takes. pooling: mean, cls or max, of a model without a head. inputs: their names by role, as in compare.
    in_torch: checkpoints stay in torch, where fusebert runs their encoder, instead of running whole by fusebert."""
    wanted = Settings(**settings)
    if csv_file is not None:
        write.check(Path(csv_file), _is_csv if overwrite else None)
    sources = [open(path) for path in dict.fromkeys(map(str, models or [packaged_model()]))]
    chosen = find_task(task, data).spread(samples)
    engines = _Engines(sources, wanted)
    engines.notes += _ONE_TO_TRY[: not models] + _PAIRS_TO_TRY[: task is data is None]
    exam = _Exam(chosen, sources, wanted)
    with progress("scoring", len(chosen.texts) * engines.most, show_progress) as advance:
        for source, runner in engines:
            with closing(runner):
                engines.notes += [note for note in runner.notes if note not in engines.notes]
                exam.take(source, runner, advance)
    if not exam.results:
        raise FusebertError(" ".join(["nothing could be run.", *engines.notes]))
    facts = exam.facts | {"batch_size": wanted.batch_size, "isa": isa(), "baseline": exam.results[0].engine}
    if csv_file is not None:
        with write.file(Path(csv_file), _is_csv if overwrite else None) as file:
            file.write(_csv(exam.results, facts).encode())
    names = ", ".join(str(source.path) for source in sources)
    return Report(f"{chosen.name}: {names}", facts, _tables(exam.results), tuple(engines.notes))


class _Engines:
    """Runners to be scored, opened one after the other; `notes` say which were left out, and why."""

    def __init__(self, sources: Sequence[Source], wanted: Settings) -> None:
        self._sources, self._wanted = sources, wanted
        everything = PRECISIONS if len(sources) == 1 else ()
        self._precisions = list(everything if wanted.precisions is None else dict.fromkeys(wanted.precisions))
        self.most = len(sources) * (1 + len(self._precisions))
        self.notes: list[str] = []

    def __iter__(self) -> Iterator[tuple[Source, Runner]]:
        unknown: list[UnknownInputError] = []
        count = sum(isinstance(source, GraphSource) for source in self._sources)
        for source in self._sources:
            precisions = self._precisions
            try:
                runner = open_told(source, self._wanted.inputs, unknown, count, threads=self._wanted.threads)
            except FusebertError as error:
                if not isinstance(error.__cause__, ImportError):
                    raise
                self.notes.append(f"The stock model cannot run: {error}. fusebert's fp32 stands in for it.")
                precisions = ["fp32", *(name for name in precisions if name != "fp32")]
            else:
                yield source, runner
            if not isinstance(source, Artifact):
                yield from ((source, runner) for runner in self._ours(source, precisions))

    def _ours(self, source: Source, precisions: Sequence[str]) -> Iterator[Runner]:
        for precision in precisions:
            try:
                runner = open_runner(source, precision, self._wanted.threads, in_torch=self._wanted.in_torch)
            except UnsupportedError as error:
                self.notes.append(f"fusebert cannot run it by itself: {error}.")
                return
            yield runner


class _Exam:
    """The same texts for everyone, tokenised once; `results` grow with every runner that takes it."""

    def __init__(self, task: Task, sources: Sequence[Source], wanted: Settings) -> None:
        self._task, self._wanted = task, wanted
        self._paths = [source.path for source in sources]
        self._folder = tokenizer_folder(sources, wanted.tokenizer)
        self._tokens: list[Tokens] | None = None  # of whole texts, or of first and then second parts
        self._kind = ""
        self._labels: Any = None
        self.facts: dict[str, Any] = {}
        self.results: list[Scored] = []

    def take(self, source: Source, runner: Runner, advance: Callable[[int], None]) -> None:
        """Scores one runner."""
        if self._tokens is None:
            self._begin(source, runner)
        assert self._tokens is not None
        given = list(batches(runner, self._tokens, self._wanted.batch_size, self._padding_id(runner)))
        form = find_form(runner, given[0])
        if form.kind != self._kind:
            raise FusebertError(f"{runner.name} answers with {form.kind}, but the first model with {self._kind}")
        parts = len(self._tokens) // len(self._task.texts)
        rows, seconds = answer(
            runner, form, given, len(self._tokens), self._wanted.pooling, lambda done: advance(done // parts)
        )
        self.results.append(self._score(self._short_name(source.path, runner), rows, seconds))

    def _short_name(self, path: Path, runner: Runner) -> str:
        """As short as tells it from the others."""
        how = runner.name.removeprefix(f"{path} by ")
        if len(self._paths) == 1:
            return how
        alone = [one.name for one in self._paths].count(path.name) == 1
        return f"{path.name if alone else path} by {how}"

    def _begin(self, source: Source, runner: Runner) -> None:
        """Tokenises for the first runner, whose head decides what is asked."""
        task, limit = self._task, longest(runner)
        most = None if self._wanted.max_length is None else min(self._wanted.max_length, limit)
        tokenizer = Tokenizer.read(self._folder, limit, most)
        assert tokenizer is not None  # the folder was chosen for it
        self._tokenizer = tokenizer
        form = find_form(runner, next(batches(runner, tokenizer(task.texts[:1]), 1, self._padding_id(runner))))
        self._kind = form.kind
        _require(task, form, runner)
        texts: list[Text] = list(task.texts)
        if form.kind == "embeddings":
            texts = [str(text[side]) for side in (0, 1) for text in task.texts]
        self._tokens = tokenizer(texts)
        self._labels = _classes(task, source) if form.kind == "classes" else task.values
        count = sum(len(one.ids) for one in self._tokens)
        self.facts = {
            "task": task.name, "samples": len(task.texts), "tokens": count,
            "tokens_of_a_text": round(count / len(texts), 1), "answers": form.kind,
        }  # fmt: skip

    def _padding_id(self, runner: Runner) -> int:
        """What the model, or else the tokenizer, takes for padding."""
        known = runner.roles.hiding_id, runner.roles.padding_id, self._tokenizer.padding_id()
        return next((number for number in known if number is not None), 0)

    def _score(self, name: str, rows: Array, seconds: float) -> Scored:
        stock = self.results[0] if self.results else None
        baseline = rows if stock is None else stock.rows
        if baseline.shape != rows.shape:
            raise FusebertError(f"{name} answers {rows.shape[1]} numbers, but the first model {baseline.shape[1]}")
        decisions = rows.argmax(1) if self._kind == "classes" else None
        flips = None
        if decisions is not None:
            if (most := int(self._labels.max(initial=0))) >= rows.shape[1]:
                raise FusebertError(f"{name} knows {rows.shape[1]} classes, but there is a label {most}")
            scores = class_scores(decisions, self._labels, f1=rows.shape[1] == 2 and self._task.name != "sst2")
            flips = 0 if stock is None else int((decisions != stock.decisions).sum())
        else:
            predicted = _similarity(rows) if self._kind == "embeddings" else rows[:, 0]
            scores = {"spearman": round(100 * spearman(predicted, self._labels), 2), "total": len(self._labels)}
        return Scored(name, scores, difference("answers", baseline, rows), flips, seconds, rows, decisions)


def class_scores(decisions: Array, wanted: Array, f1: bool) -> dict[str, float]:
    """Correct answers and their share in points, and the F1 of class 1, if there are two."""
    right = int((decisions == wanted).sum())
    scores: dict[str, float] = {"correct": right, "total": len(wanted), "accuracy": round(100 * right / len(wanted), 2)}
    if f1:
        both, either = int((decisions * wanted).sum()), int(decisions.sum() + wanted.sum())
        scores["f1"] = round(200 * both / either, 2) if either else 0.0
    return scores


def spearman(predicted: Array, wanted: Array) -> float:
    """The correlation of ranks; 0 where one side is all the same."""
    a, b = (_ranks(values) for values in (predicted, wanted))
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else 0.0


def _ranks(values: Array) -> Array:
    """Ranks with ties averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    averaged: Array = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return averaged


def _similarity(rows: Array) -> Array:
    """The cosine of each first text and its second."""
    first, second = (
        part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-12) for part in np.split(rows, 2)
    )
    cosines: Array = (first.astype(np.float64) * second).sum(1)
    return cosines


def _require(task: Task, form: Form, runner: Runner) -> None:
    wrong = f"{runner.name} answers with {form.kind} ({form.output})"
    if task.kind == "classes" and form.kind != "classes":
        raise FusebertError(f"{wrong}, but {task.name} needs a classifier")
    if task.kind == "values" and form.kind == "classes":
        raise FusebertError(
            f"{wrong}, but {task.name} has values to be ranked: a regression or an embedding model does"
        )
    if form.kind == "embeddings" and not task.pairs:
        raise FusebertError(f"{wrong}, which need pairs of texts to be scored; {task.name} has single ones")


def _classes(task: Task, source: Source) -> Array:
    """The labels as numbers of classes; words are looked up in the model's own."""
    try:
        return np.array([int(label) for label in task.labels])
    except ValueError:
        names = source.labels
    unknown = next((label for label in task.labels if label not in names), None)
    if unknown is not None:
        known = f"the model's are {', '.join(names)}" if names else f"no config.json by {source.path} names any"
        raise FusebertError(
            f"{task.name}: label {unknown!r:.40} is unknown: {known}; use numbers, or the model's names"
        )
    return np.array([names.index(label) for label in task.labels])


def _tables(results: Sequence[Scored]) -> tuple[Table, Table]:
    """Scores, and differences to the first engine, which is the stock model."""
    names = tuple(results[0].scores)
    scores = tuple((r.engine, *r.scores.values(), round(r.seconds, 2)) for r in results)
    differences = tuple(
        (r.engine, _short(r.difference.worst), _short(r.difference.mean), round(r.difference.mean_cosine, 6),
         round(r.difference.worst_cosine, 6), *(() if r.flips is None else (r.flips,)))
        for r in results
    )  # fmt: skip
    columns = ("engine", "max", "mean", "cosine", "worst_cosine", *(() if results[0].flips is None else ("flips",)))
    return Table("scores", ("engine", *names, "seconds"), scores), Table("difference_to_stock", columns, differences)


def _csv(results: Sequence[Scored], facts: Mapping[str, Any]) -> str:
    scores, differences = _tables(results)
    settings = {name: facts[name] for name in _SETTINGS}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*scores.columns, *differences.columns[1:], *settings])
    for row, other in zip(scores.rows, differences.rows, strict=True):
        writer.writerow([*row, *other[1:], *settings.values()])
    return text.getvalue()


def _is_csv(path: Path) -> bool:
    """Whether there is a file that _csv made."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.readline(_LONGEST_LINE).rstrip("\n").endswith(",".join(_SETTINGS))
    except (OSError, UnicodeDecodeError):
        return False


def _short(value: float) -> float | str:
    """Three digits; JSON has no infinity."""
    return float(f"{value:.3g}") if np.isfinite(value) else "inf"
