"""The commands that make, run and describe models."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fusebert.cli.app import (
    Fill,
    HeadOption,
    InputIds,
    InputMask,
    Json,
    Memory,
    ModelPath,
    ReportFile,
    SegmentIds,
    Threads,
    Tokenizer,
    app,
    read_memory,
    tell,
)
from fusebert.cli.show import show, show_line, show_status, show_text, write_page
from fusebert.errors import FusebertError
from fusebert.report import Report


@app.command(epilog="Example: fusebert optimize ./my-bert -o ./my-bert-int8 --precision int8")
def optimize(
    model: Annotated[
        Path, typer.Argument(help="A Hugging Face checkpoint folder, an ONNX file, a SavedModel or a frozen graph.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder or file to write.")],
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, int8 (default) or int8-bf16; fp32 for onnx.")
    ] = None,
    aggressive: Annotated[
        bool,
        typer.Option(
            "--aggressive",
            help="As --precision int8-bf16: all that is not a product in bf16, LayerNorm and GELU too. What that costs "
            "is compared and shown.",
        ),
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(
            "--for",
            help="What will run it: standalone (fusebert itself), onnxruntime, stock-onnxruntime (its own kernels), "
            "tensorflow (of a checkpoint: a SavedModel), or for checkpoints onnx (anything that runs ONNX); default: a "
            "graph stays in its framework, a checkpoint becomes standalone, or onnxruntime if OUT is called .onnx.",
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
    compact: Annotated[
        bool, typer.Option("--compact", help="TensorFlow: store int8 weights as int8; only signatures are kept.")
    ] = False,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="ONNX: fix the input length; default: any.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="Tell more of what was found and replaced.")] = False,
    ranges: Annotated[Path | None, typer.Option(help="Static int8, with the ranges that calibrate wrote.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be replaced.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace one of the same kind that is there.")] = False,
    task: Annotated[
        str | None, typer.Option(help="Compare on the texts of a task: mrpc, sst2 or stsb with --data, or a file.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="Compare on the texts of this file; default: random ids.")] = None,
    tokenizer: Tokenizer = None,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare before writing.")] = True,
    input_ids: InputIds = None,
    input_mask: InputMask = None,
    segment_ids: SegmentIds = None,
    fill: Fill = None,
    threads: Threads = None,
    report_file: ReportFile = None,
    as_json: Json = False,
) -> None:
    """Optimise a model, and check that its answers stay within tolerance."""
    from fusebert.verbs.optimize import optimize as work

    if aggressive:
        if precision not in (None, "int8-bf16"):
            raise FusebertError(f"--aggressive is --precision int8-bf16, not {precision!r:.40}; leave one out")
        precision = "int8-bf16"
    options = {
        "head": head, "padding": padding, "threads": threads, "fast_gelu": fast_gelu, "int32": input_int32,
        "ranges": ranges, "float16": float16, "compact": compact, "length": sequence_length,
        "expected": {"heads": num_heads, "hidden": hidden_size},
        "inputs": tell(input_ids, input_mask, segment_ids, fill), "task": task, "data": data, "tokenizer": tokenizer,
    }  # fmt: skip
    report = work(
        model, out, precision, target, verify=verify, overwrite=overwrite, dry_run=dry_run, verbose=verbose,
        show_progress=True, **{name: value for name, value in options.items() if value not in (None, False)},
    )  # fmt: skip
    write_page(report, report_file)
    show(report, as_json)


@app.command(epilog='Example: fusebert run ./my-classifier "what a film" "what a waste"')
def run(
    model: ModelPath,
    texts: Annotated[
        list[str] | None, typer.Argument(help="The texts; - or nothing reads lines of standard input.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="A .txt, .jsonl, .csv, .tsv or .parquet file with the texts instead.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--column", "--columns", help="Its column with the texts, or two for pairs: a,b; default: text."),
    ] = None,
    pair: Annotated[
        bool, typer.Option("--pair", help="Texts are pairs: first and second, first and second, ...")
    ] = False,
    ids: Annotated[
        bool, typer.Option("--ids", help="Texts are token ids: '101 7592 102'; of columns: input_ids.")
    ] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Print one JSON object for each text; standard input is JSON lines, too.")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, int8 or int8-bf16; an artifact has its own.")
    ] = None,
    pooling: Annotated[
        str | None,
        typer.Option(help="For embeddings: mean, cls or max; default: what the folder says, or mean."),
    ] = None,
    head: HeadOption = None,
    tokenizer: Tokenizer = None,
    attention: Annotated[
        str | None, typer.Option(help="fp32, bf16 or int8: what attention is computed in; default: what the plan says.")
    ] = None,
    fingerprint: Annotated[
        bool, typer.Option("--fingerprint", help="Only tell the vector space: vectors of equal ones may be mixed.")
    ] = False,
    threads: Threads = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Run a model on texts: labels, entities, answers, masked words, or embeddings with their similarities."""
    from fusebert.verbs import run as verb

    settings = verb.Settings(precision, pooling, head, threads, tokenizer, attention, read_memory(memory))
    if fingerprint:
        show(verb.tell_space(model, settings), as_json)
        return
    inputs = _inputs(texts or [], file, columns, pair, ids, ".jsonl" if jsonl else ".txt")
    if not jsonl:
        show(verb.run(model, inputs, settings, vectors=as_json), as_json)
        return
    runner = verb.Runner(settings.load(model), pooling)
    for found in runner.objects(inputs):
        show_line(found)
    for note in runner.notes():
        show_status(note)


