"""Replace: a model and a Recipe -> the same model with the recipe's node in place of every occurrence of its pattern.
The rest of the model is unchanged; if the pattern does not occur, nothing is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fusebert.errors import DifferentError, FusebertError
from fusebert.formats import write
from fusebert.formats.tensorflow.edit import Editor, prune_functions
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.scope import Edge, Scope
from fusebert.recipes.equivalence import Attributes
from fusebert.recipes.locate import Locator
from fusebert.recipes.pattern import Occurrence, Output, Pattern, load
from fusebert.recipes.recipe import check_recipe, outputs_of, read_by
from fusebert.report import Report, Table
from fusebert.source import TensorFlowSource, open_result, open_tensorflow


class NotFoundError(FusebertError):
    """The model does not contain the pattern; nothing was written."""


@dataclass
class _Done:
    """Rows and notes of the report."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def replace_pattern(
    path: str | Path,
    recipe: str | Path,
    out: str | Path,
    meta_graph: int = 0,
    attributes: Attributes = Attributes(),  # noqa: B008 (frozen)
    explain: bool = False,
    force: bool = False,
    verify: bool = False,
    prune: bool = False,
    overwrite: bool = False,
) -> Report:
    """Writes `path` to `out` with the recipe's node in place of every occurrence of its pattern.

    attributes: those that are not compared, and annotations that are.
    explain: also report why other candidates were refused.
    force: use the recipe even if its node does not compute what its pattern does.
    verify: compare the answers of both models before anything is written.
    prune: remove functions that nothing refers to."""
    made, out = load(recipe, "Recipe"), Path(out)
    source = open_tensorflow(path)
    graphs = source.file.copy()
    if out.resolve() in {graphs.file.resolve(), Path(path).resolve()}:
        raise FusebertError(f"{out} is the model itself, which is never overwritten; choose another output path")
    write.check(out, graphs.replaces(out) if overwrite else None)
    meta = graphs.meta(meta_graph)
    pattern = Pattern(made.source_pattern, read_by(made.target_node))
    notes = check_recipe(Path(recipe), made, pattern, force)
    locator = Locator(graphs, pattern, attributes.ignored, attributes.compared)
    done = _Done(notes=notes)
    for scope in graphs.scopes(meta):
        places = locator.find(scope)
        if places:
            _Replacing(Editor(scope, graphs.payloads), made, pattern).apply(places, done)
    if not done.rows:
        raise NotFoundError(f"{path} does not contain the pattern; nearest candidate: {_nearest(locator, explain)}")
    if prune:
        done.notes.append(f"{prune_functions(meta)} functions that nothing refers to were removed.")
    if verify:
        done.notes += _verify(graphs, source, out)
    graphs.write(out, overwrite)
    tables = [Table("replaced", ("where", "node", "nodes_before", "inputs", "dead_nodes"), tuple(done.rows))]
    if explain:
        rows = tuple(
            (one.where, one.seed, f"{one.matched} of {one.of}", one.node, one.reason) for one in _others(locator)
        )
        tables.append(Table("not_replaced", ("where", "candidate", "matched", "stopped_at", "reason"), rows))
    facts = {"recipe": str(recipe), "occurrences": len(done.rows)}
    return Report(f"{path} -> {out}", facts, tuple(tables), tuple(done.notes))


def _nearest(locator: Locator, explain: bool) -> str:
    """The nearest candidate; with `explain`, the nearest three."""
    wanted = locator.pattern.nodes[locator.pattern.roots[0]].op
    candidates = "; next: ".join(map(str, _others(locator)[: 3 if explain else 1]))
    return candidates or f"none, because the model has no {wanted}, with which the pattern ends"


def _others(locator: Locator) -> list[Any]:
    return sorted(locator.refused, key=lambda one: -one.matched)[:10]


def _verify(graphs: TensorFlowFile, source: TensorFlowSource, out: Path) -> list[str]:
    """Compares the answers of both models, run by TensorFlow if installed; raises DifferentError if they differ."""
    from fusebert.measure.compare import compare

    with write.beside(out) as place:
        made = place / ("model" if graphs.kind == "SavedModel" else "model.pb")
        graphs.write(made)
        same = compare(source, open_result(made, source))
        if not same.same:
            raise DifferentError(f"{source.path}: with the recipe's node: {same.facts['verdict']}; nothing was written")
    compared = f"Compared with the original, both run by {same.run_by}: the answers agree within tolerance."
    return [compared, *same.notes]


