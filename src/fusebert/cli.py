"""The commands: one per public verb. Each parses, calls, and hands the Report to `show`.

Exit codes: 0 done, 1 the answers differ, 2 anything the user can mend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fusebert.errors import DifferentError, FusebertError
from fusebert.report import Report
from fusebert.show import show, show_error, show_text

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


def _finish(as_json: bool, work: Callable[[], Report], failure: int = 2) -> Report:
    try:
        report = work()
    except FusebertError as error:
        show_error(str(error), as_json)
        raise typer.Exit(1 if isinstance(error, DifferentError) else failure) from None
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
    input_int32: Annotated[bool, typer.Option("--input-int32", help="ONNX: int64 ids and masks become int32.")] = False,
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
            fast_gelu=gpu_only, int32=input_int32, dry_run=dry_run, ranges=ranges,
            expected={"heads": num_heads, "hidden": hidden_size},
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


# ---- the tools for graphs that no finder knows: arguments and exit codes (0 or 1) of the tools they follow ----


class Listing(TyperCommand):
    """A command whose options -s, -b and -B take as many names as follow: -b a b is -b a -b b."""

    _lists = ("-s", "--seed-nodes", "-b", "--barrier-nodes", "-B", "--barrier-ops")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Repeats the option before every name."""
        spread: list[str] = []
        option, first = "", False
        for word in args:
            if word.startswith("-"):
                option, first = (word, True) if word in self._lists else ("", False)
            elif option and not first:
                spread.append(option)
            else:
                first = False
            spread.append(word)
        return super().parse_args(ctx, spread)


TensorFlowModel = Annotated[Path, typer.Argument(help="A SavedModel folder, its saved_model.pb, or a frozen graph.")]
MetaGraph = Annotated[int, typer.Option("--meta-graph", "-m", min=0, help="Which meta graph of a SavedModel.")]
Log = Annotated[str, typer.Option("--log", "-l", hidden=True, help="Taken, and without effect.")]


@app.command(
    cls=Listing, epilog="Example: fusebert extract-pattern MODEL -s layer_11/add_1 -b embed mask -B Const -o p.pb"
)
def extract_pattern(
    model: TensorFlowModel,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The pattern: text if it ends in .pbtxt, else binary.")
    ],
    seed_nodes: Annotated[
        list[str] | None, typer.Option("--seed-nodes", "-s", help="Nodes that the pattern ends with.")
    ] = None,
    barrier_nodes: Annotated[
        list[str] | None, typer.Option("--barrier-nodes", "-b", help="Nodes it begins after: its inputs.")
    ] = None,
    barrier_ops: Annotated[
        list[str] | None, typer.Option("--barrier-ops", "-B", help="Operations whose nodes all are such.")
    ] = None,
    function: Annotated[str | None, typer.Option("--function", "-f", help="Look inside this function.")] = None,
    meta_graph: MetaGraph = 0,
    log: Log = "WARN",
    as_json: Json = False,
) -> None:
    """Take a pattern out of a TensorFlow model: everything between barrier nodes and seed nodes."""
    from fusebert.recipes.extract import extract_pattern as work

    _check_log(log)
    given = (seed_nodes or [], barrier_nodes or [], barrier_ops or [])
    _finish(as_json, lambda: work(model, output, *given, function, meta_graph), failure=1)


def _check_log(level: str) -> None:
    if level not in ("DEBUG", "INFO", "WARN", "ERROR", "CRITICAL", "FATAL"):
        raise typer.BadParameter(f"{level!r} is none of DEBUG, INFO, WARN, ERROR, FATAL", param_hint="--log")


