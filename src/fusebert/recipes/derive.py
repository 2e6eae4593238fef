"""Derive: a Pattern and the model it is from -> the node definition that takes its place, told by the finder: which
input is the embeddings, which the mask, which weight is which, and what the encoder's settings are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.tensorflow.bert_op import WEIGHTS, precision_types, typed
from fusebert.formats.tensorflow.file import open_file
from fusebert.formats.tensorflow.messages import message, set_attribute
from fusebert.formats.tensorflow.scope import Edge, Scope
from fusebert.formats.tensorflow.types import RESOURCE, dtype_name
from fusebert.match import Finding, FoundEncoder, Match, computed, find, hiding_value, is_flat
from fusebert.ops.graph import Array, Graph
from fusebert.recipes.locate import Locator
from fusebert.recipes.pattern import Occurrence, Output, Pattern
from fusebert.rewrite.bert import Reach, call_of, encoder_attributes

NAME = "fused_bert"
_HIDDEN = -100.0  # from here on exp() leaves nothing of a score
_BOOLEAN = (
    "Equal",
    "NotEqual",
    "Less",
    "LessEqual",
    "Greater",
    "GreaterEqual",
    "LogicalAnd",
    "LogicalOr",
    "LogicalNot",
)


@dataclass(frozen=True)
class Derived:
    """A node definition, which of its outputs takes which seed's place, and where its inputs are in the model."""

    node: Any
    outputs: Mapping[str, Output]
    where: str


def derive(pattern: Pattern, model: str | Path, function: str | None = None, meta_graph: int = 0) -> Derived:
    """The node definition for a pattern that is in `model`, perhaps only looked for in one function."""
    graphs = open_file(model)
    if graphs.kind == "SavedModel" and graphs.folder is None:
        raise FusebertError(f"{model}: its variables are needed; give the SavedModel folder")
    meta = graphs.meta(meta_graph)
    scopes = [graphs.scope(meta, function)] if function else list(graphs.scopes(meta))
    locator = Locator(graphs, pattern)
    places = [place for scope in scopes for place in locator.find(scope, protect=False)]
    if not places:
        raise FusebertError(f"{model}: the pattern is not in it; nearest was {locator.nearest() or 'nothing'}")
    graph = graphs.graph(meta)
    finding = find(graph)
    if not finding.encoders:
        raise UnsupportedError(f"{model}: no encoder was found: {'; '.join(map(str, finding.misses))}")
    reasons = []
    for place in places:
        for found in finding.encoders:
            if found.function == place.scope.function:
                try:
                    return _Derivation(pattern, place, graph, finding, found).run()
                except UnsupportedError as error:
                    reasons.append(str(error))
    where = ", ".join(found.function or "main graph" for found in finding.encoders)
    raise UnsupportedError(f"{model}: {reasons[0] if reasons else f'the encoder that was found is in {where}'}")


