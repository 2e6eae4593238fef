"""Compare: two models on the same made-up inputs. Paths or Models in, differences and a verdict out: how far apart are
their answers, and is that within tolerance?

Answers at positions that the mask hides are judged apart. They count where both models compute
them; where one leaves zeros there, readers ignore them, or somebody asked for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fusebert import source
from fusebert.engine.model import Model
from fusebert.errors import FusebertError
from fusebert.formats import write
from fusebert.formats.onnx.tensor import encode
from fusebert.measure.comparison import Comparison, short
from fusebert.measure.difference import Difference, Tolerance
from fusebert.measure.inputs import Told, UnknownInputError
from fusebert.measure.pairing import Judge, Questions, Sizes
from fusebert.measure.predictions import tokenizer_folder
from fusebert.measure.rounding import NEARER, POLICY, Rounding, is_rounded, truth_of
from fusebert.measure.runners import Fusebert, Runner, open_told
from fusebert.measure.spread import spread
from fusebert.measure.tasks import Task, find_task
from fusebert.measure.texts import Texts
from fusebert.ops.graph import Array
from fusebert.progress import progress
from fusebert.source import GraphSource, Source
from fusebert.values.precision import PRECISIONS

Opened = Model | Runner | Source
Compared = Opened | str | Path
_OWN = (
    "TensorFlow's own optimisations change its answers by up to {}; the other model differs from the unoptimised graph "
    "by up to {}."
)
_ALLOWED = "Padding positions differ; they are ignored."
_MOST_TRUTHS = 8  # samples; the truth is slow
_NOT_COUNTED = "; hidden positions, which do not count, differ"


@dataclass(frozen=True)
class Settings:
    """What is compared, as `compare` takes it."""

    batch_size: int | None = None
    sequence_length: int | None = None
    samples: int | None = None
    rtol: float | None = None
    atol: float | None = None
    seed: int = 3
    precision: str | None = None
    inputs: Told | None = None
    threads: int | None = None
    output_dir: str | Path | None = None
    task: str | Path | Task | None = None
    data: str | Path | None = None
    tokenizer: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "sequence_length", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise FusebertError(f"{name} must be at least 1, not {value}")

    @property
    def sizes(self) -> Sizes:
        """Sizes and number of the samples."""
        return Sizes(self.batch_size, self.sequence_length, self.samples)


def compare(baseline: Compared, other: Compared, show_progress: bool = False, **settings: Any) -> Comparison:
    """Runs both models on random ids with every kind of padding that the baseline honours, or on the texts of a task,
    and compares the answers.

    A Model is run as it is; a path by its framework: an ONNX file, a SavedModel, a frozen graph, a checkpoint or an
    artifact. Where TensorFlow is missing, fusebert computes its graphs. `precision` makes fusebert run the other one.
    A framework that rewrites graphs may change answers by it, as TensorFlow does on some processors: models that
    differ are judged by their graphs as they are written, and the notes tell both distances. Where the baseline rounds
    to 8 bits, `rounding` tells how near both are to the same graph without rounding, and nearer is good enough.
    batch_size, sequence_length, samples: 1, 128 and 100 once one of them is given; else a few batches of many sizes.
    rtol, atol: 1e-3 and 1e-4 if one is given or both models compute in fp32; else the precision has tolerances.
    inputs: names of the inputs by role (ids, mask, types), for a model that has them; else they are found. And numbers
    by name, for inputs that are neither.
    task, data, tokenizer: texts as `accuracy` takes them; `samples` of them (or all), cut to `sequence_length` tokens.
    output_dir: a folder for what went into and came out of the baseline, as ONNX tools keep it."""
    wanted = Settings(**settings)
    models = [source.open(one) if isinstance(one, str | Path) else one for one in (baseline, other)]
    opened = _open(models, wanted)
    with opened[0] as first, opened[1] as second:
        tolerance = _tolerance(wanted.rtol, wanted.atol, first, second)
        questions = _questions(models, first, second, wanted)
        judge = _judge(first, second, tolerance, questions, show_progress, wanted.output_dir)
        own: list[Difference] = []
        if judge.faults:
            plain = [one.as_written() or one for one in (first, second)]
            for one, rewritten in zip(plain, (first, second), strict=True):
                if one is not rewritten:
                    own += _judge(one, rewritten, tolerance, questions, show_progress).visible
            judge = _judge(plain[0], plain[1], tolerance, questions, show_progress) if own else judge
        rounding = None
        if tolerance.precision is not None and is_rounded(models[0]):
            try:
                rounding = _rounding(models, first, second, tolerance, wanted)
            except FusebertError as error:
                questions.notes.append(f"{POLICY} That truth is not known here: {error}.")
        return _conclude(first, second, tolerance, questions, judge, own, rounding)


def _rounding(
    models: Sequence[Opened], first: Runner, second: Runner, tolerance: Tolerance, wanted: Settings
) -> Rounding:
    """An 8-bit graph and the other model against the graph without rounding, on a few samples."""
    assert isinstance(models[0], GraphSource)
    truth = truth_of(models[0], first)
    questions = _questions(models, truth, second, wanted)
    pairs = (truth, first), (truth, second), (first, second)
    judges = [Judge(one, other, tolerance, questions) for one, other in pairs]
    for sample in islice(questions.samples(), _MOST_TRUTHS):
        for judge in judges:
            judge.ask(sample)
    original, result, between = (judge.visible for judge in judges)
    return Rounding(original, result, between)


def _questions(models: Sequence[Opened], first: Runner, second: Runner, wanted: Settings) -> Questions:
    if wanted.task is None and wanted.data is None:
        return Questions(first, second, wanted.sizes, wanted.seed)
    folder = tokenizer_folder([one for one in models if isinstance(one, Source)], wanted.tokenizer)
    task = wanted.task if isinstance(wanted.task, Task) else find_task(wanted.task, wanted.data)
    return Texts(first, second, wanted.sizes, task, folder)


def _open(models: Sequence[Opened], wanted: Settings) -> list[AbstractContextManager[Runner]]:
    """Both as runners, which are closed afterwards where they are opened here. The baseline's graph is run as it
    stands, without ONNX Runtime's own optimisation."""
    opened: list[AbstractContextManager[Runner]] = []
    unknown: list[UnknownInputError] = []
    count = sum(isinstance(model, GraphSource) for model in models[: 1 if wanted.precision else 2])
    for model, precision, level in zip(models, (None, wanted.precision), (0, 99), strict=True):
        if isinstance(model, Model):
            opened.append(nullcontext(Fusebert(model)))
        elif isinstance(model, Source):
            how = {"precision": precision, "threads": wanted.threads, "level": level, "stand_in": True}
            opened.append(closing(open_told(model, wanted.inputs, unknown, count, **how)))
        else:
            opened.append(nullcontext(model))
    return opened


