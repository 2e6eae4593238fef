"""Exported: a checkpoint, which has no graph -> an ONNX file or a SavedModel: written in its own operators and, where
the target has one, the fused operator; compared with the checkpoint before it is put in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusebert.engine.load import load
from fusebert.errors import FusebertError
from fusebert.formats import write
from fusebert.formats.onnx.edit import files, is_model
from fusebert.formats.tensorflow.read import is_saved_model
from fusebert.formats.write import Kind
from fusebert.onnxruntime import session
from fusebert.progress import progress
from fusebert.report import Report, Table
from fusebert.rewrite.network import write_onnx, write_saved_model
from fusebert.rewrite.stock import check_stock
from fusebert.source import Checkpoint, GraphSource, OnnxFile, SavedModel, open_result
from fusebert.values.network import Network
from fusebert.values.target import TARGETS, Fused, FusedTensorFlow, StockOnnx
from fusebert.values.traverse import in_order, layers
from fusebert.verbs.fused import REWRITERS
from fusebert.verbs.request import Request

_SUFFIXES = (".onnx", ".pb", ".pbtxt")


@dataclass(frozen=True)
class _Form:
    """What is written: how, what it is read as, what it is called, and who runs it. TensorFlow's can be run without
    TensorFlow, by fusebert's own evaluator."""

    write: Callable[..., None]
    source: type[GraphSource]
    kind: Kind
    name: str
    framework: str


_ONNX = _Form(write_onnx, OnnxFile, is_model, "an ONNX file", "onnxruntime")
_TENSORFLOW = _Form(write_saved_model, SavedModel, is_saved_model, "a SavedModel", "tensorflow")


def make_exported(request: Request) -> Report:
    """Writes the ONNX file or the SavedModel."""
    source, out, form = _checkpoint(request), request.out, _form(request)
    replaces = form.kind if request.overwrite else None
    write.check(out, replaces)
    network = source.network()
    request.check_sizes(network.encoder)
    with write.beside(out) as folder:
        file = folder / out.name
        with progress("writing", None, request.show_progress):
            made = _written(request, network, file)
        if isinstance(made, OnnxFile):
            _check_onnx(made, request.verify)
        verdict, tables, notes = _verified(request, made)
        parts = files(file, out)
        facts = {**_facts(request, network), "bytes_after": sum(map(_bytes, parts)), **verdict}
        write.put(parts, replaces)
    return Report(f"{source.path} -> {out}", facts, tables, notes)


def plan_exported(request: Request) -> Report:
    """What would be written, without writing anything."""
    network = (source := _checkpoint(request)).network()
    request.check_sizes(network.encoder)
    note = f"{_form(request).name.capitalize()} would be written to {request.out}.".replace("onnx", "ONNX")
    return Report(f"{source.path} (nothing was written)", _facts(request, network), (), (note,))


def _form(request: Request) -> _Form:
    return _TENSORFLOW if isinstance(request.target, FusedTensorFlow) else _ONNX


def _checkpoint(request: Request) -> Checkpoint:
    assert isinstance(request.source, Checkpoint)
    if _form(request) is _ONNX and request.out.suffix != ".onnx":
        raise FusebertError(f"{request.out} is to be an ONNX file; give it a name that ends with .onnx")
    if _form(request) is _TENSORFLOW and request.out.suffix in _SUFFIXES:
        raise FusebertError(f"{request.out} names a file, but a SavedModel is a folder; choose another name")
    return request.source


def _written(request: Request, network: Network, file: Path) -> GraphSource:
    """Writes the model of a Network."""
    form, target = _form(request), request.target
    if isinstance(target, Fused):
        form.write(network, file, target)
    elif isinstance(target, StockOnnx):
        check_stock(in_order(network.encoder), request.source.path)
        plain = form.source(file.with_name(f"plain {file.name}"))
        form.write(network, plain.path)
        REWRITERS[StockOnnx](plain, file, target)
        return open_result(file, plain)
    else:
        form.write(network, file)
    return form.source(file)


def _check_onnx(made: OnnxFile, verify: bool) -> None:
    """Refuses a file that ONNX's own checker or, where it is not run anyway, ONNX Runtime does not accept."""
    with suppress(ImportError):
        from onnx import checker

        checker.check_model(str(made.path))
    if not verify and find_spec("onnxruntime") is not None:
        session(made.path)


def _verified(request: Request, made: GraphSource) -> tuple[Mapping[str, str], tuple[Table, ...], tuple[str, ...]]:
    """The verdict, what it rests on, and notes."""
    form = _form(request)
    if not request.verify:
        return {"verdict": "not compared"}, (), ("Not compared.",)
    if form is _ONNX and find_spec(form.framework) is None:
        return {"verdict": "not compared"}, (), ("Not compared: ONNX Runtime is not installed.",)
    baseline = load(request.source, "fp32", request.target.threads)
    found = request.compared(baseline, made, f"{request.source.path} as {form.name} differs too much")
    note = f"Compared with the checkpoint, run by fusebert in fp32; {form.name} was run by {found.run_by}."
    return found.verdict, found.tables(), (note, *found.notes)


def _facts(request: Request, network: Network) -> dict[str, Any]:
    target = next(name for name, kind in TARGETS.items() if isinstance(request.target, kind))
    return {
        "for": target, "family": network.family, "head": network.head.kind, "layers": len(layers(network.encoder)),
        "precision": request.target.precision, "bytes_before": network.bytes,
    }  # fmt: skip


def _bytes(path: Path) -> int:
    return path.stat().st_size if path.is_file() else sum(f.stat().st_size for f in path.rglob("*") if f.is_file())
