"""Recipe: a Pattern and a node definition, written by hand or derived by the finder, -> a Recipe that was checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.messages import message
from fusebert.recipes.derive import derive
from fusebert.recipes.meaning import OPS
from fusebert.recipes.messages import load, save, to_text
from fusebert.recipes.pattern import Pattern
from fusebert.recipes.replace import Output, check_recipe, outputs_of, read_by
from fusebert.report import Report


def make_recipe(
    pattern: str | Path,
    out: str | Path | None,
    node_def: str | Path | None = None,
    model: str | Path | None = None,
    function: str | None = None,
    meta_graph: int = 0,
    outputs: Sequence[str] = (),
    force: bool = False,
    overwrite: bool = False,
) -> Report:
    """Writes a recipe; the fact `node_def` is its node as text.

    node_def: a file with the node definition. model: the model the pattern is from, to derive the node from instead.
    outputs: which output takes which seed's place, as SEED=NAME:INDEX or SEED=NAME:INDEX:NUMBER (its number among all).
    force: write a recipe whose node is seen not to compute what its pattern does."""
    found = load(pattern, "Pattern")
    if (node_def is None) == (model is None):
        raise FusebertError("give a node definition, or the model to derive it from (--model), and not both")
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
        facts["layers"] = (len(node.input) - 2) // 16
    return Report(f"{pattern} -> {out or 'nothing was written'}", facts, (), tuple(notes))


def _output(text: str) -> tuple[str, Output]:
    seed, _, port = text.rpartition("=")
    name, *numbers = port.split(":")
    try:
        index = int(numbers[0]) if numbers else 0
        return seed, Output(name, index, int(numbers[1]) if len(numbers) > 1 else index)
    except ValueError:
        raise FusebertError(f"--output {text!r} is not SEED=NAME:INDEX, such as layer_11/add_1=encoded:0") from None


def _check_seeds(given: dict[str, Output], pattern: Pattern) -> None:
    for seed in given:
        if seed not in pattern.seeds:
            raise FusebertError(f"{seed!r} is no seed of the pattern; those are {', '.join(pattern.seeds)}")


def _strip(recipe: Any, pattern: Pattern) -> None:
    """Takes out the numbers of weights that the node reads: they do not count, and belong to one model."""
    for one in recipe.source_pattern.input_nodes:
        if one.op == "Const" and one.name in pattern.free:
            del one.attr[:]
