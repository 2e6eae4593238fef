"""Exported: a checkpoint, which has no graph -> an ONNX file or a SavedModel: written in its own operators and, where
the target has a fused one, rewritten as any other graph is; compared with the checkpoint before it is put in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusebert.engine.load import load
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats import write
from fusebert.formats.onnx.edit import files, is_model
from fusebert.formats.tensorflow.read import is_saved_model
from fusebert.formats.write import Kind
from fusebert.onnxruntime import session
from fusebert.progress import progress
from fusebert.report import Report, Table
from fusebert.rewrite.network import write_onnx, write_saved_model
from fusebert.source import Checkpoint, GraphSource, OnnxFile, SavedModel, open_result
from fusebert.values.network import Network
from fusebert.values.target import TARGETS, FusedTensorFlow, PlainOnnx
from fusebert.values.traverse import layers
from fusebert.verbs.fused import REWRITERS
from fusebert.verbs.request import Request

_SUFFIXES = (".onnx", ".pb", ".pbtxt")


@dataclass(frozen=True)
class _Form:
    """What is written: how, what it is read as, what it is called, who runs it, and what else could carry the layers.
    TensorFlow's can be run without TensorFlow, by fusebert's own evaluator."""

    write: Callable[[Network, Path], None]
    source: type[GraphSource]
    kind: Kind
    name: str
    framework: str
    others: str


_ONNX = _Form(
    write_onnx, OnnxFile, is_model, "an ONNX file", "onnxruntime",
    "ONNX's own operators can (--for onnx), and so can fusebert itself (--for standalone)",
)  # fmt: skip
_TENSORFLOW = _Form(
    write_saved_model, SavedModel, is_saved_model, "a SavedModel", "tensorflow",
    "fusebert itself can (--for standalone), and so can ONNX's own operators (--for onnx)",
)  # fmt: skip


def make_exported(request: Request) -> Report:
    """Writes the ONNX file or the SavedModel."""
    source, out, target, form = _checkpoint(request), request.out, request.target, _form(request)
    replaces = form.kind if request.overwrite else None
    write.check(out, replaces)
    network = source.network()
    request.check_sizes(network.encoder)
    with write.beside(out) as folder:
        plain = folder / (out.name if isinstance(target, PlainOnnx) else f"plain {out.name}")
        with progress("writing", None, request.show_progress):
            with _refusing(request, plain):
                form.write(network, plain)
            file = plain if isinstance(target, PlainOnnx) else _rewritten(request, plain, folder / out.name)
        made = form.source(plain) if file is plain else open_result(file, form.source(plain))
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


def _rewritten(request: Request, plain: Path, file: Path) -> Path:
    """The plain model with fused operators."""
    with _refusing(request, plain):
        REWRITERS[type(request.target)](_form(request).source(plain), file, request.target)
    return file


@contextmanager
def _refusing(request: Request, plain: Path) -> Iterator[None]:
    """Says of layers that the operator cannot carry what can."""
    try:
        yield
    except UnsupportedError as error:
        reason = str(error).replace(f"{plain}: ", "")
        raise UnsupportedError(
            f"{request.source.path}: the operator cannot carry its layers: {reason}. {_form(request).others}"
        ) from None


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