class _Replacing:
    """The replacement of occurrences in one scope."""

    def __init__(self, editor: Editor, recipe: Any, pattern: Pattern) -> None:
        self._editor, self._scope, self._recipe, self._pattern = editor, editor.scope, recipe, pattern
        self._outputs = outputs_of(recipe, pattern, bool(self._scope.function))

    def apply(self, places: Sequence[Occurrence], done: _Done) -> None:
        """Adds the new node for each occurrence, connects its consumers, and removes the nodes that are no longer
        needed."""
        scope, editor = self._scope, self._editor
        inside: dict[str, str] = {}  # removed node -> new node
        instead: dict[str, str] = {}  # seed -> tensor that replaces it
        names: list[str] = []
        for place in places:
            name = self._free_name([*scope.nodes, *scope.arguments, *names])
            names.append(name)
            inside |= dict.fromkeys(place.inside, name)
            for seed, output in self._outputs.items():
                instead[place.nodes[seed]] = _tensor(scope, name, output)
        for place, name in zip(places, names, strict=True):
            self._add(place, name)
        gone = {*inside, *(name for place in places for name in place.unread)}
        if scope.function:
            editor.rewire(instead, inside)
        else:  # the nodes of a main graph can be fetched by name, so a seed keeps its name
            gone -= set(instead)
            for seed, tensor in instead.items():
                editor.alias(seed, tensor)
            editor.rewire({}, {name: new for name, new in inside.items() if name in gone})
        dead = editor.drop(gone)
        for place, name in zip(places, names, strict=True):
            if place.unread:
                some = ", ".join(sorted(place.unread)[:3])
                done.notes.append(
                    f"{len(place.unread)} unread nodes that depend on the replaced nodes were removed too: {some}."
                )
            done.rows.append((scope.where, name, len(place.inside), len(self._recipe.target_node.input), len(dead)))

    def _free_name(self, taken: Iterable[str]) -> str:
        name, taken = self._recipe.target_node.name, set(taken)
        number = 1
        while name in taken:
            name, number = f"{self._recipe.target_node.name}_{number}", number + 1
        return str(name)

    def _add(self, place: Occurrence, name: str) -> None:
        """Adds the recipe's node with the control inputs, the device and the output shape of the nodes it replaces."""
        node = self._scope.messages.add()
        node.CopyFrom(self._recipe.target_node)
        node.name = name
        del node.input[:]
        node.input.extend(_bound(place.inputs, text) for text in self._recipe.target_node.input)
        controls = {
            c: None for n in sorted(place.inside) for c in self._scope.nodes[n].controls if c not in place.inside
        }
        node.input.extend(f"^{c}" for c in controls if f"^{c}" not in node.input)
        devices = {self._scope.nodes[n].message.device for n in place.inside}
        if not node.device and len(devices) == 1 and "GPU" not in (device := devices.pop()).upper():
            node.device = device
        if self._recipe.target_node.op == "Bert":
            shapes = self._scope.nodes[place.nodes[self._pattern.seeds[0]]].attribute("_output_shapes")
            kept = [entry for entry in node.attr if entry.key == "_output_shapes"]
            if shapes is not None and kept:
                kept[0].value.CopyFrom(shapes)


def _tensor(scope: Scope, name: str, output: Output) -> str:
    if scope.function:
        return f"{name}:{output.name}:{output.index}"
    return f"{name}:{output.number}" if output.number else name


def _bound(inputs: Mapping[Edge, Edge], text: str) -> str:
    """The tensor bound to an input of the recipe's node; the input may be named without its port."""
    wanted = Edge.of(text.removeprefix("^"))
    fitting = [found for edge, found in inputs.items() if edge == wanted] or [
        found for edge, found in inputs.items() if edge.node == wanted.node
    ]
    if len(set(fitting)) != 1:
        raise FusebertError(
            f"input {text!r} of the recipe's node is ambiguous; name one of {', '.join(e.text for e in fitting)}"
            if fitting
            else f"input {text!r} of the recipe's node is not an input of the pattern"
        )
    return f"^{fitting[0].node}" if text.startswith("^") else fitting[0].text
