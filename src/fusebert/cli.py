"""The commands: one per public verb. Each parses, calls, and hands the Report to `show`.

Exit codes: 0 done, 1 the answers differ, 2 anything the user can mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fusebert.errors import DifferentError, FusebertError
from fusebert.report import Report
from fusebert.show import show, show_error

app = typer.Typer(
    name="fusebert", help="BERT-family inference on CPUs: optimise a model, prove it, run it.", no_args_is_help=True,
    add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Threads to use; default: the cores this process may use.")
]
ModelPath = Annotated[
    Path, typer.Argument(help="A checkpoint folder, a fusebert artifact, an ONNX file, a SavedModel or a frozen graph.")
]
HeadOption = Annotated[
    str | None, typer.Option(help='Head instead of the one config.json names: "none" leaves it away.')
]


def _finish(as_json: bool, work: Callable[[], Report]) -> Report:
    try:
        report = work()
    except FusebertError as error:
        show_error(str(error), as_json)
        raise typer.Exit(1 if isinstance(error, DifferentError) else 2) from None
    show(report, as_json)
    return report


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
        str, typer.Option(help="Hidden positions in a fused operator: auto, skip, first or compute.")
    ] = "auto",
    num_heads: Annotated[int | None, typer.Option(help="Heads the encoder must have, to be sure.")] = None,
    hidden_size: Annotated[int | None, typer.Option(help="Width the encoder must have, to be sure.")] = None,
    gpu_only: Annotated[bool, typer.Option("--gpu-only", help="Stock kernels: tanh GELU for every GELU.")] = False,
    model_type: Annotated[str | None, typer.Option(help="Not needed: the exporter is found out.", hidden=True)] = None,
    ranges: Annotated[Path | None, typer.Option(help="Static int8, with the ranges that calibrate wrote.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be replaced.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare before writing.")] = True,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Optimise a model, and prove that its answers stayed the same."""
    from fusebert.optimize import optimize as work

    if model_type not in (None, "bert", "bert_tf", "bert_keras"):
        raise typer.BadParameter(f"{model_type!r} is none of bert, bert_tf, bert_keras", param_hint="--model-type")

    _finish(
        as_json,
        lambda: work(
            model, out, precision, target, head, padding, overwrite, verify, threads, show_progress=True,
            fast_gelu=gpu_only, dry_run=dry_run, expected={"heads": num_heads, "hidden": hidden_size}, ranges=ranges,
        ),
    )  # fmt: skip


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
    pooling: Annotated[str, typer.Option(help="For embeddings: mean, cls or max.")] = "mean",
    head: HeadOption = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run a model on texts: labels, entities, answers, masked words, or embeddings with their similarities."""
    from fusebert.run import run as work

    _finish(as_json, lambda: work(model, texts, pair, precision, pooling, head, threads, vectors=as_json))


@app.command(epilog="Example: fusebert inspect ./my-bert")
def inspect(
    model: Annotated[
        Path,
        typer.Argument(help="A checkpoint folder, a fusebert artifact, an ONNX file, a SavedModel or a frozen graph."),
    ],
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Also show the graph in large words, and every rule that was applied.")
    ] = False,
    everywhere: Annotated[
        bool, typer.Option("--everywhere", help="Also look into functions that no signature reaches: training copies.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tell what a model is: family, sizes, precision plan, bytes; or a graph, and the encoders found in it."""
    from fusebert.inspect import inspect as work

    _finish(as_json, lambda: work(model, nodes, everywhere))


InputIds = Annotated[str | None, typer.Option(help="The input with the token ids, where it cannot be found.")]
InputMask = Annotated[str | None, typer.Option(help="The input with the mask.")]
SegmentIds = Annotated[str | None, typer.Option(help="The input with the token types.")]
Seed = Annotated[int, typer.Option(min=0, help="For the random inputs.")]


