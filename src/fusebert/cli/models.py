"""The commands that make, run and describe models."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fusebert.cli.app import (
    Fill,
    HeadOption,
    InputIds,
    InputMask,
    Json,
    ModelPath,
    SegmentIds,
    Threads,
    Tokenizer,
    app,
    tell,
)
from fusebert.cli.show import show


@app.command(epilog="Example: fusebert optimize ./my-bert -o ./my-bert-int8 --precision int8")
def optimize(
    model: Annotated[
        Path, typer.Argument(help="A Hugging Face checkpoint folder, an ONNX file, a SavedModel or a frozen graph.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder or file to write.")],
    precision: Annotated[str, typer.Option(help="fp32, bf16, int8 or int8-bf16.")] = "int8",
    target: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="What will run it: standalone (fusebert itself), onnxruntime, stock-onnxruntime (its own kernels) or "
            "tensorflow; default: a graph stays in its framework, a checkpoint becomes standalone.",
        ),
    ] = None,
    head: HeadOption = None,
    padding: Annotated[
        str | None, typer.Option(help="Hidden positions in a fused operator: auto (default), skip, first or compute.")
    ] = None,
    num_heads: Annotated[int | None, typer.Option(help="Fail unless the encoder has this many heads.")] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Fail unless the encoder is this wide.")] = None,
    fast_gelu: Annotated[bool, typer.Option("--fast-gelu", help="Stock kernels: tanh GELU for every GELU.")] = False,
    input_int32: Annotated[bool, typer.Option("--input-int32", help="ONNX: int64 ids and masks become int32.")] = False,
    float16: Annotated[
        bool, typer.Option("--float16", help="ONNX: weights and graph in halves; inputs and outputs keep their types.")
    ] = False,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="ONNX: fix the input length; default: any.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell more of what was found and replaced.")] = False,
    ranges: Annotated[Path | None, typer.Option(help="Static int8, with the ranges that calibrate wrote.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be replaced.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace one of the same kind that is there.")] = False,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare before writing.")] = True,
    input_ids: InputIds = None,
    input_mask: InputMask = None,
    segment_ids: SegmentIds = None,
    fill: Fill = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Optimise a model, and check that its answers stay within tolerance."""
    from fusebert.verbs.optimize import optimize as work

    options = {
        "head": head, "padding": padding, "threads": threads, "fast_gelu": fast_gelu, "int32": input_int32,
        "ranges": ranges, "float16": float16, "length": sequence_length,
        "expected": {"heads": num_heads, "hidden": hidden_size},
        "inputs": tell(input_ids, input_mask, segment_ids, fill),
    }  # fmt: skip
    report = work(
        model, out, precision, target, verify=verify, overwrite=overwrite, dry_run=dry_run, verbose=verbose,
        show_progress=True, **{name: value for name, value in options.items() if value not in (None, False)},
    )  # fmt: skip
    show(report, as_json)


@app.command(epilog='Example: fusebert run ./my-classifier "what a film" "what a waste"')
def run(
    model: ModelPath,
    texts: Annotated[list[str], typer.Argument(help="The texts.")],
    pair: Annotated[
        bool, typer.Option("--pair", help="Texts are pairs: first and second, first and second, ...")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, int8 or int8-bf16; an artifact has its own.")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="For embeddings: mean, cls or max; default: what the folder says, or mean."),
    ] = None,
    head: HeadOption = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run a model on texts: labels, entities, answers, masked words, or embeddings with their similarities."""
    from fusebert.verbs.run import run as work

    show(work(model, texts, pair, precision, pooling, head, threads, vectors=as_json), as_json)


@app.command(epilog="Example: fusebert inspect ./my-bert")
def inspect(
    model: Annotated[
        Path,
        typer.Argument(help="A checkpoint folder, a fusebert artifact, an ONNX file, a SavedModel or a frozen graph."),
    ],
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Also show the simplified graph, and every rule that applied or refused.")
    ] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Also look into functions that no signature reaches: training copies.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tell what a model is: family, sizes, precision plan, bytes; or a graph, and the encoders found in it."""
    from fusebert.verbs.inspect import inspect as work

    show(work(model, nodes, everywhere), as_json)


@app.command(epilog="Example: fusebert calibrate ./my-bert --data texts.txt -o factors.json --method percentile")
def calibrate(
    model: ModelPath,
    data: Annotated[Path, typer.Option(help="Texts: one on a line, or a file that accuracy takes.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    samples: Annotated[int, typer.Option(min=1, help="Number of texts, spread evenly over the file.")] = 512,
    method: Annotated[str, typer.Option(help="minmax, percentile or entropy.")] = "minmax",
    percentile: Annotated[float, typer.Option(help="Share of the values that percentile keeps.")] = 99.99,
    form: Annotated[
        str | None,
        typer.Option("--format", help="ours (JSON) or bert-op (for the TensorFlow op); default: ours if it is .json."),
    ] = None,
    tokenizer: Tokenizer = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace one of the same kind that is there.")] = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Observe the ranges of a model's inner values on texts, for static int8: optimize --ranges."""
    from fusebert.measure.calibrate import calibrate as work

    report = work(
        model, data, out, overwrite, True, samples=samples, method=method, percentile=percentile, form=form,
        tokenizer=tokenizer, threads=threads,
    )  # fmt: skip
    show(report, as_json)


@app.command(epilog="Example: fusebert doctor --json")
def doctor(as_json: Json = False) -> None:
    """Tell what this machine can do: cores, instruction sets, frameworks."""
    from fusebert.verbs.doctor import doctor as work

    show(work(), as_json)
