"""Compare: two models on the same made-up inputs. Paths or Models in, differences and a verdict out: how far apart are
their answers, and is that within tolerance?

Answers at positions that the mask hides are judged apart and do not count: readers ignore them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine.model import Model
from fusebert.errors import FusebertError
from fusebert.formats import write
from fusebert.formats.onnx.tensor import encode
from fusebert.match import Assembled, translate
from fusebert.measure.difference import TOLERANCES, Difference, Tolerance, difference, table, within
from fusebert.measure.inputs import UnknownInputError
from fusebert.measure.pairing import Judge, Questions, Sizes
from fusebert.measure.predictions import tokenizer_folder
from fusebert.measure.runners import Fusebert, Runner, Told, open_runner
from fusebert.measure.tasks import find_task
from fusebert.measure.texts import Texts
from fusebert.ops.graph import Array, Graph
from fusebert.ops.vocabulary import evaluate
from fusebert.progress import progress
from fusebert.report import Report, Table
from fusebert.values.precision import PRECISIONS

__all__ = ["TOLERANCES", "Comparison", "Difference", "compare", "compare_with_graph", "difference", "table", "within"]

Compared = Model | Runner | str | Path
_OWN = (
    "TensorFlow's own optimisations change its answers by up to {}; the other model differs from the unoptimised graph "
    "by up to {}."
)
_ALLOWED = "Padding positions differ; they are ignored."


class Comparison(list[Difference]):
    """The differences at visible positions, one per output; `hidden` are those at hidden ones. `same` is the verdict,
    `run_by` who ran the other model, and `facts` and `notes` are what else there is to say."""

    def __init__(
        self,
        visible: Iterable[Difference],
        hidden: Sequence[Difference],
        same: bool,
        title: str,
        facts: Mapping[str, Any],
        notes: Sequence[str],
        run_by: str,
    ) -> None:
        super().__init__(visible)
        self.hidden, self.same, self.title, self.facts, self.notes = hidden, same, title, facts, notes
        self.run_by = run_by

    def report(self) -> Report:
        """Everything, to be shown."""
        rows = tuple(
            (d.output, place, _short(d.worst), _short(d.mean), _short(d.over), d.not_finite, d.failed)
            for place, differences in (("visible", self), ("hidden", self.hidden))
            for d in differences
        )
        columns = ("output", "at", "worst", "mean", "over", "nan", "failed")
        tables = Table("outputs", columns, rows), table(self, "closeness")
        return Report(self.title, {**self.facts, "same": self.same}, tables, tuple(self.notes))


def compare(
    baseline: Compared,
    other: Compared,
    show_progress: bool = False,
    *,
    batch_size: int | None = None,
    sequence_length: int | None = None,
    samples: int | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 3,
    precision: str | None = None,
    inputs: Told | None = None,
    threads: int | None = None,
    output_dir: str | Path | None = None,
    task: str | Path | None = None,
    data: str | Path | None = None,
    tokenizer: str | Path | None = None,
) -> Comparison:
    """Runs both models on random ids with every kind of padding that the baseline honours, or on the texts of a task,
    and compares the answers.

    A Model is run as it is; a path by its framework: an ONNX file, a SavedModel, a frozen graph, a checkpoint or an
    artifact. Where TensorFlow is missing, fusebert computes its graphs. `precision` makes fusebert run the other one.
    A framework that rewrites graphs may change answers by it, as TensorFlow does on some processors: models that
    differ are judged by their graphs as they are written, and the notes tell both distances.
    batch_size, sequence_length, samples: 1, 128 and 100 once one of them is given; else a few batches of many sizes.
    rtol, atol: 1e-3 and 1e-4 if one is given or both models compute in fp32; else the precision has tolerances.
    inputs: names of the inputs by role (ids, mask, types), for a model that has them; else they are found.
    task, data, tokenizer: texts as `accuracy` takes them; `samples` of them (or all), cut to `sequence_length` tokens.
    output_dir: a folder for what went into and came out of the baseline, as ONNX tools keep it."""
    for name, value in (("batch_size", batch_size), ("sequence_length", sequence_length), ("samples", samples)):
        if value is not None and value < 1:
            raise FusebertError(f"{name} must be at least 1, not {value}")
    opened = _open(baseline, other, precision, inputs, threads)
    with opened[0] as first, opened[1] as second:
        tolerance = _tolerance(rtol, atol, first, second)
        sizes = Sizes(batch_size, sequence_length, samples)
        if task is None and data is None:
            questions = Questions(first, second, sizes, seed)
        else:
            folder = tokenizer_folder(
                [Path(one) for one in (baseline, other) if isinstance(one, str | Path)], tokenizer
            )
            questions = Texts(first, second, sizes, find_task(task, data), folder)
        judge = _judge(first, second, tolerance, questions, show_progress, output_dir)
        own: list[Difference] = []
        if not judge.close:
            plain = [one.as_written() or one for one in (first, second)]
            for one, rewritten in zip(plain, (first, second), strict=True):
                if one is not rewritten:
                    own += _judge(one, rewritten, tolerance, questions, show_progress).visible
            judge = _judge(plain[0], plain[1], tolerance, questions, show_progress) if own else judge
        return _conclude(first, second, tolerance, questions, judge, own)


def _open(
    baseline: Compared, other: Compared, precision: str | None, told: Told | None, threads: int | None
) -> list[AbstractContextManager[Runner]]:
    """Both as runners, which are closed afterwards where they are opened here. The baseline's graph is run as it
    stands, without ONNX Runtime's own optimisation."""
    opened: list[AbstractContextManager[Runner]] = []
    unknown = []
    for what, ours, level in ((baseline, None, 0), (other, precision, 99)):
        if isinstance(what, Model):
            opened.append(nullcontext(Fusebert(what)))
        elif isinstance(what, str | Path):
            try:
                runner = open_runner(what, ours, threads, level, told=told, stand_in=True)
            except UnknownInputError as error:
                unknown.append(error)
                runner = open_runner(what, ours, threads, level, stand_in=True)
            opened.append(closing(runner))
        else:
            opened.append(nullcontext(what))
    if len(unknown) == 2:
        raise unknown[0]
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
) -> Comparison:
    """`own` is what a framework's rewriting changes; if there is any, `judge` has seen graphs as they are written."""
    visible, hidden, failed, close = judge.visible, judge.hidden, len(judge.failures), judge.close
    same = close and not judge.missing
    samples = sum(judge.paddings.values())
    if same:
        verdict = f"same answers: {samples} samples within {tolerance}{' of the unoptimised graph' if own else ''}"
    else:
        worst = max(visible, key=lambda d: (d.failed, d.worst_error))
        how = f"{failed} of {samples} samples are over {tolerance}; {worst.output} is off by up to {worst.worst:.3g}"
        verdict = f"different answers: {'; '.join([*judge.missing, *([] if close else [how])])}"
    facts = {
        "verdict": verdict,
        "samples": samples,
        "failed_samples": failed,
        "size": questions.size,
        "paddings": judge.paddings,
        "tolerance": str(tolerance),
        "inputs": {role: given.name for role, given in first.inputs.items()},
    }
    told = dict.fromkeys((*first.notes, *second.notes))
    if own:
        distances = [_short(max(d.worst for d in differences)) for differences in (own, visible)]
        facts |= dict(zip(("own_optimisations", "unoptimised"), distances, strict=True))
        told[_OWN.format(*distances)] = None
    notes = [*told, *questions.notes, *judge.notes, *([_ALLOWED] if any(d.over for d in hidden) else [])]
    return Comparison(visible, hidden, same, f"{first.name} against {second.name}", facts, notes, second.framework)


