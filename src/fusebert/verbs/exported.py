"""Exported: a checkpoint, which has no graph -> an ONNX file: written in ONNX's own operators and, for ONNX Runtime's
targets, rewritten as any other graph is; compared with the checkpoint before it is put in place."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusebert.engine.load import load
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats import write
from fusebert.formats.onnx.edit import files, is_model
from fusebert.onnxruntime import session
from fusebert.progress import progress
from fusebert.report import Report, Table
from fusebert.rewrite.network import write_network
from fusebert.source import Checkpoint, OnnxFile, open_result
from fusebert.values.network import Network
from fusebert.values.target import TARGETS, PlainOnnx
from fusebert.values.traverse import layers
from fusebert.verbs.fused import REWRITERS
from fusebert.verbs.request import Request

_COMPARED = "Compared with the checkpoint, run by fusebert in fp32; the file was run by ONNX Runtime."
_MISSING = "Not compared: ONNX Runtime is not installed."


def make_exported(request: Request) -> Report:
    """Writes the ONNX file."""
    source, out, target = _checkpoint(request), request.out, request.target
    replaces = is_model if request.overwrite else None
    write.check(out, replaces)
    network = source.network()
    request.check_sizes(network.encoder)
    with write.beside(out) as folder:
        plain = folder / (out.name if isinstance(target, PlainOnnx) else f"plain {out.name}")
        with progress("writing", None, request.show_progress):
            write_network(network, plain)
            file = plain if isinstance(target, PlainOnnx) else _rewritten(request, plain, folder / out.name)
        made = OnnxFile(file) if file is plain else open_result(file, OnnxFile(plain))
        assert isinstance(made, OnnxFile)
        _check(made, request.verify)
        verdict, tables, notes = _verified(request, made)
        parts = files(file, out)
        facts = {**_facts(request, network), "bytes_after": sum(part.stat().st_size for part in parts), **verdict}
        write.put(parts, replaces)
    return Report(f"{source.path} -> {out}", facts, tables, notes)


def plan_exported(request: Request) -> Report:
    """What would be written, without writing anything."""
    network = (source := _checkpoint(request)).network()
    request.check_sizes(network.encoder)
    note = f"An ONNX file would be written to {request.out}."
    return Report(f"{source.path} (nothing was written)", _facts(request, network), (), (note,))


def _checkpoint(request: Request) -> Checkpoint:
    assert isinstance(request.source, Checkpoint)
    if request.out.suffix != ".onnx":
        raise FusebertError(f"{request.out} is to be an ONNX file; give it a name that ends with .onnx")
    return request.source


def _rewritten(request: Request, plain: Path, file: Path) -> Path:
    """The plain file with fused operators."""
    try:
        REWRITERS[type(request.target)](OnnxFile(plain), file, request.target)
    except UnsupportedError as error:
        reason = str(error).replace(f"{plain}: ", "")
        raise UnsupportedError(
            f"{request.source.path}: the operator cannot carry its layers: {reason}. ONNX's own operators can (--for "
            "onnx), and so can fusebert itself (--for standalone)"
        ) from None
    return file


def _check(made: OnnxFile, verify: bool) -> None:
    """Refuses a file that ONNX's own checker or, where it is not run anyway, ONNX Runtime does not accept."""
    with suppress(ImportError):
        from onnx import checker

        checker.check_model(str(made.path))
    if not verify and find_spec("onnxruntime") is not None:
        session(made.path)


def _verified(request: Request, made: OnnxFile) -> tuple[Mapping[str, str], tuple[Table, ...], tuple[str, ...]]:
    """The verdict, what it rests on, and notes."""
    if not request.verify or find_spec("onnxruntime") is None:
        return {"verdict": "not compared"}, (), ("Not compared." if not request.verify else _MISSING,)
    baseline = load(request.source, "fp32", request.target.threads)
    found = request.compared(baseline, made, f"{request.source.path} as an ONNX file differs too much")
    return found.verdict, found.tables(), (_COMPARED, *found.notes)


def _facts(request: Request, network: Network) -> dict[str, Any]:
    target = next(name for name, kind in TARGETS.items() if isinstance(request.target, kind))
    return {
        "for": target, "family": network.family, "head": network.head.kind, "layers": len(layers(network.encoder)),
        "precision": request.target.precision, "bytes_before": network.bytes,
    }  # fmt: skip
