"""The way from a model on disk to an optimised one: read, pack, prove, save. A path in, a folder and a Report out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusebert.engine.model import Model, load
from fusebert.errors import DifferentError, FusebertError, UnsupportedError
from fusebert.formats import artifact, write
from fusebert.match import assemble, find
from fusebert.measure.compare import Difference, compare, compare_with_graph, table, within
from fusebert.report import Report, Table
from fusebert.rewrite.packing import Wanted
from fusebert.source import is_graph, looks_like_onnx, read
from fusebert.values.precision import PRECISIONS
from fusebert.values.traverse import layers
from fusebert.verbs.fused import BEYOND_RANGES, TARGETS, plan_replacement, replace_encoders

_COMPARED = "Compared with the same model in fp32, on random ids with every kind of padding."
_NOT_CHANGED = "fp32 changes no number: the artifact was read back and gives the same bits."
_WITH_GRAPH = "The fp32 model was compared with the original graph, every node of which was computed in NumPy."


def optimize(
    path: str | Path,
    out: str | Path,
    precision: str = "int8",
    target: str | None = None,
    head: str | None = None,
    padding: str = "auto",
    overwrite: bool = False,
    verify: bool = True,
    threads: int | None = None,
    show_progress: bool = False,
    fast_gelu: bool = False,
    int32: bool = False,
    dry_run: bool = False,
    expected: Mapping[str, int | None] | None = None,
    ranges: Any = None,
    float16: bool = False,
    length: int | None = None,
    verbose: bool = False,
) -> Report:
    """Optimises a model, and checks that its answers stay within tolerance.

    target: "standalone" makes an artifact for fusebert itself; "onnxruntime" and "tensorflow" write the model for that
    framework again, with a fused operator for every encoder; "stock-onnxruntime" uses that framework's own kernels. By
    default a graph stays in its framework, unless an ONNX model is to become a folder; a checkpoint is made standalone.
    padding: what becomes of hidden positions in a fused operator: "auto", "skip", "first" or "compute".
    fast_gelu: stock kernels use the tanh GELU for every GELU. int32: an ONNX model's int64 ids and masks become int32.
    float16: weights and graph of an ONNX model become halves, its inputs and outputs stay. length: its inputs take that
    many tokens only. verbose: tells more of a graph: the encoders' places, and the nodes before and after.
    expected: sizes (heads, hidden) that the encoders of a graph must have; a contradiction is an error.
    ranges: input ranges, or the path of a file with them, as `calibrate` writes it: int8 becomes static.

    Raises DifferentError, and writes nothing, if the answers differ by more than the precision's tolerance."""
    path, out = Path(path), Path(out)
    chosen = target or default_target(path, out)
    if chosen not in ("standalone", *TARGETS):
        raise FusebertError(f"target {chosen!r} is unknown; use standalone, {', '.join(TARGETS)}")
    if "onnxruntime" not in chosen and (float16 or int32 or length is not None):
        raise FusebertError(f"float16, int32 inputs and a settled length are for ONNX Runtime, not for {chosen}")
    if chosen == "standalone" and dry_run:
        return _plan(path, out, load(path, precision, threads, head=head, ranges=ranges))
    if chosen == "standalone":
        return _standalone(path, out, precision, head, overwrite, verify, threads, show_progress, ranges)
    if not is_graph(path) or (chosen == "tensorflow") == looks_like_onnx(path):
        raise FusebertError(f"{path} is not a model of {TARGETS[chosen]}, so it cannot be optimised for {chosen}")
    if precision not in PRECISIONS or padding not in ("auto", "skip", "first", "compute"):
        raise FusebertError(f"precision is one of {', '.join(PRECISIONS)}; padding is auto, skip, first or compute")
    _check_expected(path, expected or {})
    wanted = Wanted(precision, padding, threads, ranges, fast_gelu, int32, float16, length)
    if dry_run:
        return plan_replacement(path, chosen, wanted, verbose)
    return replace_encoders(path, out, chosen, wanted, verify, overwrite, show_progress, verbose)