@app.command(epilog="Example: fusebert compare model.onnx optimized.onnx --samples 20")
def compare(
    baseline: ModelPath,
    optimized: ModelPath,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Sequences in a batch; default: 1, or what a model insists on.")
    ] = None,
    sequence_length: Annotated[
        int | None, typer.Option(min=1, help="Tokens in a sequence; default: 128, or what the models take.")
    ] = None,
    samples: Annotated[int, typer.Option(min=1, help="Batches to compare.")] = 100,
    rtol: Annotated[
        float | None, typer.Option(help="Relative tolerance; default: 1e-3, or what the precision promises.")
    ] = None,
    atol: Annotated[
        float | None, typer.Option(help="Absolute tolerance; default: 1e-4, or what the precision promises.")
    ] = None,
    seed: Seed = 3,
    precision: Annotated[
        str | None, typer.Option(help="Let fusebert run OPTIMIZED, in fp32, bf16, int8 or int8-bf16.")
    ] = None,
    input_ids: InputIds = None,
    input_mask: InputMask = None,
    segment_ids: SegmentIds = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Keep the inputs and the baseline's outputs here, as TensorProto files.")
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run two models on the same random inputs with every kind of padding, and tell whether their answers are the same.

    Each is run by its own framework; artifacts are by fusebert. The exit code is 1 if the answers differ."""
    from fusebert.compare import compare as work

    told = {"ids": input_ids, "mask": input_mask, "types": segment_ids}
    report = _finish(
        as_json,
        lambda: work(
            baseline, optimized, True, batch_size=batch_size, sequence_length=sequence_length, samples=samples,
            rtol=rtol, atol=atol, seed=seed, precision=precision, inputs=told, threads=threads, output_dir=output_dir,
        ).report(),
    )  # fmt: skip
    if not report.facts["same"]:
        raise typer.Exit(1)


def _whole_numbers(words: list[str] | None) -> tuple[int, ...]:
    """1 4 or 1,4."""
    try:
        return tuple(int(part) for word in words or () for part in word.split(","))
    except ValueError:
        raise typer.BadParameter(f"whole numbers are expected, such as 1 or 1,8, not {' '.join(words or ())}") from None


@app.command(epilog="Example: fusebert bench model.onnx optimized.onnx -b 1,8 -s 128 --precision fp32,int8")
def bench(
    models: Annotated[list[Path], typer.Argument(help="Models of any kind; each is run by its own framework.")],
    batch_size: Annotated[
        list[str] | None, typer.Option("--batch-size", "-b", help="Sequences in a batch, several as 1,8.")
    ] = None,
    sequence_length: Annotated[
        list[str] | None,
        typer.Option("--sequence-length", "--seq-len", "-s", help="Tokens in a sequence, several as 16,128."),
    ] = None,
    threads: Annotated[
        list[str] | None, typer.Option("--threads", "-n", help="Threads, several as 1,2; default: usable cores.")
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="Also run by fusebert: fp32, bf16, int8, int8-bf16, several as fp32,int8.")
    ] = None,
    quantization: Annotated[bool, typer.Option("--quantization", "-q", help="As --precision int8.")] = False,
    bfloat16: Annotated[
        bool, typer.Option("--bfloat16", help="As --precision bf16; with --quantization, int8-bf16.")
    ] = False,
    traced: Annotated[bool, typer.Option("--traced", help="Checkpoints also traced and frozen by torch.")] = False,
    samples: Annotated[int, typer.Option(min=1, help="Different batches.")] = 10,
    test_times: Annotated[
        int, typer.Option("--test-times", "-t", min=0, help="Times that each is run; 0: about 1000 calls in all.")
    ] = 0,
    run_time: Annotated[
        float | None, typer.Option(help="Seconds to run for instead, for each engine and size.")
    ] = None,
    warmup: Annotated[
        float | None, typer.Option(min=0, help="Seconds to run for before; default: a tenth of the run time, or once.")
    ] = None,
    inclusive: Annotated[bool, typer.Option("--inclusive", help="Count the time to convert inputs.")] = False,
    average_sequence_length: Annotated[
        int | None,
        typer.Option("--average-sequence-length", "-a", min=1, help="Visible tokens of a sequence; default: all."),
    ] = None,
    random_sequence_length: Annotated[
        bool, typer.Option("--random-sequence-length", "-r", help="Let them vary around that, or else around half.")
    ] = False,
    opt_level: Annotated[int, typer.Option(help="ONNX Runtime's optimisation: 0, 1, 2 or 99.")] = 99,
    seed: Seed = 3,
    input_ids: InputIds = None,
    input_mask: InputMask = None,
    segment_ids: SegmentIds = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Folder for perf_results_*.txt; default: beside the first model.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure models side by side, in turns: latency, its spread, sequences and real tokens in a second."""
    from fusebert.bench import bench as work

    precisions = [part for word in precision or () for part in word.split(",")]
    if quantization or bfloat16:
        precisions.append("int8-bf16" if quantization and bfloat16 else "int8" if quantization else "bf16")
    batches, lengths, counts = (_whole_numbers(words) for words in (batch_size, sequence_length, threads))
    told = {"ids": input_ids, "mask": input_mask, "types": segment_ids}
    _finish(
        as_json,
        lambda: work(
            models, batches, lengths, counts, output_dir, True,
            samples=samples, test_times=test_times, run_time=run_time, warmup=warmup, inclusive=inclusive,
            average_length=average_sequence_length, random_length=random_sequence_length,
            precisions=tuple(precisions), traced=traced, level=opt_level, seed=seed, inputs=told,
        ),
    )  # fmt: skip


