"""The commands that measure models: side by side, in time, on a task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fusebert.cli.app import (
    Fill,
    InputIds,
    InputMask,
    Json,
    ModelPath,
    ReportFile,
    SegmentIds,
    Threads,
    Tokenizer,
    app,
    tell,
)
from fusebert.cli.show import show, write_page

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
    samples: Annotated[int, typer.Option(min=1, help="Batches to compare, or texts of a task.")] = 100,
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
    task: Annotated[
        str | None, typer.Option(help="Texts instead of random ids: mrpc, sst2, stsb, or a file of your own.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The task's file.")] = None,
    tokenizer: Tokenizer = None,
    input_ids: InputIds = None,
    input_mask: InputMask = None,
    segment_ids: SegmentIds = None,
    fill: Fill = None,
    output_dir: Annotated[
        Path | None, typer.Option(help="Keep the inputs and the baseline's outputs here, as TensorProto files.")
    ] = None,
    threads: Threads = None,
    report_file: ReportFile = None,
    as_json: Json = False,
) -> None:
    """Run two models on the same inputs, random with every kind of padding or the texts of a task, and tell whether
    their answers are the same.

    Each is run by its own framework; artifacts are by fusebert. The exit code is 1 if the answers differ."""
    from fusebert.measure.compare import compare as work

    told = tell(input_ids, input_mask, segment_ids, fill)
    found = work(
        baseline, optimized, True, batch_size=batch_size, sequence_length=sequence_length, samples=samples,
        rtol=rtol, atol=atol, seed=seed, precision=precision, inputs=told, threads=threads, output_dir=output_dir,
        task=task, data=data, tokenizer=tokenizer,
    )  # fmt: skip
    report = found.report()
    write_page(report, report_file)
    show(report, as_json)
    if not found.same:
        raise typer.Exit(1)


# What bench takes.
Models = Annotated[
    list[Path] | None, typer.Argument(help="Models of any kind, each run by its own framework; default: one to try.")
]
BatchSizes = Annotated[
    list[str] | None, typer.Option("--batch-size", "-b", help="Sequences in a batch, several as 1,8.")
]
SequenceLengths = Annotated[
    list[str] | None,
    typer.Option("--sequence-length", "--seq-len", "-s", help="Tokens in a sequence, several as 16,128."),
]
ThreadCounts = Annotated[
    list[str] | None, typer.Option("--threads", "-n", help="Threads, several as 1,2; default: usable cores.")
]
Precisions = Annotated[
    list[str] | None, typer.Option(help="Also run by fusebert: fp32, bf16, int8, int8-bf16, several as fp32,int8.")
]
Quantization = Annotated[bool, typer.Option("--quantization", "-q", help="As --precision int8.")]
Bfloat16 = Annotated[bool, typer.Option("--bfloat16", help="As --precision bf16; with --quantization, int8-bf16.")]
Traced = Annotated[bool, typer.Option("--traced", help="Checkpoints also traced and frozen by torch, stock and fused.")]
Batches = Annotated[int, typer.Option(min=1, help="Different batches.")]
TestTimes = Annotated[
    int, typer.Option("--test-times", "-t", min=0, help="Times that each is run; 0: about 1000 calls in all.")
]
RunTime = Annotated[float | None, typer.Option(help="Seconds to run for instead, for each engine and size.")]
Warmup = Annotated[
    float | None, typer.Option(min=0, help="Seconds to run for before; default: a tenth of the run time, or once.")
]
Inclusive = Annotated[bool, typer.Option("--inclusive", help="Count the time to convert inputs.")]
AverageLength = Annotated[
    int | None,
    typer.Option("--average-sequence-length", "-a", min=1, help="Visible tokens of a sequence; default: all."),
]
RandomLength = Annotated[
    bool, typer.Option("--random-sequence-length", "-r", help="Let them vary around that, or else around half.")
]
OptLevel = Annotated[int, typer.Option(help="ONNX Runtime's optimisation: 0, 1, 2 or 99.")]
ResultsFolder = Annotated[
    Path | None, typer.Option(help="Folder for a file of the results, perf_results_*.txt; default: none is written.")
]


def _parts(words: list[str] | None) -> tuple[str, ...]:
    """fp32 int8 or fp32,int8."""
    return tuple(part for word in words or () for part in word.split(","))


def _whole_numbers(words: list[str] | None) -> tuple[int, ...]:
    """1 4 or 1,4."""
    try:
        return tuple(map(int, _parts(words)))
    except ValueError:
        raise typer.BadParameter(f"whole numbers are expected, such as 1 or 1,8, not {' '.join(words or ())}") from None


@app.command(epilog="Example: fusebert bench model.onnx optimized.onnx -b 1,8 -s 128")
def bench(
    models: Models = None,
    batch_size: BatchSizes = None,
    sequence_length: SequenceLengths = None,
    threads: ThreadCounts = None,
    precision: Precisions = None,
    quantization: Quantization = False,
    bfloat16: Bfloat16 = False,
    traced: Traced = False,
    samples: Batches = 10,
    test_times: TestTimes = 0,
    run_time: RunTime = None,
    warmup: Warmup = None,
    inclusive: Inclusive = False,
    average_sequence_length: AverageLength = None,
    random_sequence_length: RandomLength = False,
    opt_level: OptLevel = 99,
    seed: Seed = 3,
    input_ids: InputIds = None,
    input_mask: InputMask = None,
    segment_ids: SegmentIds = None,
    fill: Fill = None,
    output_dir: ResultsFolder = None,
    report_file: ReportFile = None,
    as_json: Json = False,
) -> None:
    """Measure models side by side, in turns: latency, its spread, sequences and real tokens in a second."""
    from fusebert.measure.bench import bench as work

    precisions = _parts(precision)
    if quantization or bfloat16:
        precisions += ("int8-bf16" if quantization and bfloat16 else "int8" if quantization else "bf16",)
    batches, lengths, counts = (_whole_numbers(words) for words in (batch_size, sequence_length, threads))
    told = tell(input_ids, input_mask, segment_ids, fill)
    report = work(
        models or (), batches, lengths, counts, output_dir, True,
        samples=samples, test_times=test_times, run_time=run_time, warmup=warmup, inclusive=inclusive,
        average_length=average_sequence_length, random_length=random_sequence_length,
        precisions=precisions, traced=traced, level=opt_level, seed=seed, inputs=told,
    )  # fmt: skip
    write_page(report, report_file)
    show(report, as_json)


@app.command(epilog="Example: fusebert accuracy ./my-classifier --task mrpc --data dev.tsv --precision fp32,int8")
def accuracy(
    models: Annotated[
        list[Path] | None,
        typer.Argument(help="Models of any kind; the first one is the baseline; default: one to try."),
    ] = None,
    task: Annotated[
        str | None, typer.Option(help="mrpc, sst2, stsb, or a file of your own: text, perhaps text2, label.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The task's file.")] = None,
    samples: Annotated[
        int | None, typer.Option(min=1, help="Number of examples, spread evenly over the file; default: all.")
    ] = None,
    precision: Annotated[
        list[str] | None,
        typer.Option(
            help="By fusebert: fp32, bf16, int8, int8-bf16, several as fp32,int8; default: all four for a single model."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", "-b", min=1, help="Texts in a batch.")] = 32,
    max_length: Annotated[int | None, typer.Option(min=2, help="Tokens that texts are cut to.")] = None,
    pooling: Annotated[str, typer.Option(help="For models without a head: mean, cls or max.")] = "mean",
    tokenizer: Tokenizer = None,
    input_ids: InputIds = None,
    input_mask: InputMask = None,
    segment_ids: SegmentIds = None,
    fill: Fill = None,
    in_torch: Annotated[
        bool, typer.Option("--in-torch", help="Checkpoints stay in torch; only their encoder is fusebert's.")
    ] = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write the results to this file, too.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a file of earlier results.")] = False,
    threads: Threads = None,
    report_file: ReportFile = None,
    as_json: Json = False,
) -> None:
    """Score a model on a task: by its own framework, then by fusebert in every precision, on the same texts."""
    from fusebert.measure.accuracy import accuracy as work

    precisions = _parts(precision) or None
    told = tell(input_ids, input_mask, segment_ids, fill)
    report = work(
        models or (), task, data, samples, csv, overwrite, True, precisions=precisions, batch_size=batch_size,
        threads=threads, tokenizer=tokenizer, max_length=max_length, pooling=pooling, inputs=told,
        in_torch=in_torch,
    )  # fmt: skip
    write_page(report, report_file)
    show(report, as_json)