def _inputs(texts: list[str], file: Path | None, columns: str | None, pair: bool, ids: bool, stdin: str) -> Any:
    """What `run` is to run on: words of the command line, or rows of a file or of standard input."""
    from fusebert.verbs import run as verb

    if texts and texts != ["-"] and file is not None:
        raise typer.BadParameter("texts are given, and a file too; give one of them", param_hint="--file")
    if file is None and (texts == ["-"] or not texts):
        if not texts and (sys.stdin is None or sys.stdin.isatty()):
            raise typer.BadParameter("none is given; give some, --file FILE, or - to read lines", param_hint="texts")
        file = Path("-")
    if file is not None:
        inputs = verb.read_inputs(file, tuple(columns.split(",")) if columns else (), ids, stdin)
    elif columns:
        raise typer.BadParameter("only files have columns", param_hint="--column")
    else:
        inputs = (verb.read_ids(text, "--ids") for text in texts) if ids else iter(texts)
    return pairs(list(inputs)) if pair else inputs


def pairs(texts: list[Any]) -> list[tuple[str, str]]:
    """Texts two by two."""
    if len(texts) % 2 or not all(isinstance(text, str) for text in texts):
        raise FusebertError(f"--pair: pairs need an even number of texts, not {len(texts)}")
    return list(zip(texts[::2], texts[1::2], strict=True))


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
    pattern: Annotated[
        bool, typer.Option("--pattern", help="TensorFlow: print the extract-pattern command of each encoder instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tell what a model is: family, sizes, precision plan, bytes; or a graph, and the encoders found in it."""
    from fusebert.recipes.propose import propose
    from fusebert.verbs.inspect import inspect as work

    if pattern:
        commands = propose(model)
        show(Report(str(model), {"commands": commands}), True) if as_json else show_text("\n".join(commands))
        return

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
    report_file: ReportFile = None,
    as_json: Json = False,
) -> None:
    """Observe the ranges of a model's inner values on texts, for static int8: optimize --ranges."""
    from fusebert.measure.calibrate import calibrate as work

    report = work(
        model, data, out, overwrite, True, samples=samples, method=method, percentile=percentile, form=form,
        tokenizer=tokenizer, threads=threads,
    )  # fmt: skip
    write_page(report, report_file)
    show(report, as_json)


@app.command(epilog="Example: fusebert doctor --json")
def doctor(as_json: Json = False) -> None:
    """Tell what this machine can do: cores, caches, instruction sets, and run the fused operator in every framework."""
    from fusebert.verbs.doctor import doctor as work

    show(work(), as_json)


@app.command(epilog="Example: fusebert explore ./saved_model")
def explore(
    model: Annotated[Path, typer.Argument(help="An ONNX file, a SavedModel or a frozen graph.")],
    other: Annotated[Path | None, typer.Argument(help="One to show beside it, such as the optimised model.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Where the page is; 0: any free port.")] = 8765,
    browser: Annotated[bool, typer.Option("--browser", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the page shows, and end.")] = False,
) -> None:
    """Show a model's graph on a local page: blocks, tensors, how the encoder was matched, and patterns to pick."""
    from fusebert import explore as work

    models = [work.Shown(path) for path in (model, other) if path is not None]
    if as_json:
        show_line([one.data for one in models])
        return
    work.explore(models, port, show_status, browser)
