"""Optimize: a model on disk -> the same, faster, for itself or for its framework again; compared before it is put in
place. A path in, a model and a Report out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, border
from fusebert.measure.tasks import Task, find_task, read_texts
from fusebert.report import Report
from fusebert.source import Artifact, Checkpoint, OnnxFile, Source, TensorFlowSource, open
from fusebert.values.target import (
    DEFAULT_PRECISION,
    FusedOnnx,
    PlainOnnx,
    Standalone,
    StockOnnx,
    make_target,
)
from fusebert.verbs.exported import make_exported, plan_exported
from fusebert.verbs.fused import make_fused, plan_fused
from fusebert.verbs.request import Request
from fusebert.verbs.standalone import make_standalone, plan_standalone

_FILES = (".onnx", ".pb", ".pbtxt")


@border
def optimize(
    path: str | Path | Source,
    out: str | Path,
    precision: str | None = None,
    target: str | None = None,
    *,
    verify: bool = True,
    overwrite: bool = False,
    dry_run: bool = False,
    verbose: bool = False,
    show_progress: bool = False,
    **options: Any,
) -> Report:
    """Optimises a model, and checks that its answers stay within tolerance.

    precision: int8 unless given; fp32 for target "onnx".
    target: "standalone" makes an artifact for fusebert itself; "onnxruntime" and "tensorflow" write the model for that
    framework again, with a fused operator for every encoder; "stock-onnxruntime" uses that framework's own kernels. A
    checkpoint becomes an ONNX file by "onnxruntime", "stock-onnxruntime" or, with ONNX's own operators, "onnx"; by
    "tensorflow" a SavedModel. By default a graph stays in its framework, unless an ONNX model is to become a folder; a
    checkpoint is made standalone, unless `out` is called .onnx.
    dry_run: only tells what would be made. verbose: tells more of what was found and made.

    Options of any target: threads; expected, sizes (heads, hidden) that the encoders must have; inputs as in `compare`;
    texts to compare on instead of random ids, by task, data and tokenizer as `accuracy` or `calibrate` take them.
    Of standalone: head, as in `load`. Of all but stock-onnxruntime: ranges of inputs, or the path of a file with them,
    as `calibrate` writes it: int8 becomes static. Of the fused targets: padding, what becomes of hidden positions:
    "auto", "skip", "first" or "compute". Of ONNX Runtime's targets: int32, int64 ids and masks become int32; float16,
    weights and graph become float16, inputs and outputs stay; length, inputs take that many tokens only. Of
    stock-onnxruntime: fast_gelu, the tanh GELU for every GELU. Of tensorflow: compact, int8 weights are stored as int8,
    and of a SavedModel only what its signatures need is kept.

    Raises DifferentError, and writes nothing, if the answers differ by more than the precision's tolerance."""
    source, out = open(path), Path(out)
    expected = {name: size for name, size in (options.pop("expected", None) or {}).items() if size}
    inputs = options.pop("inputs", None)
    texts = _texts(options.pop("task", None), options.pop("data", None))
    tokenizer = options.pop("tokenizer", None)
    if isinstance(source, Artifact):
        raise FusebertError(f"{source.path} is an artifact already; optimise the model that it was made from")
    name = target or default_target(source, out)
    precision = precision or ("fp32" if name == "onnx" else DEFAULT_PRECISION)
    chosen = make_target(name, {"precision": precision, **options})
    request = Request(
        source, out, chosen, expected, verify, overwrite, verbose, show_progress, inputs, texts, tokenizer
    )
    if isinstance(chosen, Standalone):
        if out.suffix in _FILES:
            raise FusebertError(f"{out} names a file, but a stand-alone model is a folder; choose another name")
        return plan_standalone(request) if dry_run else make_standalone(request)
    if isinstance(source, Checkpoint):
        return plan_exported(request) if dry_run else make_exported(request)
    if isinstance(chosen, PlainOnnx):
        raise FusebertError(f"{source.path} is a {source.kind}; ONNX's own operators are written of checkpoints only")
    fitting = OnnxFile if isinstance(chosen, FusedOnnx | StockOnnx) else TensorFlowSource
    if not isinstance(source, fitting):
        raise FusebertError(
            f"{source.path} is a {source.kind}, so it cannot be optimised for {target}; omit the target"
        )
    return plan_fused(request) if dry_run else make_fused(request)


def _texts(task: str | Path | None, data: str | Path | None) -> Task | None:
    """The texts of a task, or of a file with or without labels; none if nothing is given."""
    if task is None:
        return None if data is None else read_texts(Path(data))
    return find_task(task, data)


def default_target(source: Source, out: Path) -> str:
    """Who runs an optimised model if nothing is said."""
    if isinstance(source, TensorFlowSource):
        return "tensorflow"
    return "onnxruntime" if isinstance(source, OnnxFile | Checkpoint) and out.suffix == ".onnx" else "standalone"
