"""Fused: a model file -> the same for its own framework, with every encoder as one fused operator; compared with the
original in that framework, or where TensorFlow is missing by our own evaluator, before it is put in place."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats import write
from fusebert.formats.onnx import edit as onnx_edit
from fusebert.formats.onnx.edit import files, outline
from fusebert.formats.tensorflow import file as tensorflow_file
from fusebert.formats.tensorflow.file import copy_rest
from fusebert.match import FoundEncoder, find_elsewhere
from fusebert.measure.inputs import contradictions
from fusebert.onnxruntime import session
from fusebert.ops.graph import Graph
from fusebert.progress import progress
from fusebert.report import Report, Table
from fusebert.rewrite.onnx import rewrite_onnx, rewrite_stock
from fusebert.rewrite.packing import Rewritten, check_length, check_operators, choose_padding, find_cuts
from fusebert.rewrite.tensorflow import rewrite_tensorflow
from fusebert.source import GraphSource, OnnxFile, SavedModel, open_result
from fusebert.values.target import TARGETS, Fused, FusedOnnx, FusedTensorFlow, StockOnnx, Target
from fusebert.verbs.request import Request
from fusebert.verbs.skipping import describe_skipping

REWRITERS: dict[type[Target], Callable[..., Rewritten]] = {
    FusedOnnx: rewrite_onnx,
    StockOnnx: rewrite_stock,
    FusedTensorFlow: rewrite_tensorflow,
}


_UNKNOWN = {"verdict": "not compared"}
_SIGNATURES_ONLY = "Only what the signatures need is left: no functions for Python, and nothing to train."
_STAYS = (
    "Functions that no signature calls stay as they are, such as the `__call__` of a Keras model, since answers are "
    "compared through signatures; serve by a signature, or wrap the function in one and optimise again."
)


def make_fused(request: Request) -> Report:
    """Writes the model with fused operators."""
    source, out = _graph_source(request), request.out
    replaces = _same_kind(source, out) if request.overwrite else None
    if out.resolve() == source.path.resolve():
        raise FusebertError(f"{out} is the model itself, which is never overwritten; choose another name")
    write.check(out, replaces)
    with write.beside(out) as folder:
        file = folder / out.name
        with progress("finding and replacing", None, request.show_progress):
            rewritten = REWRITERS[type(request.target)](source, file, request.target)
        with _runnable(source, file) as made:
            if isinstance(made, OnnxFile) and isinstance(source, OnnxFile):
                _check_onnx(source, made, load=not request.verify)
            made_graph = made.graph
            verdict, tables, notes = _verified(request, made) if request.verify else (_UNKNOWN, (), ("Not compared.",))
            if request.verbose:
                tables = (_places(rewritten), _nodes(source, made), *tables)
        own = rewritten.notes
        if isinstance(source, SavedModel) and getattr(request.target, "compact", False):
            own += (_SIGNATURES_ONLY,)
        elif (stock := _stock_functions(source, rewritten)).rows:
            own, tables = (*own, _STAYS), (*tables, stock)
        skipping = describe_skipping(rewritten, request.target) if isinstance(request.target, Fused) else ()
        told = (note.replace(str(file), str(out)) for note in notes)  # where it is compared, nobody finds it later
        notes = tuple(dict.fromkeys((*own, *contradictions(source), *told, *skipping)))
        facts = {
            "bytes_after": _bytes(file),
            "nodes_before": _count(source.graph),
            "nodes_after": _count(made_graph),
            **verdict,
        }
        report = _report(f"{source.path} -> {out}", request, rewritten, facts, tables, notes)
        write.put(files(file, out), replaces)
    return report


def plan_fused(request: Request) -> Report:
    """What would be replaced, without writing anything."""
    source, target = _graph_source(request), request.target
    cuts = find_cuts(source)
    if isinstance(target, FusedOnnx | StockOnnx):
        check_length(source, target.length)
    padding = getattr(target, "padding", "compute")
    rewritten = Rewritten(source.finding, cuts, tuple(choose_padding(place.found, padding) for place in cuts))
    tables = (_places(rewritten),) if request.verbose else ()
    notes = *source.graph.facts.get("repairs", ()), *contradictions(source)
    return _report(f"{source.path} (nothing was written)", request, rewritten, {}, tables, notes)


def _graph_source(request: Request) -> GraphSource:
    """The model, if its encoders have the sizes that are expected."""
    source = request.source
    assert isinstance(source, GraphSource)
    check_operators(source, request.target)
    for found in source.finding.encoders if request.expected else ():
        for name, size in request.expected.items():
            if size != (have := getattr(found, name)):
                raise FusebertError(f"{source.path}: the encoder has {name} {have}, not {size}; omit that option")
    return source


def _same_kind(source: GraphSource, out: Path) -> write.Kind:
    """Tells of what is at `out` whether it is what would be written there."""
    if isinstance(source, OnnxFile):
        return onnx_edit.is_model
    return partial(tensorflow_file.is_model, folder=source.path.is_dir() and out.suffix != ".pb")


def _check_onnx(source: OnnxFile, made: OnnxFile, load: bool) -> None:
    """Refuses a file that ONNX's own checker or ONNX Runtime does not accept, as far as they are installed. What the
    checker has against the original as well counts for nothing: it does not know all that is in use."""
    with suppress(ImportError):
        from onnx import checker

        try:
            checker.check_model(outline(made.message))
        except checker.ValidationError as error:
            with suppress(checker.ValidationError):
                checker.check_model(outline(source.message))
                raise FusebertError(f"{source.path}: the result is not a valid ONNX model: {error}") from None
    if load and find_spec("onnxruntime") is not None:
        session(made.path)


def _verified(request: Request, made: GraphSource) -> tuple[Mapping[str, str], tuple[Table, ...], tuple[str, ...]]:
    """The verdict, what it rests on, and notes."""
    framework = "tensorflow" if isinstance(request.target, FusedTensorFlow) else "onnxruntime"
    missing = find_spec(framework) is None
    not_compared = f"Not compared with the original, because {framework} is not installed"
    if missing and framework != "tensorflow":
        return _UNKNOWN, (), (f"{not_compared}.",)
    try:
        what = f"{request.source.path} with fused operators differs too much from the original"
        found = request.compared(request.source, made, what)
    except UnsupportedError as error:
        if not missing:
            raise
        return _UNKNOWN, (), (f"{not_compared}, and {error}.",)
    return found.verdict, found.tables(), (f"Compared with the original, both run by {found.run_by}.", *found.notes)


@contextmanager
def _runnable(source: GraphSource, made: Path) -> Iterator[GraphSource]:
    """What was made; the graph alone of a SavedModel in a folder with the rest of it, gone at the end."""
    if made.is_dir() or not isinstance(source, SavedModel) or source.folder is None:
        yield open_result(made, source)
        return
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        copy_rest(source.folder, Path(folder))
        shutil.copyfile(made, Path(folder) / "saved_model.pb")
        yield open_result(Path(folder), source)


def _report(
    title: str, request: Request, rewritten: Rewritten, made: dict[str, Any], tables: tuple[Table, ...],
    notes: tuple[str, ...],
) -> Report:  # fmt: skip
    target = next(name for name, kind in TARGETS.items() if isinstance(request.target, kind))
    before = {"for": target, "precision": request.target.precision, "bytes_before": _bytes(request.source.path)}
    return Report(title, {**before, **made}, (_encoders(rewritten), *tables), notes)


def _places(rewritten: Rewritten) -> Table:
    """What else is known of each encoder, and where it sits in the graph."""
    columns = ("rows", "mask_tensor", "encoded", "taps", "activation", "epsilon", "scale")
    rows = tuple(
        (c.rows, c.mask or "none", c.outputs[0], ", ".join(map(str, c.taps)) or "none", c.found.activation,
         c.found.epsilon, c.found.scale)
        for c in rewritten.cuts
    )  # fmt: skip
    return Table("places", columns, rows)


def _nodes(source: GraphSource, made: GraphSource) -> Table:
    """How many nodes there were and are, of every kind whose number changed."""
    before, after = (Counter(node.op for node in one.graph.nodes) for one in (source, made))
    changed = sorted(word for word in before | after if before[word] != after[word])
    return Table("nodes", ("operation", "before", "after"), tuple((w, before[w], after[w]) for w in changed))


def _count(graph: Graph) -> int:
    """The nodes of a graph and of its functions."""
    return len(graph.nodes) + sum(len(function.nodes) for function in graph.functions.values())


def _stock_functions(source: GraphSource, rewritten: Rewritten) -> Table:
    """The functions of a SavedModel, beside those that its signatures call, whose encoders were not replaced."""
    changed = {cut.found.function for cut in rewritten.cuts}
    rows = tuple(
        (name, len(found.layers), found.hidden)
        for name, finding in find_elsewhere(source.graph, source.finding).items()
        for found in finding.encoders
        if found.function not in changed - {""}
    )
    return Table("stock_functions", ("function", "layers", "hidden"), rows)


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