def _tolerance(rtol: float | None, atol: float | None, first: Runner, second: Runner) -> Tolerance:
    loosest = max((first.roles.precision, second.roles.precision), key=[*PRECISIONS].index)
    if rtol is None and atol is None and loosest != "fp32":
        return Tolerance(precision=loosest)
    usual = Tolerance()
    given = (usual.rtol if rtol is None else rtol), (usual.atol if atol is None else atol)
    if not all(np.isfinite(given)) or min(given) < 0:
        raise FusebertError(f"rtol and atol must be 0 or more, not {given[0]:g} and {given[1]:g}")
    return Tolerance(*given)


def _judge(
    first: Runner,
    second: Runner,
    tolerance: Tolerance,
    questions: Questions,
    show_progress: bool,
    output_dir: str | Path | None = None,
) -> Judge:
    """Both models, asked everything."""
    judge = Judge(first, second, tolerance, questions)
    with progress("comparing", questions.count, show_progress) as advance:
        for number, sample in enumerate(questions.samples()):
            answers = judge.ask(sample)
            if output_dir is not None:
                _save(Path(output_dir), number, first.feeds(sample.ids, sample.mask, sample.types), answers)
            advance(1)
    return judge


def _conclude(
    first: Runner,
    second: Runner,
    tolerance: Tolerance,
    questions: Questions,
    judge: Judge,
    own: Sequence[Difference],
    rounding: Rounding | None,
) -> Comparison:
    """`own` is what a framework's rewriting changes; if there is any, `judge` has seen graphs as they are written."""
    visible, hidden = judge.visible, judge.hidden
    if rounding is not None:
        rounding = replace(rounding, decides=bool(judge.faults))
    nearer = rounding is not None and rounding.decides and not rounding.farther
    wrong = [*judge.missing, *([] if nearer else judge.faults)]
    samples = sum(judge.paddings.values())
    ignored = any(d.over for d in hidden) and not judge.hidden_count
    if wrong:
        wrong += rounding.farther if rounding else []
        verdict = f"different answers: {'; '.join(wrong)}"
    elif nearer:
        verdict = f"{NEARER}, whose answers are approximations: {samples} samples"
    else:
        verdict = (
            f"same answers: {samples} samples within {tolerance.short}{' of the unoptimised graph' if own else ''}"
        )
        verdict += _NOT_COUNTED if ignored else ""
    facts = {
        "verdict": verdict,
        "samples": samples,
        "failed_samples": len(judge.failures),
        "size": questions.size,
        "paddings": judge.paddings,
        "tolerance": str(tolerance),
        "inputs": {role: given.name for role, given in first.inputs.items()},
    }
    facts |= {"policy": POLICY} if rounding else {}
    told = dict.fromkeys((*first.notes, *second.notes))
    if own:
        distances = [short(max(d.worst for d in differences)) for differences in (own, visible)]
        facts |= dict(zip(("own_optimisations", "unoptimised"), distances, strict=True))
        told[_OWN.format(*distances)] = None
    notes = [*told, *questions.notes, *judge.notes, *([_ALLOWED] if ignored else [])]
    title = f"{first.name} against {second.name}"
    found = Comparison(visible, hidden, judge.hidden_count, not wrong, title, facts, notes, second.framework, rounding)
    found.spread = spread(judge.tallies, judge.asked)
    return found


def _save(folder: Path, number: int, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    """One sample as ONNX tools expect it: batch_B_seq_S/test_data_set_N/input_K.pb and output_K.pb."""
    batch, length = next(iter(inputs.values())).shape
    place = folder / f"batch_{batch}_seq_{length}" / f"test_data_set_{number}"
    with write.folder(place) as made:
        for word, arrays in (("input", inputs), ("output", outputs)):
            for k, (name, array) in enumerate(arrays.items()):
                (made / f"{word}_{k}.pb").write_bytes(encode(name, array))
