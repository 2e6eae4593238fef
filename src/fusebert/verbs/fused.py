"""Replace: a model file -> the same for its own framework, with every encoder as one fused operator; compared with the
original in that framework, or where TensorFlow is missing by our own evaluator, before it is put in place."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from fusebert.errors import DifferentError, FusebertError, UnsupportedError
from fusebert.formats import write
from fusebert.formats.onnx import edit as onnx_write
from fusebert.formats.onnx.edit import files, outline
from fusebert.formats.tensorflow import file as tensorflow_file
from fusebert.formats.tensorflow.file import copy_rest
from fusebert.match import FoundEncoder
from fusebert.measure.compare import compare, table
from fusebert.onnxruntime import session
from fusebert.progress import progress
from fusebert.report import Report, Table
from fusebert.rewrite.onnx import rewrite_onnx, rewrite_stock
from fusebert.rewrite.packing import Rewritten, Wanted, check_length, choose_padding, find_places
from fusebert.rewrite.tensorflow import rewrite_tensorflow
from fusebert.source import read

TARGETS = {"onnxruntime": "onnxruntime", "stock-onnxruntime": "onnxruntime", "tensorflow": "tensorflow"}  # who runs it
_REWRITERS = {"onnxruntime": rewrite_onnx, "stock-onnxruntime": rewrite_stock, "tensorflow": rewrite_tensorflow}
BEYOND_RANGES = (
    "Fixed ranges hold for texts like those they were observed on, not for random ids. Omit them (a range per "
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
    verbose: bool = False,
) -> Report:
    """Writes the model at `path` to `out` with fused operators for `target`; `verbose` tells more of what was found.

    Raises DifferentError, and writes nothing, if the answers differ by more than the precision's tolerance."""
    replaces = _same_kind(path, out, target) if overwrite else None
    if out.resolve() == path.resolve():
        raise FusebertError(f"{out} is the model itself, which is never overwritten")
    write.check(out, replaces)
    with write.beside(out) as folder:
        made = folder / out.name
        with progress("finding and replacing", None, show_progress):
            rewritten = _REWRITERS[target](path, made, wanted)
        if target != "tensorflow":
            _check_onnx(path, made, load=not verify)
        tables, notes = _verified(path, made, target, wanted, show_progress) if verify else ((), ("Not compared.",))
        notes = tuple(dict.fromkeys((*rewritten.notes, *notes)))
        report = _report(f"{path} -> {out}", path, made, target, wanted, rewritten, tables, notes, verbose)
        write.put(files(made, out), replaces)
    return report


def _same_kind(path: Path, out: Path, target: str) -> write.Kind:
    """Tells of what is at `out` whether it is what would be written there."""
    if target != "tensorflow":
        return onnx_write.is_model
    return partial(tensorflow_file.is_model, folder=path.is_dir() and out.suffix != ".pb")


def plan_replacement(path: Path, target: str, wanted: Wanted, verbose: bool = False) -> Report:
    """What would be replaced, without writing anything."""
    graph = read(path)
    finding, cuts = find_places(path, graph)
    check_length(path, finding, wanted.length)
    rows = tuple(choose_padding(place.found, wanted.padding) for place in cuts)
    rewritten = Rewritten(finding, cuts, rows)
    notes = graph.facts.get("repairs", ())
    return _report(f"{path} (nothing was written)", path, None, target, wanted, rewritten, (), notes, verbose)


def _check_onnx(path: Path, made: Path, load: bool) -> None:
    """Refuses a file that ONNX's own checker or ONNX Runtime does not accept, as far as they are installed. What the
    checker has against the original as well counts for nothing: it does not know all that is in use."""
    with suppress(ImportError):
        from onnx import checker

        try:
            checker.check_model(outline(made))
        except checker.ValidationError as error:
            with suppress(checker.ValidationError):
                checker.check_model(outline(path))
                raise FusebertError(f"{path}: the result is no valid ONNX model: {error}") from None
    if load and find_spec("onnxruntime") is not None:
        session(made)


def _verified(
    path: Path, made: Path, target: str, wanted: Wanted, show_progress: bool
) -> tuple[tuple[Table, ...], tuple[str, ...]]:
    framework = TARGETS[target]
    missing = find_spec(framework) is None
    not_compared = f"Not compared with the original, because {framework} is not installed"
    if missing and framework != "tensorflow":
        return (), (f"{not_compared}.",)
    try:
        with _runnable(path, made) as other:
            same = compare(path, other, show_progress, threads=wanted.threads)
    except UnsupportedError as error:
        if not missing:
            raise
        return (), (f"{not_compared}, and {error}.",)
    if not same.same:
        worst = max(same, key=lambda d: d.worst_error)
        raise DifferentError(
            f"{path} with fused operators differs too much from the original: {worst.output} by "
            f"{worst.worst_error:.3g} of its scale, mean cosine {worst.mean_cosine:.5f}; nothing was written. "
            f"{'Try another precision.' if wanted.ranges is None else BEYOND_RANGES}"
        )
    return (table(same),), (f"Compared with the original, both run by {same.run_by}.", *same.notes)


@contextmanager
def _runnable(path: Path, made: Path) -> Iterator[Path]:
    """What was made; the graph alone of a SavedModel in a folder with the rest of it, gone at the end."""
    if path.is_file() or made.is_dir():
        yield made
        return
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        copy_rest(path, Path(folder))
        shutil.copyfile(made, Path(folder) / "saved_model.pb")
        yield Path(folder)


def _report(
    title: str, path: Path, made: Path | None, target: str, wanted: Wanted, rewritten: Rewritten,
    tables: tuple[Table, ...], notes: tuple[str, ...], verbose: bool,
) -> Report:  # fmt: skip
    facts = {"for": target, "precision": wanted.precision, "bytes_before": _bytes(path)}
    if made is not None:
        facts |= {"bytes_after": _bytes(made), "verdict": "same answers within tolerance" if tables else "not compared"}
    more = (_places(rewritten), *([_nodes(path, made)] if made is not None else [])) if verbose else ()
    return Report(title, facts, (_encoders(rewritten), *more, *tables), notes)


def _places(rewritten: Rewritten) -> Table:
    """What else is known of each encoder, and where it sits in the graph."""
    columns = ("rows", "mask_tensor", "encoded", "taps", "activation", "epsilon", "scale")
    rows = tuple(
        (c.rows, c.mask or "none", c.outputs[0], ", ".join(map(str, c.taps)) or "none", c.found.activation,
         c.found.epsilon, c.found.scale)
        for c in rewritten.cuts
    )  # fmt: skip
    return Table("places", columns, rows)


def _nodes(path: Path, made: Path) -> Table:
    """How many nodes there were and are, of every kind whose number changed."""
    before, after = (Counter(node.op for node in read(file).nodes) for file in (path, made))
    changed = sorted(word for word in before | after if before[word] != after[word])
    return Table("nodes", ("operation", "before", "after"), tuple((w, before[w], after[w]) for w in changed))


def _encoders(rewritten: Rewritten) -> Table:
    columns = ("where", "layers", "hidden", "heads", "inner", "mask", "readers", "hidden_positions")
    rows = tuple(
        (_where(c.found), len(c.found.layers), c.found.hidden, c.found.heads, c.found.inner, c.mask_kind,
         ", ".join(c.found.readers), padding)
        for c, padding in zip(rewritten.cuts, rewritten.padding, strict=True)
    )  # fmt: skip
    return Table("encoders", columns, rows)


def _where(found: FoundEncoder) -> str:
    return found.function or "main graph"


def _bytes(path: Path) -> int:
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)