def _check_expected(path: Path, expected: Mapping[str, int | None]) -> None:
    if not any(expected.values()):
        return
    for found in find(read(path)).encoders:
        for name, size in expected.items():
            if size and size != (have := getattr(found, name)):
                raise FusebertError(f"{path}: the encoder has {name} {have}, not {size}; omit that option")


def default_target(path: Path, out: Path) -> str:
    """Where an optimised model is run if nothing is said."""
    if not is_graph(path):
        return "standalone"
    if looks_like_onnx(path):
        return "onnxruntime" if out.suffix == ".onnx" else "standalone"
    return "tensorflow"


def _standalone(
    path: Path,
    out: Path,
    precision: str,
    head: str | None,
    overwrite: bool,
    verify: bool,
    threads: int | None,
    show_progress: bool,
    ranges: Any,
) -> Report:
    write.check(out, artifact.is_artifact if overwrite else None)
    model = load(path, precision, threads, head=head, ranges=ranges)
    tables, notes = [], []
    if verify:
        baseline = model if precision == "fp32" else load(path, "fp32", threads, head=head)
        if is_graph(Path(path)):
            differences, note = _prove_found(Path(path), baseline)
            tables += [table(differences, "original_graph")] if differences else []
            notes.append(note)
        differences = compare(baseline, model, show_progress)
        advice = "Try another precision." if ranges is None else BEYOND_RANGES
        _require(differences, precision, f"{path} as {precision}", "fp32", advice)
        tables.append(table(differences))
        notes.append(_COMPARED if precision != "fp32" else _NOT_CHANGED)
    read_back: list[Model] = []

    def check(folder: Path) -> None:
        read_back.append(load(folder, threads=threads))
        if verify and any(d.worst_error for d in compare(model, read_back[0])):
            raise DifferentError(
                f"{out} would not read back as it was written; the disk or the file system is at fault"
            )

    model.save(out, overwrite, check)
    notes += [f"Left out: {what}." for what in model.left_out]
    return _report(f"{path} -> {out}", model, read_back[0], tuple(tables), tuple(notes))


def _prove_found(path: Path, baseline: Model) -> tuple[list[Difference], str]:
    """The difference between a model and the graph that it was found in."""
    graph = read(path)
    assembled = assemble(find(graph))
    try:
        differences = compare_with_graph(graph, baseline, assembled)
    except UnsupportedError as error:
        return [], f"The original graph cannot be computed here, so it was not compared: {error}."
    if any(part.kind == "rounding" for part in assembled.omitted):
        return differences, f"{_WITH_GRAPH} It rounds to 8 bits, so they differ."
    in_halves = any(weight.dtype == "float16" for weight in graph.weights.values())  # which the graph may compute in
    _require(differences, "bf16" if in_halves else "fp32", f"{path} as it was found", "its graph")
    return differences, _WITH_GRAPH


def _require(
    differences: list[Difference], precision: str, what: str, other: str, advice: str = "Try another precision."
) -> None:
    if not within(differences, precision):
        worst = max(differences, key=lambda d: d.worst_error)
        raise DifferentError(
            f"{what} differs too much from {other}: {worst.output} by {worst.worst_error:.3g} of its scale, mean "
            f"cosine {worst.mean_cosine:.5f}; nothing was written. {advice}"
        )


def _report(title: str, model: Model, written: Model, tables: tuple[Table, ...], notes: tuple[str, ...]) -> Report:
    verdict = "same answers within tolerance" if tables else "not compared"
    facts = {**_facts(model), "bytes_after": written.network.bytes, "verdict": verdict}
    return Report(title, facts, tables, notes)


def _facts(model: Model) -> dict[str, Any]:
    return {
        "family": model.network.family,
        "head": model.network.head.kind,
        "layers": len(layers(model.network.encoder)),
        "precision": model.plan.precision,
        "bytes_before": model.bytes_read,
    }


def _plan(path: Path, out: Path, model: Model) -> Report:
    """What would be written, without writing anything."""
    notes = [f"An artifact would be written to {out}.", *(f"Left out: {what}." for what in model.left_out)]
    return Report(f"{path} (nothing was written)", {"for": "standalone", **_facts(model)}, (), tuple(notes))