Tokenizer = Annotated[
    Path | None, typer.Option(help="Folder with tokenizer.json or vocab.txt; default: the model's, or beside it.")
]


@app.command(epilog="Example: fusebert accuracy ./my-classifier --task mrpc --data dev.tsv --precision fp32,int8")
def accuracy(
    models: Annotated[list[Path], typer.Argument(help="Models of any kind; the first one is the baseline.")],
    task: Annotated[
        str | None, typer.Option(help="mrpc, sst2, stsb, or a file of your own: text, perhaps text2, label.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The task's file.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="So many, from all over the file; default: all.")] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(help="By fusebert: fp32, bf16, int8, int8-bf16, several as fp32,int8; default: all of one model."),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1, help="Texts in a batch.")] = 32,
    max_length: Annotated[int | None, typer.Option(min=2, help="Tokens that texts are cut to.")] = None,
    pooling: Annotated[str, typer.Option(help="For models without a head: mean, cls or max.")] = "mean",
    tokenizer: Tokenizer = None,
    input_ids: InputIds = None,
    input_mask: InputMask = None,
    segment_ids: SegmentIds = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the results to this file, too.")] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Score a model on a task: by its own framework, then by fusebert in every precision, on the same texts."""
    from fusebert.accuracy import accuracy as work

    precisions = [part for word in precision for part in word.split(",")] if precision else None
    told = {"ids": input_ids, "mask": input_mask, "types": segment_ids}
    _finish(
        as_json,
        lambda: work(
            models, task, data, samples, precisions, batch_size, threads, tokenizer, max_length, pooling, csv, told,
            show_progress=True,
        ),
    )  # fmt: skip


@app.command(epilog="Example: fusebert calibrate ./my-bert --data texts.txt -o factors.json --method percentile")
def calibrate(
    model: ModelPath,
    data: Annotated[Path, typer.Option(help="Texts: one on a line, or a file that accuracy takes.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")],
    samples: Annotated[int | None, typer.Option(min=1, help="Texts, from all over the file; default: 512.")] = None,
    method: Annotated[str, typer.Option(help="minmax, percentile or entropy.")] = "minmax",
    percentile: Annotated[float, typer.Option(help="Share of the values that percentile keeps.")] = 99.99,
    form: Annotated[
        str | None,
        typer.Option("--format", help="ours (JSON) or bert-op (for the TensorFlow op); default: ours if it is .json."),
    ] = None,
    tokenizer: Tokenizer = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")] = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Observe the ranges of a model's inner values on texts, for static int8: optimize --ranges."""
    from fusebert.calibrate import calibrate as work

    _finish(
        as_json,
        lambda: work(
            model, data, out, samples, method, percentile, form, tokenizer, overwrite, threads, show_progress=True
        ),
    )


@app.command(epilog="Example: fusebert doctor --json")
def doctor(as_json: Json = False) -> None:
    """Tell what this machine can do: cores, instruction sets, frameworks."""
    from fusebert.doctor import doctor as work

    _finish(as_json, work)


def main() -> None:
    """The console script."""
    app()
