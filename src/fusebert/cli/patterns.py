"""The tools for graphs that no finder knows: arguments and exit codes (0 or 1) of the tools they follow."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from fusebert.cli.app import Json, app, finish
from fusebert.cli.show import show, show_error, show_text
from fusebert.errors import FusebertError


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
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace one of the same kind that is there.")]
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
    overwrite: Overwrite = False,
    log: Log = "WARN",
    as_json: Json = False,
) -> None:
    """Take a pattern out of a TensorFlow model: everything between barrier nodes and seed nodes."""
    from fusebert.recipes.extract import extract_pattern as work

    _check_log(log)
    given = (seed_nodes or [], barrier_nodes or [], barrier_ops or [])
    finish(as_json, lambda: work(model, output, *given, function, meta_graph, overwrite), failure=1)


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
    overwrite: Overwrite = False,
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
    given = (model, function, meta_graph, output or (), force, overwrite)
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
    overwrite: Overwrite = False,
    log: Log = "WARN",
    as_json: Json = False,
) -> None:
    """Put a recipe's node wherever its pattern is in a TensorFlow model. The exit code is 1 if it is nowhere."""
    from fusebert.recipes.replace import replace_pattern as work

    _check_log(log)
    attributes = ignore_attr or (), compare_attr or ()
    given = (model, recipe, output, meta_graph, *attributes, explain, force, verify, prune, overwrite)
    finish(as_json, lambda: work(*given), failure=1)


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
    overwrite: Overwrite = False,
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
    finish(as_json, lambda: work(model, output, settings, reset, overwrite), failure=1)
