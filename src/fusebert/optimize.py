"""The way from a model on disk to an optimised one: read, pack, prove, save. A path in, a folder and a Report out."""

from __future__ import annotations

from pathlib import Path

from fusebert.compare import compare, table, within
from fusebert.errors import FusebertError
from fusebert.model import Model, load
from fusebert.report import Report, Table

_COMPARED = "Compared with the same checkpoint in fp32, on random ids with every kind of padding."
_NOT_CHANGED = "fp32 changes no number: the artifact was read back and gives the same bits."


class DifferentError(FusebertError):
    """The optimised model answers differently than its precision allows; nothing was written."""


def optimize(
    path: str | Path,
    out: str | Path,
    precision: str = "int8",
    head: str | None = None,
    overwrite: bool = False,
    verify: bool = True,
    threads: int | None = None,
    show_progress: bool = False,
) -> Report:
    """Turns a Hugging Face checkpoint into an artifact at `out` and compares it with the checkpoint in fp32.

    Raises DifferentError, and writes nothing, if the answers differ by more than the precision's tolerance."""
    out = Path(out)
    if out.exists() and not overwrite:
        raise FusebertError(f"{out} exists; choose another place or allow overwriting")
    model = load(path, precision, threads, head=head)
    differences = []
    if verify:
        baseline = model if precision == "fp32" else load(path, "fp32", threads, head=head)
        differences = compare(baseline, model, show_progress)
        if not within(differences, precision):
            worst = max(differences, key=lambda d: d.worst_error)
            raise DifferentError(
                f"{path} as {precision} differs too much from fp32: {worst.output} by {worst.worst_error:.3g} of its "
                f"scale, mean cosine {worst.mean_cosine:.5f}; nothing was written. Try another precision."
            )
    read_back: list[Model] = []

    def check(folder: Path) -> None:
        read_back.append(load(folder, threads=threads))
        if verify and any(d.worst_error for d in compare(model, read_back[0])):
            raise DifferentError(
                f"{out} would not read back as it was written; the disk or the file system is at fault"
            )

    model.save(out, overwrite, check)
    return _report(f"{path} -> {out}", model, read_back[0], tuple([table(differences)] if verify else []))


def _report(title: str, model: Model, written: Model, tables: tuple[Table, ...]) -> Report:
    layers = model.network.encoder.layers
    return Report(
        title,
        {
            "family": model.network.family,
            "head": model.network.head.kind,
            "layers": len(layers),
            "precision": model.plan.precision,
            "bytes_before": model.network.bytes,
            "bytes_after": written.network.bytes,
            "verdict": "same answers within tolerance" if tables else "not compared",
        },
        tables,
        (_COMPARED if model.plan.precision != "fp32" else _NOT_CHANGED,) if tables else (),
    )
