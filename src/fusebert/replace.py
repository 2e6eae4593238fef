"""Replace: a model file -> the same for its own framework, with every encoder as one fused operator; compared with the
original in that framework before it is put in place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from fusebert.errors import DifferentError, FusebertError
from fusebert.match.find import Found
from fusebert.measure.compare import compare, table
from fusebert.read import read
from fusebert.report import Report, Table
from fusebert.rewrite.onnx import rewrite_onnx, rewrite_stock
from fusebert.rewrite.places import Rewritten, Wanted, choose_padding, find_places
from fusebert.rewrite.tensorflow import rewrite_tensorflow

TARGETS = {"onnxruntime": "onnxruntime", "stock-onnxruntime": "onnxruntime", "tensorflow": "tensorflow"}  # who runs it
_REWRITERS = {"onnxruntime": rewrite_onnx, "stock-onnxruntime": rewrite_stock, "tensorflow": rewrite_tensorflow}
BEYOND_RANGES = (
    "Fixed ranges hold for texts like those they were observed on, not for random ids. Leave them away (a range per "
    "token is more exact), or write without comparing (--no-verify) and judge with fusebert accuracy."
)


def replace_encoders(
    path: Path,
    out: Path,
    target: str,
    wanted: Wanted,
    verify: bool = True,
    overwrite: bool = False,
    show_progress: bool = False,
) -> Report:
    """Writes the model at `path` to `out` with fused operators for `target`.

    Raises DifferentError, and writes nothing, if the answers differ by more than the precision's tolerance."""
    if out.exists() and not overwrite:
        raise FusebertError(f"{out} exists; choose another place or allow overwriting")
    if out.resolve() == path.resolve():
        raise FusebertError(f"{out} is the model itself, which is never overwritten")
    with _beside(out) as folder:
        made = folder / out.name
        rewritten = _REWRITERS[target](path, made, wanted)
        tables, notes = _verified(path, made, target, wanted, show_progress) if verify else ((), ("Not compared.",))
        report = _report(f"{path} -> {out}", path, made, target, wanted.precision, rewritten, tables, notes)
        _put_in_place(folder, out)
    return report


def plan_replacement(path: Path, target: str, wanted: Wanted) -> Report:
    """What would be replaced, without writing anything."""
    finding, cuts = find_places(path, read(path))
    rows = tuple(choose_padding(place.found, wanted.padding) for place in cuts)
    rewritten = Rewritten(finding, cuts, rows)
    return _report(f"{path} (nothing was written)", path, None, target, wanted.precision, rewritten, (), ())


def _verified(
    path: Path, made: Path, target: str, wanted: Wanted, show_progress: bool
) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    framework = TARGETS[target]
    if find_spec(framework) is None:
        return (), (f"Not compared with the original, because {framework} is not installed.",)
    same = compare(path, made, show_progress, threads=wanted.threads)
    if not same.same:
        worst = max(same, key=lambda d: d.worst_error)
        raise DifferentError(
            f"{path} with fused operators differs too much from the original: {worst.output} by "
            f"{worst.worst_error:.3g} of its scale; nothing was written. "
            f"{'Try another precision.' if wanted.ranges is None else BEYOND_RANGES}"
        )
    return (table(same),), (f"Compared with the original, both run by {framework}.", *same.notes)


def _report(
    title: str, path: Path, made: Path | None, target: str, precision: str, rewritten: Rewritten,
    tables: tuple[Table, ...], notes: tuple[str, ...],
) -> Report:  # fmt: skip
    facts = {"for": target, "precision": precision, "bytes_before": _bytes(path)}
    if made is not None:
        facts |= {"bytes_after": _bytes(made), "verdict": "same answers within tolerance" if tables else "not compared"}
    return Report(title, facts, (_encoders(rewritten), *tables), notes)


def _encoders(rewritten: Rewritten) -> Table:
    columns = ("where", "layers", "hidden", "heads", "inner", "mask", "readers", "hidden_positions")
    rows = tuple(
        (_where(c.found), len(c.found.layers), c.found.hidden, c.found.heads, c.found.inner, c.mask_kind,
         ", ".join(c.found.readers), padding)
        for c, padding in zip(rewritten.cuts, rewritten.padding, strict=True)
    )  # fmt: skip
    return Table("encoders", columns, rows)


def _where(found: Found) -> str:
    return found.function or "main graph"


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder beside `out`, gone at the end."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    except OSError as error:
        raise FusebertError(f"{out} cannot be written: {error}") from None
    try:
        yield folder
    except OSError as error:
        raise FusebertError(f"{out} cannot be written: {error}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _put_in_place(folder: Path, out: Path) -> None:
    if out.is_dir():
        out.rename(folder / f"{out.name}.old")
    made = sorted(folder.iterdir(), key=lambda file: file.name == out.name)  # the model last: a reader looks for it
    for file in made:
        if not file.name.endswith(".old"):
            file.replace(out.with_name(file.name))
