"""Patterns: nodes that were picked -> the pattern that they enclose, the command that extracts it, and the recipe that
is derived from it, by the same functions as the commands."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.recipes.extract import extract_pattern, pattern_of
from fusebert.recipes.propose import Proposal
from fusebert.recipes.recipe import make_recipe
from fusebert.source import GraphSource, TensorFlowSource

FILES = ("pattern.pb", "recipe.pb")


def read_picked(body: Any) -> Proposal:
    """What a page says was picked, checked."""
    if not isinstance(body, dict):
        raise FusebertError("an object with seeds, barriers, barrier_ops and function is expected")
    lists = [body.get(name, []) for name in ("seeds", "barriers", "barrier_ops")]
    function = body.get("function", "")
    good = all(isinstance(one, list) and all(isinstance(name, str) for name in one) for one in lists)
    if not good or not isinstance(function, str):
        raise FusebertError("seeds, barriers and barrier_ops are lists of names, and function is a name")
    seeds, barriers, ops = (tuple(one) for one in lists)
    return Proposal(seeds, barriers, ops, function)


def enclose(source: GraphSource, picked: Proposal) -> dict[str, Any]:
    """The nodes inside, the inputs, and the command; or why there is no such pattern yet."""
    graphs = _tensorflow(source).file
    told: dict[str, Any] = {"command": picked.command(source.path)}
    try:
        scope = graphs.scope(graphs.meta(0), picked.function or None)
        pattern = pattern_of(graphs, scope, picked.seeds, picked.barriers, picked.barrier_ops)
    except FusebertError as error:
        return {**told, "error": str(error), "inside": [], "inputs": []}
    inside = [node.name for node in (*pattern.seed_nodes, *pattern.internal_nodes)]
    return {**told, "error": "", "inside": inside, "inputs": list(pattern.inputs)}


def make_files(source: GraphSource, picked: Proposal, wanted: str) -> tuple[dict[str, Any], bytes]:
    """Runs extract-pattern, and for recipe.pb make-recipe: what they tell, and the file."""
    with tempfile.TemporaryDirectory() as folder:
        pattern, recipe = (Path(folder) / name for name in FILES)
        extract_pattern(
            _tensorflow(source), pattern, picked.seeds, picked.barriers, picked.barrier_ops, picked.function or None
        )
        if wanted == FILES[0]:
            return {}, pattern.read_bytes()
        report = make_recipe(pattern, recipe, model=_tensorflow(source), function=picked.function or None)
        facts = {name: value for name, value in report.facts.items() if name not in ("pattern", "node_from")}
        return {**facts, "notes": list(report.notes)}, recipe.read_bytes()


def _tensorflow(source: GraphSource) -> TensorFlowSource:
    if not isinstance(source, TensorFlowSource):
        raise FusebertError(f"{source.path} is a {source.kind}; patterns are made of TensorFlow models")
    return source
