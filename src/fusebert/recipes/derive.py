"""Derive: a Pattern and the model it was extracted from -> the node definition that replaces it. The finder identifies
the embeddings, the mask and the weights among the pattern's inputs, and the encoder's settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.tensorflow.bert_op import WEIGHTS, precision_types, typed
from fusebert.formats.tensorflow.messages import message, set_attribute
from fusebert.formats.tensorflow.scope import Edge, Scope
from fusebert.formats.tensorflow.types import RESOURCE, dtype_name
from fusebert.match import Finding, FoundEncoder, Layer, beyond_bert_layers, computed, find, hiding_value, is_flat
from fusebert.ops.graph import Array, Graph
from fusebert.recipes.locate import Locator
from fusebert.recipes.pattern import Occurrence, Output, Pattern
from fusebert.rewrite.bert import Reach, call_of, encoder_attributes
from fusebert.source import TensorFlowSource, open_tensorflow

NAME = "fused_bert"
HIDDEN = -100.0  # exp() of a score this low is negligible
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
    """A node definition, the output that replaces each seed, and the graph or function in which its inputs are."""

    node: Any
    outputs: Mapping[str, Output]
    where: str


def derive(
    pattern: Pattern, model: str | Path | TensorFlowSource, function: str | None = None, meta_graph: int = 0
) -> Derived:
    """The node definition for a pattern that occurs in `model`; `function` restricts the search to one function."""
    graphs = open_tensorflow(model).file
    if graphs.kind == "SavedModel" and graphs.folder is None:
        raise FusebertError(f"{model} has no variables beside it; give the SavedModel folder")
    meta = graphs.meta(meta_graph)
    scopes = [graphs.scope(meta, function)] if function else list(graphs.scopes(meta))
    locator = Locator(graphs, pattern)
    places = [place for scope in scopes for place in locator.find(scope, protect=False)]
    if not places:
        raise FusebertError(f"{model} does not contain the pattern; nearest candidate: {locator.nearest() or 'none'}")
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
    raise UnsupportedError(f"{model}: {reasons[0] if reasons else f'the encoder is in {where}, the pattern elsewhere'}")


class _Derivation:
    """One occurrence of the pattern against one encoder."""

    def __init__(
        self, pattern: Pattern, place: Occurrence, graph: Graph, finding: Finding, found: FoundEncoder
    ) -> None:
        if more := beyond_bert_layers(found):
            raise UnsupportedError(f"the encoder has {', '.join(more)}, which the op `Bert` does not compute")
        self._pattern, self._place, self._finding, self._found = pattern, place, finding, found
        self._raised = finding.raised
        body = graph.functions[found.function] if found.function else graph
        self._outputs = {node.name: node.outputs for node in body.nodes}
        self._path, self._arguments = call_of(finding, found.function, body, found.output)
        self._inputs = {
            self._flat(edge): wanted for wanted, edge in place.inputs.items()
        }  # flat name -> pattern's input
        handles = {self._flat(edge) for edge in place.inputs.values() if _is_handle(place.scope, edge)}
        self._reach = Reach(finding, found, [tensor for tensor in self._inputs if tensor not in handles])

    def _flat(self, edge: Edge) -> str:
        """The name of a tensor in the flat graph."""
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
        """The layer whose output each seed is, and whether the seeds are laid out as (batch * length, hidden)."""
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
                raise UnsupportedError(
                    f"seed {seed} is not the output of a layer; the encoder's output is {self._found.output}"
                )
        if len(layouts) != 1 or len(set(ends.values())) != len(ends):
            raise UnsupportedError("the seeds have different layouts, or two of them are outputs of the same layer")
        return ends, layouts.pop()

    def _begin(self, last: int, flat: bool) -> tuple[int, Edge]:
        """The first layer, and the input of the pattern that is its input."""
        for number in reversed(range(last + 1)):
            value = self._found.layers[number].bindings["x"]
            for tensor, edge in self._inputs.items():
                if is_flat(self._raised, tensor, value) is flat:
                    return number, edge
        shape = "(batch * length, hidden)" if flat else "(batch, length, hidden)"
        raise UnsupportedError(
            f"no input of the pattern is the encoder's input ({self._found.input}) with the shape {shape}"
        )

    def _weights(self, number: int) -> Iterator[Edge]:
        for part, kind in WEIGHTS:
            tensor = self._reach.weight(number, part, kind)
            if tensor is None:
                source = self._found.weights[number].get(f"{part}.{kind}")
                known = f" ({source.name})" if source is not None else ""
                raise UnsupportedError(
                    f"no input of the pattern is the {kind} of {part} in layer {number}{known} in the op's layout; "
                    "use fusebert optimize, which adds the missing constants"
                )
            yield self._inputs[tensor]

    def _mask(self, layer: Layer) -> tuple[Edge, bool, float | None]:
        """The input that is the mask, whether it is additive, and, if not, the value added to scores that it masks."""
        added = layer.bindings["mask"]
        if added is None:
            raise UnsupportedError(
                "the encoder has no mask, but the node needs one; use fusebert optimize, which adds a mask"
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
            "no input of the pattern is the mask; put a barrier where the mask is ones and zeros, or where it is added "
            "to the scores"
        )

    def _mask_kind(self, tensor: str, probe: int, added: Array) -> str:
        """How a tensor holds the mask: "rows" as ones and zeros, "additive" as added to the scores, "" not at all."""
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
        if np.array_equal(wide.astype(np.float32), (four > HIDDEN).astype(np.float32)):
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
        raise UnsupportedError(f"the element type of the mask {found.text} is unknown")


def _is_handle(scope: Scope, edge: Edge) -> bool:
    """Whether a tensor is a variable's handle, not its value."""
    if edge.node in scope.arguments:
        return scope.arguments[edge.node] == RESOURCE
    return edge.node in scope.nodes and scope.nodes[edge.node].op == "VarHandleOp"


def _set(node: Any, settings: Mapping[str, Any], outputs: int) -> None:
    for key, value in sorted(typed(settings).items()):
        set_attribute(node.attr.add(key=key).value, value)
    shapes = node.attr.add(key="_output_shapes").value.list.shape
    for _ in range(outputs):
        shapes.add().unknown_rank = True
