"""Recipe: a Pattern and a node definition, written by hand or derived by the finder -> a checked Recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, suggest
from fusebert.formats.tensorflow.bert_op import OPS, OUTPUTS, PER_LAYER, check_node
from fusebert.formats.tensorflow.messages import message
from fusebert.formats.tensorflow.scope import Edge
from fusebert.recipes.contradictions import contradictions, mask_notes
from fusebert.recipes.derive import derive
from fusebert.recipes.pattern import Output, Pattern, load, save, to_text
from fusebert.report import Report
from fusebert.source import TensorFlowSource


def make_recipe(
    pattern: str | Path,
    out: str | Path | None,
    node_def: str | Path | None = None,
    model: str | Path | TensorFlowSource | None = None,
    function: str | None = None,
    meta_graph: int = 0,
    outputs: Sequence[str] = (),
    force: bool = False,
    overwrite: bool = False,
) -> Report:
    """Writes a recipe; the report's fact `node_def` is the recipe's node as text.

    node_def: a file with the node definition. model: derive the node from this model, which contains the pattern.
    outputs: the output that replaces each seed, as SEED=NAME:INDEX or SEED=NAME:INDEX:NUMBER (its number among all).
    force: write the recipe even if its node does not compute what its pattern does."""
    found = load(pattern, "Pattern")
    if (node_def is None) == (model is None):
        raise FusebertError("give either a node definition or --model, the model to derive it from")
    recipe = message("Recipe")
    recipe.source_pattern.CopyFrom(found)
    where = str(node_def)
    given: dict[str, Output] = {}
    if model is not None:
        derived = derive(Pattern(found, found.inputs), model, function, meta_graph)
        recipe.target_node.CopyFrom(derived.node)
        given, where = dict(derived.outputs), f"{model}, {derived.where}"
    else:
        recipe.target_node.CopyFrom(load(str(node_def), "NodeDef"))
    given |= dict(_output(text) for text in outputs)
    indexed = Pattern(found, read_by(recipe.target_node))
    _check_seeds(given, indexed)
    if outputs or len(indexed.seeds) > 1:
        for seed, output in given.items():
            recipe.outputs.add(seed=seed, name=output.name, index=output.index, number=output.number)
    notes = check_recipe(Path(pattern if node_def is None else node_def), recipe, indexed, force)
    outputs_of(recipe, indexed, False)
    _strip(recipe, indexed)
    if out is not None:
        save(Path(out), recipe, overwrite)
    node = recipe.target_node
    facts = {
        "pattern": str(pattern), "node_from": where, "op": node.op, "inputs": len(node.input),
        "pattern_nodes": len(indexed.nodes), "pattern_inputs": len({edge.node for edge in indexed.inputs}),
        "constants_compared": len(indexed.constants), "node_def": to_text(node),
    }  # fmt: skip
    if node.op in OPS:
        facts["layers"] = (len(node.input) - 2) // PER_LAYER
    return Report(f"{pattern} -> {out or 'nothing was written'}", facts, (), tuple(notes))


def check_recipe(path: Path, recipe: Any, pattern: Pattern, force: bool = False) -> list[str]:
    """Refuses a recipe whose node cannot replace its pattern; returns notes for the report."""
    target, notes = recipe.target_node, []
    names = {edge.node for edge in pattern.inputs}
    if not target.input:
        raise FusebertError(f"{path}: {target.name} ({target.op}) has no inputs")
    for name in target.input:
        if Edge.of(name.removeprefix("^")).node not in names:
            raise FusebertError(
                f"{path}: {target.name} reads {name!r}, which is not an input of the pattern{suggest(name, names)}"
            )
    if target.op in OPS:
        check_node(target)
        for problem in contradictions(recipe.source_pattern, target):
            if not force:
                raise FusebertError(f"{path}: {problem}; to use it anyway: --force")
            notes.append(f"The node does not compute what the pattern does: {problem}.")
        notes += mask_notes(recipe.source_pattern, target)
    if not pattern.sources:
        notes.append("Constants were not compared: a pattern of the earlier tools stores only the names of its inputs.")
    read = read_by(target)
    weights = [name for name, one in pattern.sources.items() if one.op == "ReadVariableOp" and name not in read]
    if weights:
        notes.append(
            f"{target.name} does not read {len(weights)} variables that the pattern reads, such as {weights[0]}."
        )
    outputs_of(recipe, pattern, False)
    return notes


def read_by(node: Any) -> set[str]:
    """The nodes that a recipe's node reads or has as control inputs."""
    return {Edge.of(name.removeprefix("^")).node for name in node.input}


def outputs_of(recipe: Any, pattern: Pattern, in_function: bool) -> dict[str, Output]:
    """The output of the recipe's node that replaces each seed."""
    given = {one.seed: Output(one.name, one.index, one.number) for one in recipe.outputs}
    target = recipe.target_node
    if not given and len(pattern.seeds) == 1:
        given = {pattern.seeds[0]: Output(OUTPUTS.get(target.op, ("",))[0], 0, 0)}
    for seed in pattern.seeds:
        if seed not in given:
            raise FusebertError(
                f"the recipe does not say which output of {target.name} replaces {seed}; make it with make-recipe "
                f"--output {seed}=NAME:0"
            )
        if in_function and not given[seed].name:
            raise FusebertError(
                f"the recipe does not name the output of {target.op}, needed inside a function; make the recipe "
                f"with make-recipe --output {seed}=NAME:0"
            )
    return given


def _output(text: str) -> tuple[str, Output]:
    seed, _, port = text.rpartition("=")
    name, *numbers = port.split(":")
    try:
        index = int(numbers[0]) if numbers else 0
        return seed, Output(name, index, int(numbers[1]) if len(numbers) > 1 else index)
    except ValueError:
        raise FusebertError(
            f"--output {text!r} is malformed; use SEED=NAME:INDEX, as in layer_11/add_1=encoded:0"
        ) from None


def _check_seeds(given: dict[str, Output], pattern: Pattern) -> None:
    for seed in given:
        if seed not in pattern.seeds:
            raise FusebertError(f"{seed!r} is not a seed of the pattern; its seeds are {', '.join(pattern.seeds)}")


def _strip(recipe: Any, pattern: Pattern) -> None:
    """Removes the values of constants that the node reads: they are one model's weights and are not compared."""
    for one in recipe.source_pattern.input_nodes:
        if one.op == "Const" and one.name in pattern.free:
            del one.attr[:]
