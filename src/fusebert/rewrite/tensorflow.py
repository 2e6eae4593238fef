"""A SavedModel or a frozen graph -> the same with every encoder as one `Bert` node, which TensorFlow runs through
`fusebert.tensorflow`. The node reads the variables and constants that are there; nothing else in the graph changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.tensorflow.bert_op import WEIGHTS, precision_types, typed
from fusebert.formats.tensorflow.edit import Edit, NewNode, rewrite
from fusebert.formats.tensorflow.types import Type
from fusebert.match import axes as ax
from fusebert.match.cut import Cut
from fusebert.match.find import Finding, Source
from fusebert.match.mask import hiding_value
from fusebert.match.search import Match
from fusebert.ops.graph import Array, Graph
from fusebert.rewrite.packing import Rewritten, Wanted, choose_padding, find_places, settle_ranges, smoothed_encoder
from fusebert.source import read
from fusebert.values.blocks import Encoder

_TRANSPOSED = "transpose"
_LOWEST = float(np.finfo(np.float32).min)
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")  # whose tensors are handles, not numbers


def rewrite_tensorflow(source: Path, out: Path, wanted: Wanted) -> Rewritten:
    """Writes `source` to `out` with a `Bert` node for every encoder."""
    graph = read(source)
    finding, cuts = find_places(source, graph)
    chosen = tuple(choose_padding(place.found, wanted.padding) for place in cuts)
    settled = replace(wanted, ranges=settle_ranges(finding, wanted.ranges))
    if settled.ranges is not None and not wanted.precision.startswith("int8"):
        raise FusebertError(f"ranges belong to int8 and int8-bf16, not to {wanted.precision}")
    edits = [
        _edit(graph, finding, place, number, rows, settled)
        for number, (place, rows) in enumerate(zip(cuts, chosen, strict=True))
    ]
    rewrite(source, out, edits)
    return Rewritten(finding, cuts, chosen)


def _edit(graph: Graph, finding: Finding, place: Cut, number: int, padding: str, wanted: Wanted) -> Edit:
    scope = _Scope(graph, finding, place)
    name = f"fused_bert_{number}"
    nodes: list[NewNode] = []
    weights = [tensor for i in range(len(place.found.layers)) for tensor in scope.weights(i, name, nodes)]
    mask, mask_type = scope.mask(name, nodes)
    attributes = _attributes(place, wanted.precision, padding, wanted.threads or 0)
    attributes |= {"MaskT": mask_type, "NumWeights": len(weights), "AdditiveMask": place.mask_kind == "additive"}
    if place.mask_kind == "rows" and (value := hiding_value(finding.raised, place.found.mask.added)) is not None:
        attributes["MaskValue"] = float(np.clip(value, _LOWEST, 0))  # decides what a sequence gets that is all hidden
    operation = "Bert"
    if wanted.ranges is not None:
        attributes["QuantizationFactors"] = [float(number) for number in wanted.ranges.ravel()]
    elif wanted.precision.startswith("int8"):
        smoothed = smoothed_encoder(finding, place.found, wanted.threads, floats=True)  # weights stay variables
        attributes["InputScales"] = _input_scales(smoothed)
    if place.taps:
        operation = "BertHiddenStates"
        attributes["NumHiddenStates"] = len(place.found.layers)
    nodes.append(NewNode(operation, name, (scope.local(place.rows), mask, *weights), typed(attributes)))
    made = [(place.outputs[0], "encoded", 0, 0)]
    made += [(tap, "hidden_states", i, 1 + i) for tap, i in zip(place.outputs[1:], place.taps, strict=True)]
    instead = {
        scope.local(tensor): f"{name}:{output}:{i}" if scope.function else f"{name}:{flat}"
        for tensor, output, i, flat in made
    }
    return Edit(scope.function, tuple(nodes), instead)


def _attributes(place: Cut, precision: str, padding: str, threads: int) -> dict[str, Any]:
    found = place.found
    first = found.layers[0].holes
    for match in found.layers:
        same = all(match.holes[key] == first[key] for key in ("heads", "activation", "scale"))
        epsilons = {match.holes[f"{name}.epsilon"] for name in ("attention_norm", "output_norm")}
        if not same or epsilons != {first["output_norm.epsilon"]}:
            raise UnsupportedError(f"{match.output}: layers differ in heads, activation, scale or epsilon")
    return {
        **precision_types(precision),
        "HiddenSize": found.hidden,
        "NumAttentionHeads": found.heads,
        "IntermediateSize": found.inner,
        "HiddenAct": found.activation,
        "LayerNormEpsilon": float(found.epsilon),
        "AttentionScale": float(found.scale),
        "Padding": padding,
        "NumThreads": threads,
    }


def _input_scales(encoder: Encoder) -> list[float]:
    """What the inputs of the products behind a LayerNorm are divided by, layer by layer; none if that is not known."""
    firsts = (getattr(block.body, block.body.products()[0][0]) for block in encoder.blocks)
    scales = [linear.input_scales for linear in firsts]
    known = [array for array in scales if array is not None]
    return [float(n) for array in known for n in array] if len(known) == len(scales) else []


class _Scope:
    """The function an encoder sits in, and what tensors are called there."""

    def __init__(self, graph: Graph, finding: Finding, place: Cut) -> None:
        self._finding, self._place = finding, place
        self.function = place.found.function
        body = graph.functions[self.function] if self.function else graph
        self._own = {*body.weights, *(name for node in body.nodes for name in node.outputs)}
        self._own -= {*body.inputs} if self.function else set()
        self._path, arguments = self._call(place.outputs[0])
        self._local = {self._path + name: name for name in self._own}
        self._local |= {tensor: name for name, tensor in arguments.items() if tensor}
        self._constants = {*body.weights}
        handles = {name for node in body.nodes if node.word in _VARIABLES for name in node.outputs}
        self._by_root: dict[str, list[str]] = {}  # the tensors that have a weight's numbers
        for tensor, name in self._local.items():
            root, how = finding.raised.origins.get(tensor, (tensor, ""))
            if not how and tensor in finding.raised.graph.weights and name in self._own - handles:
                self._by_root.setdefault(root, []).append(tensor)

    def _call(self, tensor: str) -> tuple[str, Mapping[str, str]]:
        if not self.function:
            return "", {}
        for path, (function, arguments) in self._finding.translated.facts["calls"].items():
            if function == self.function and tensor.startswith(path) and tensor[len(path) :] in self._own:
                return path, arguments
        raise UnsupportedError(f"{tensor} is not a tensor of function {self.function}")

    def local(self, tensor: str) -> str:
        """What a tensor of the flat graph is called in the function."""
        if tensor not in self._local:
            raise UnsupportedError(f"{tensor} cannot be reached in function {self.function or 'main'}")
        return self._local[tensor]

    def weights(self, number: int, name: str, nodes: list[NewNode]) -> Iterator[str]:
        """A layer's sixteen tensors; one that is not there as the node wants it becomes a new constant."""
        match = self._place.found.layers[number]
        sources = self._place.found.weights[number]
        for part, kind in WEIGHTS:
            hole = f"{part}.{kind}"
            tensor = self._stored(sources.get(hole), part, kind)
            if tensor is not None:
                yield self.local(tensor)
            else:
                yield self._constant(f"{name}/layer_{number}/{part}/{kind}", self._array(match, hole), nodes)

    def _stored(self, source: Source | None, part: str, kind: str) -> str | None:
        """The tensor that has a weight as the node wants it, if there is one."""
        if source is None or source.how != (_TRANSPOSED if kind == "weight" else ""):
            return None
        heads = self._place.found.heads
        shapes = [source.shape[::-1]]
        if part in ("query", "key", "value"):  # heads may be a dimension of their own
            shapes.append((*source.shape[1:], heads, source.shape[0] // heads))
        elif part == "attention_out" and kind == "weight":
            shapes.append((heads, source.shape[1] // heads, source.shape[0]))
        weights = self._finding.raised.graph.weights
        fitting = [tensor for tensor in self._by_root.get(source.name, ()) if weights[tensor].shape in shapes]
        fitting.sort(key=lambda tensor: (self._local[tensor] in self._constants, tensor))
        return fitting[0] if fitting else None  # what a node reads off a constant comes before the constant

    def _array(self, match: Match, hole: str) -> Array:
        tensor = match.holes.get(hole)
        if tensor is not None:
            array = self._finding.raised.graph.weights[tensor].read()
            return np.asarray(array.T if array.ndim == 2 else array, np.float32)
        weights = self._place.found.weights[0]
        width = weights[hole.replace("bias", "weight")].shape[0] if "norm" not in hole else self._place.found.hidden
        return np.full(width, 1 if hole.endswith("gain") else 0, np.float32)

    def _constant(self, name: str, array: Array, nodes: list[NewNode]) -> str:
        nodes.append(NewNode("Const", name, (), {"dtype": Type(array.dtype.name), "value": array}))
        return f"{name}:output:0" if self.function else name

    def mask(self, name: str, nodes: list[NewNode]) -> tuple[str, str]:
        """A tensor with the mask, and its type; ones where the encoder has none."""
        place = self._place
        if place.mask_kind == "lengths":
            raise UnsupportedError(f"{place.mask} is a number of positions, which the node does not take")
        if place.mask_kind != "none":
            tensor = place.mask if place.mask in self._local else self._seen(place.mask)
            kind = self._finding.translated.types.get(place.mask)
            return self.local(tensor), kind.dtype if kind and kind.dtype else "float32"
        rows = self.local(place.rows)
        ports = (":output:0", ":output:0") if self.function else ("", "")
        numbers = {"begin": [0], "end": [2], "strides": [1]}
        given = [self._constant(f"{name}/{key}", np.array(n, np.int32), nodes) for key, n in numbers.items()]
        one = self._constant(f"{name}/one", np.array(1, np.int32), nodes)
        types = {"T": Type("float32"), "out_type": Type("int32")}
        nodes.append(NewNode("Shape", f"{name}/shape", (rows,), types))
        sliced = {"T": Type("int32"), "Index": Type("int32")}
        masks = dict.fromkeys(("end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0) | {"begin_mask": 1}
        shape = f"{name}/shape{ports[0]}"
        nodes.append(NewNode("StridedSlice", f"{name}/batch", (shape, *given), {**sliced, **masks}))
        filled = {"T": Type("int32"), "index_type": Type("int32")}
        nodes.append(NewNode("Fill", f"{name}/mask", (f"{name}/batch{ports[1]}", one), filled))
        return f"{name}/mask{ports[0]}", "int32"

    def _seen(self, value: str) -> str:
        """A tensor in reach that shows an input as it is."""
        dims = ax.settled(self._finding.raised.dims[value])
        for tensor, view in self._finding.raised.views.items():
            if view.value == value and view.factor == 1 and ax.settled(view.dims) == dims and tensor in self._local:
                return tensor
        raise UnsupportedError(f"the mask {value} cannot be reached in function {self.function or 'main'}")