class _Derivation:
    """One occurrence of the pattern against one encoder."""

    def __init__(
        self, pattern: Pattern, place: Occurrence, graph: Graph, finding: Finding, found: FoundEncoder
    ) -> None:
        self._pattern, self._place, self._finding, self._found = pattern, place, finding, found
        self._raised = finding.raised
        body = graph.functions[found.function] if found.function else graph
        self._outputs = {node.name: node.outputs for node in body.nodes}
        self._path, self._arguments = call_of(finding, found.function, body, found.output)
        self._inputs = {self._flat(found): wanted for wanted, found in place.inputs.items()}  # tensor -> in the pattern
        handles = {self._flat(edge) for edge in place.inputs.values() if _is_handle(place.scope, edge)}
        self._reach = Reach(finding, found, [tensor for tensor in self._inputs if tensor not in handles])

    def _flat(self, edge: Edge) -> str:
        """What a tensor is called in the flat graph."""
        if edge.node in self._place.scope.arguments:
            return self._arguments.get(edge.node, "")
        return self._path + (edge.text if edge.output else f"{edge.node}:{edge.index}")

    def run(self) -> Derived:
        ends, flat = self._ends()
        last = max(ends.values())
        first, rows = self._begin(last, flat)
        layers = range(first, last + 1)
        weights = [name for number in layers for name in self._weights(number)]
        mask, additive, hides = self._mask(self._found.layers[first])
        taps = len(ends) > 1
        node = message("NodeDef")
        node.name, node.op = NAME, "BertHiddenStates" if taps else "Bert"
        node.input.extend(edge.text for edge in (rows, mask, *weights))
        settings = encoder_attributes(self._found, layers) | precision_types("fp32")
        settings |= {"MaskT": self._type(mask), "NumWeights": len(weights)}
        if additive:
            settings["AdditiveMask"] = True
        elif hides is not None and hides != -10000:
            settings["MaskValue"] = float(np.float32(hides))
        if taps:
            settings["NumHiddenStates"] = len(layers)
        _set(node, settings, outputs=1 + len(layers) if taps else 1)
        outputs = {
            seed: Output("encoded", 0, 0) if at == last else Output("hidden_states", at - first, 1 + at - first)
            for seed, at in ends.items()
        }
        return Derived(node, outputs, self._place.scope.where)

    def _ends(self) -> tuple[dict[str, int], bool]:
        """Which layer each seed is the result of, and how it is laid out."""
        ends: dict[str, int] = {}
        layouts = set()
        for seed in self._pattern.seeds:
            name = self._place.nodes[seed]
            for tensor in (self._path + output for output in self._outputs.get(name, ())):
                for number, match in enumerate(self._found.layers):
                    if (flat := is_flat(self._raised, tensor, match.output)) is not None:
                        ends[seed] = number
                        layouts.add(flat)
            if seed not in ends:
                raise UnsupportedError(f"seed {seed} is not what a layer of the encoder gives ({self._found.output})")
        if len(layouts) != 1 or len(set(ends.values())) != len(ends):
            raise UnsupportedError("seeds are laid out differently, or are the same layer's")
        return ends, layouts.pop()

    def _begin(self, last: int, flat: bool) -> tuple[int, Edge]:
        """The first layer, and the input of the pattern that goes into it."""
        for number in reversed(range(last + 1)):
            value = self._found.layers[number].bindings["x"]
            for tensor, edge in self._inputs.items():
                if is_flat(self._raised, tensor, value) is flat:
                    return number, edge
        shape = "(batch * length, hidden)" if flat else "(batch, length, hidden)"
        raise UnsupportedError(
            f"no input of the pattern is what goes into the encoder ({self._found.input}) as {shape}"
        )

    def _weights(self, number: int) -> Iterator[Edge]:
        for part, kind in WEIGHTS:
            tensor = self._reach.weight(number, part, kind)
            if tensor is None:
                source = self._found.weights[number].get(f"{part}.{kind}")
                known = f" ({source.name})" if source is not None else ""
                raise UnsupportedError(
                    f"no input of the pattern has the {kind} of {part} in layer {number}{known} as the op takes it; "
                    "use fusebert optimize, which makes constants where they are missing"
                )
            yield self._inputs[tensor]

    def _mask(self, layer: Match) -> tuple[Edge, bool, float | None]:
        """The input that is the mask, whether it is added as it is, and what it adds to scores that it hides."""
        added = layer.bindings["mask"]
        if added is None:
            raise UnsupportedError(
                "the encoder has no mask, which the node needs; use fusebert optimize, which makes one"
            )
        shown = [computed(self._raised.graph, added, probe) for probe in self._raised.probes]
        additive = None
        for tensor, edge in self._inputs.items():
            if tensor in self._raised.graph.weights or not tensor:
                continue
            kinds = {self._mask_kind(tensor, i, array) for i, array in enumerate(shown)}
            if kinds == {"rows"}:
                return edge, False, hiding_value(self._raised, added)
            if kinds == {"additive"}:
                additive = edge
        if additive is not None:
            return additive, True, None
        raise UnsupportedError(
            "no input of the pattern is the mask: put a barrier where it is ones and zeros, or where it is added to "
            "the scores"
        )

    def _mask_kind(self, tensor: str, probe: int, added: Array) -> str:
        """Whether a tensor has ones where nothing is added, or is what is added."""
        try:
            array = computed(self._finding.translated, tensor, self._raised.probes[probe])
        except FusebertError:
            return ""
        if array.ndim not in (2, 3, 4) or array.dtype.kind not in "ifb" or array.shape[-1] != added.shape[-1]:
            return ""
        wide = array.reshape(array.shape[0], *(1,) * (4 - array.ndim), *array.shape[1:])
        four = added.reshape((1,) * (4 - added.ndim) + added.shape)
        try:
            wide, four = np.broadcast_arrays(wide, four)
        except ValueError:
            return ""
        if np.array_equal(wide.astype(np.float32), (four > _HIDDEN).astype(np.float32)):
            return "rows"
        return "additive" if np.array_equal(wide, four) else ""

    def _type(self, mask: Edge) -> str:
        found = next(found for wanted, found in self._place.inputs.items() if wanted == mask)
        scope = self._place.scope
        if found.node in scope.arguments:
            return dtype_name(scope.arguments[found.node])
        node = scope.nodes[found.node]
        if node.op in _BOOLEAN:
            return "bool"
        for key in ("DstT", "dtype", "out_type", "T"):
            if (value := node.attribute(key)) is not None:
                return dtype_name(value.type)
        raise UnsupportedError(f"the type of the mask {found.text} is not known")


def _is_handle(scope: Scope, edge: Edge) -> bool:
    """Whether a tensor is a variable itself, and not its numbers."""
    if edge.node in scope.arguments:
        return scope.arguments[edge.node] == RESOURCE
    return edge.node in scope.nodes and scope.nodes[edge.node].op == "VarHandleOp"


def _set(node: Any, settings: Mapping[str, Any], outputs: int) -> None:
    for key, value in sorted(typed(settings).items()):
        set_attribute(node.attr.add(key=key).value, value)
    shapes = node.attr.add(key="_output_shapes").value.list.shape
    for _ in range(outputs):
        shapes.add().unknown_rank = True
