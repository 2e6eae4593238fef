"""The pattern tools for TensorFlow graphs, with the arguments of the earlier tools."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fusebert.cli.app import Json, app
from fusebert.cli.show import show, show_text

TensorFlowModel = Annotated[Path, typer.Argument(help="A SavedModel folder, its saved_model.pb, or a frozen graph.")]
MetaGraph = Annotated[int, typer.Option("--meta-graph", "-m", min=0, help="Which meta graph of a SavedModel.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing output of the same kind.")]


@app.command(epilog="Example: fusebert extract-pattern MODEL -s layer_11/add_1 -b embed mask -B Const -o p.pb")
def extract_pattern(
    model: TensorFlowModel,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Pattern file: text if its name ends in .pbtxt, else binary.")
    ],
    seed_nodes: Annotated[
        list[str] | None, typer.Option("--seed-nodes", "-s", help="Nodes at which the pattern ends: its outputs.")
    ] = None,
    barrier_nodes: Annotated[
        list[str] | None, typer.Option("--barrier-nodes", "-b", help="Nodes before which it begins: its inputs.")
    ] = None,
    barrier_ops: Annotated[
        list[str] | None, typer.Option("--barrier-ops", "-B", help="Operations of which every node is a barrier.")
    ] = None,
    function: Annotated[str | None, typer.Option("--function", "-f", help="Extract from this function.")] = None,
    meta_graph: MetaGraph = 0,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Extract a pattern from a TensorFlow model: all nodes between the barrier nodes and the seed nodes."""
    from fusebert.recipes.extract import extract_pattern as work

    given = (seed_nodes or [], barrier_nodes or [], barrier_ops or [])
    show(work(model, output, *given, function, meta_graph, overwrite), as_json)


@app.command(epilog="Example: fusebert make-recipe pattern.pb recipe.pb --model MODEL")
def make_recipe(
    files: Annotated[
        list[Path],
        typer.Argument(help="PATTERN NODE_DEF RECIPE; with --model: PATTERN RECIPE; with --model --print: PATTERN."),
    ],
    model: Annotated[
        Path | None, typer.Option(help="Derive the node from this model, from which the pattern was extracted.")
    ] = None,
    function: Annotated[str | None, typer.Option("--function", "-f", help="The function with the pattern.")] = None,
    meta_graph: MetaGraph = 0,
    output: Annotated[
        list[str] | None,
        typer.Option(help="SEED=NAME:INDEX: the node's output that replaces a seed; not needed for Bert."),
    ] = None,
    print_node: Annotated[bool, typer.Option("--print", help="Print the node definition as text.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Accept a node that does not compute what the pattern does.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Bundle a pattern with the node that replaces it, written by hand or derived by the finder."""
    from fusebert.recipes.recipe import make_recipe as work

    expected = (1, 2) if model is not None and print_node else (2,) if model is not None else (3,)
    if len(files) not in expected:
        wanted = "PATTERN RECIPE" if model is not None else "PATTERN NODE_DEF RECIPE (or --model MODEL)"
        raise typer.BadParameter(f"wrong number of files; give {wanted}", param_hint="FILES")
    node_def = files[1] if model is None else None
    out = files[-1] if len(files) > 1 else None
    given = (model, function, meta_graph, output or (), force, overwrite)
    report = work(files[0], out, node_def, *given)
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
        Path, typer.Option("--output", "-o", help="A .pb file (for a SavedModel, its graph alone) or a folder.")
    ],
    meta_graph: MetaGraph = 0,
    ignore_attr: Annotated[list[str] | None, typer.Option(help="An attribute that may differ.")] = None,
    compare_attr: Annotated[
        list[str] | None, typer.Option(help="An annotation that must be equal: _output_shapes, _class, device.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also show why other candidates were refused.")] = False,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the answers before anything is written.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove functions that nothing refers to.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Accept a node that does not compute what the pattern does.")
    ] = False,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Replace every occurrence of a recipe's pattern in a TensorFlow model by its node."""
    from fusebert.recipes.equivalence import Attributes
    from fusebert.recipes.replace import replace_pattern as work

    attributes = Attributes(ignore_attr or (), compare_attr or ())
    given = (model, recipe, output, meta_graph, attributes, explain, force, verify, prune, overwrite)
    show(work(*given), as_json)


@app.command(epilog="Example: fusebert configure-op MODEL -q -B -s 128")
def configure_op(
    model: TensorFlowModel,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A .pb file or a folder; default: change MODEL itself.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", "-r", help="First remove all attributes.")] = False,
    mask_type: Annotated[str | None, typer.Option("--mask-type", "-m", help="int32, int64, float32 or bool.")] = None,
    quantization: Annotated[
        bool | None, typer.Option("--quantization/--no-quantization", "-q/-Q", help="int8 products.")
    ] = None,
    bfloat16: Annotated[
        bool | None, typer.Option("--bfloat16/--no-bfloat16", "-b/-B", help="bf16 for everything else.")
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
        bool | None, typer.Option("--calibrate/--no-calibrate", "-c/-C", help="Update the ranges file in every call.")
    ] = None,
    quant_factors_path: Annotated[
        str | None, typer.Option("--quant-factors-path", "-p", help="Ranges file on the machine that runs the model.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="LayerNorm epsilon.")] = None,
    padding: Annotated[str | None, typer.Option(help="Masked positions: compute, skip or first.")] = None,
    threads: Annotated[int | None, typer.Option(min=0, help="Threads of the op; 0: all available cores.")] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Set attributes of every Bert node in a TensorFlow model, and check them. -h is --hidden-size here, not help."""
    from fusebert.recipes.configure import Settings
    from fusebert.recipes.configure import configure_op as work

    settings = Settings(
        mask_type, quantization, bfloat16, layers, hidden_size, num_attention_heads, intermediate_size, max_seq_len,
        activation, calibrate, quant_factors_path, epsilon, padding, threads,
    )  # fmt: skip
    show(work(model, output, settings, reset, overwrite), as_json)