def _save(folder: Path, number: int, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    """One sample as ONNX tools expect it: batch_B_seq_S/test_data_set_N/input_K.pb and output_K.pb."""
    batch, length = next(iter(inputs.values())).shape
    place = folder / f"batch_{batch}_seq_{length}" / f"test_data_set_{number}"
    with write.folder(place) as made:
        for word, arrays in (("input", inputs), ("output", outputs)):
            for k, (name, array) in enumerate(arrays.items()):
                (made / f"{word}_{k}.pb").write_bytes(encode(name, array))


def _short(value: float) -> float | str:
    """Three digits; JSON has no infinity."""
    return float(f"{value:.3g}") if np.isfinite(value) else "inf"


def compare_with_graph(graph: Graph, model: Model, assembled: Assembled) -> list[Difference]:
    """The difference of a model to the graph it was assembled from, whose every node is computed in NumPy: of the
    outputs that both have, or else of the encoder's rows."""
    original = translate(graph)
    places = dict(assembled.outputs)
    wanted = {name: original.outputs[place] for name, place in places.items()} or {"encoder": assembled.encoder_output}
    original = replace(original, outputs=tuple(wanted.values()))
    names = assembled.inputs
    pairs: dict[str, tuple[list[Array], list[Array]]] = {}
    for given in _small_inputs(original, model, assembled):
        feeds = {names[role]: given[role].astype(original.types[names[role]].dtype or "int64") for role in names}
        answers = evaluate(original, feeds)
        visible = given["mask"].astype(bool) if "mask" in names else np.ones(given["ids"].shape, bool)
        got = model.run(given["ids"], visible, given["types"] if "types" in names else None, not places)
        for name, tensor in wanted.items():
            value = got["hidden_states"][-1] if name == "encoder" else got[name]
            pairs.setdefault(name, ([], []))[0].append(_rows(name, answers[tensor].reshape(value.shape), visible))
            pairs[name][1].append(_rows(name, value, visible))
    return [difference(name, np.concatenate(a), np.concatenate(b)) for name, (a, b) in pairs.items()]


def _small_inputs(graph: Graph, model: Model, assembled: Assembled) -> list[dict[str, Array]]:
    """Few tokens, since NumPy is slow, with padding right, and in holes where the graph does not just count positions;
    of the size that the graph declares, if any."""
    random = np.random.default_rng(0)
    declared = graph.types[assembled.inputs["ids"]].shape or (None, None)
    batches = []
    for usual in ((1, 4), (3, 9)):
        shape = tuple(n if isinstance(n, int) else m for n, m in zip(declared, usual, strict=True))
        ids = random.integers(0, len(model.network.embeddings.word), shape)
        mask = np.ones_like(ids)
        if shape[1] > 1:
            mask[1::2, -(shape[1] // 2) :] = 0
            mask[2::2, 1::3] = assembled.counts_positions
        batches.append({"ids": ids, "mask": mask, "types": random.integers(0, 2, shape)})
    return batches


def _rows(name: str, value: Array, visible: Array) -> Array:
    """An output as rows `[rows, width]`: those of visible tokens, or one per sequence."""
    if name in ("start_logits", "end_logits"):
        return value[visible][:, None]
    return value[visible] if value.ndim == 3 else value