@app.command(epilog="Example: fusebert make-recipe pattern.pb recipe.pb --model MODEL")
def make_recipe(
    files: Annotated[
        list[Path],
        typer.Argument(help="PATTERN NODE_DEF RECIPE; with --model PATTERN RECIPE, or PATTERN alone with --print."),
    ],
    model: Annotated[
        Path | None, typer.Option(help="The model that the pattern is from: derive the node from it.")
    ] = None,
    function: Annotated[str | None, typer.Option("--function", "-f", help="Its function that has the pattern.")] = None,
    meta_graph: MetaGraph = 0,
    output: Annotated[
        list[str] | None,
        typer.Option(help="SEED=NAME:INDEX, the node's output that takes a seed's place; Bert's are known."),
    ] = None,
    print_node: Annotated[bool, typer.Option("--print", help="Print the node definition as text.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where the node is seen to compute something else.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Bundle a pattern with the node that takes its place: one written by hand, or derived by the finder."""
    from fusebert.recipes.recipe import make_recipe as work

    expected = (1, 2) if model is not None and print_node else (2,) if model is not None else (3,)
    if len(files) not in expected:
        wanted = "PATTERN RECIPE" if model is not None else "PATTERN NODE_DEF RECIPE (or --model MODEL)"
        raise typer.BadParameter(f"give {wanted}", param_hint="FILES")
    node_def = files[1] if model is None else None
    out = files[-1] if len(files) > 1 else None
    given = (model, function, meta_graph, output or (), force)
    try:
        report = work(files[0], out, node_def, *given)
    except FusebertError as error:
        show_error(str(error), as_json)
        raise typer.Exit(1) from None
    facts = {name: value for name, value in report.facts.items() if name != "node_def" or as_json}
    if print_node and not as_json:
        show_text(str(report.facts["node_def"]))
    else:
        show(replace(report, facts=facts), as_json)


@app.command(epilog="Example: fusebert replace-pattern MODEL -r recipe.pb -o MODEL/modified_saved_model.pb")
def replace_pattern(
    model: TensorFlowModel,
    recipe: Annotated[Path, typer.Option("--recipe", "-r", help="The recipe, binary or text.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A .pb file (of a SavedModel only the graph), or a folder.")
    ],
    meta_graph: MetaGraph = 0,
    ignore_attr: Annotated[list[str] | None, typer.Option(help="An attribute that need not be the same.")] = None,
    compare_attr: Annotated[
        list[str] | None, typer.Option(help="One that must be, though it is a remark: _output_shapes, _class, device.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also tell why other candidates were not taken.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare both in TensorFlow before writing.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Leave away functions that nothing refers to.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Also where the node is seen to compute something else.")
    ] = False,
    log: Log = "WARN",
    as_json: Json = False,
) -> None:
    """Put a recipe's node wherever its pattern is in a TensorFlow model. The exit code is 1 if it is nowhere."""
    from fusebert.recipes.replace import replace_pattern as work

    _check_log(log)
    given = (model, recipe, output, meta_graph, ignore_attr or (), compare_attr or (), explain, force, verify, prune)
    _finish(as_json, lambda: work(*given), failure=1)


@app.command(epilog="Example: fusebert configure-op MODEL -q -B -s 128")
def configure_op(
    model: TensorFlowModel,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .pb file or a folder; default: the model itself.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", "-r", help="Forget all attributes first.")] = False,
    mask_type: Annotated[str | None, typer.Option("--mask-type", "-m", help="int32, int64, float32 or bool.")] = None,
    quantization: Annotated[
        bool | None, typer.Option("--quantization/--no-quantization", "-q/-Q", help="8-bit products.")
    ] = None,
    bfloat16: Annotated[
        bool | None, typer.Option("--bfloat16/--no-bfloat16", "-b/-B", help="All else in bf16.")
    ] = None,
    layers: Annotated[int | None, typer.Option("--layers", "-l", min=1)] = None,
    hidden_size: Annotated[int | None, typer.Option("--hidden-size", "-h", min=1)] = None,
    num_attention_heads: Annotated[int | None, typer.Option("--num-attention-heads", "-a", min=1)] = None,
    intermediate_size: Annotated[int | None, typer.Option("--intermediate-size", "-i", min=1)] = None,
    max_seq_len: Annotated[
        int | None, typer.Option("--max-seq-len", "-s", min=1, help="A hint; any length runs.")
    ] = None,
    activation: Annotated[
        str | None, typer.Option("--activation", "-A", help="gelu_tanh, gelu_erf, gelu_quick or relu.")
    ] = None,
    calibrate: Annotated[
        bool | None, typer.Option("--calibrate/--no-calibrate", "-c/-C", help="Keep a factors file up to date.")
    ] = None,
    quant_factors_path: Annotated[
        str | None, typer.Option("--quant-factors-path", "-p", help="The factors file, as the running model sees it.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Of LayerNorm.")] = None,
    padding: Annotated[str | None, typer.Option(help="Hidden positions: compute, skip or first.")] = None,
    threads: Annotated[int | None, typer.Option(min=0, help="Threads of the op; 0: all it may use.")] = None,
    bert_op_lib: Annotated[Path | None, typer.Option(hidden=True, help="Not needed: nothing is run.")] = None,
    log: Annotated[str, typer.Option("--log", hidden=True, help="Taken, and without effect.")] = "INFO",
    as_json: Json = False,
) -> None:
    """Set attributes of every Bert node in a TensorFlow model, and check them. -h is --hidden-size here, not help."""
    from fusebert.recipes.configure import Settings
    from fusebert.recipes.configure import configure_op as work

    del bert_op_lib
    _check_log(log)
    settings = Settings(
        mask_type, quantization, bfloat16, layers, hidden_size, num_attention_heads, intermediate_size, max_seq_len,
        activation, calibrate, quant_factors_path, epsilon, padding, threads,
    )  # fmt: skip
    _finish(as_json, lambda: work(model, output, settings, reset), failure=1)


def main() -> None:
    """The console script."""
    app()
