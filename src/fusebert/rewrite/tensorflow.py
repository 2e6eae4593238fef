"""A SavedModel or a frozen graph -> the same with every encoder as one `Bert` node, which TensorFlow runs through
`fusebert.tensorflow`. The node reads the variables and constants that are there; nothing else in the graph changes. A
compact model has its weights as int8 constants instead, and of a SavedModel what its signatures need is all that is
left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine.quantize import convert_encoder
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.tensorflow.bert_layers import compact_weights, node_of
from fusebert.formats.tensorflow.bert_op import ATTRIBUTES, FORM, WEIGHTS, precision_types, typed
from fusebert.formats.tensorflow.edit import Editor, NewNode
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.scope import Edge
from fusebert.formats.tensorflow.serving import only_serving
from fusebert.formats.tensorflow.types import Type
from fusebert.match import (
    Cut,
    Finding,
    Layer,
    beyond_bert_layers,
    hiding_value,
    is_rounded,
    read_encoder,
    read_operator,
    shown_as_is,
)
from fusebert.ops.graph import Array, Graph
from fusebert.rewrite.bert import Reach, call_of, encoder_attributes
from fusebert.rewrite.packing import (
    Rewritten,
    choose_padding,
    find_cuts,
    fixed_ranges,
    new_names,
    packed_encoder,
    smoothed_encoder,
    stays,
)
from fusebert.source import TensorFlowSource
from fusebert.values.blocks import Encoder
from fusebert.values.operator import Operator
from fusebert.values.plan import make_plan
from fusebert.values.precision import PRECISIONS
from fusebert.values.target import FusedTensorFlow
from fusebert.values.traverse import is_norm

_LOWEST = float(np.finfo(np.float32).min)
_KEPT = ("QuantizationFactors", "QuantizationFactorsPath", "InputScales")  # of a node in the same precision
_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")  # whose tensors are handles, not numbers


def rewrite_tensorflow(source: TensorFlowSource, out: Path, target: FusedTensorFlow) -> Rewritten:
    """Writes `source` to `out` with a `Bert` node for every encoder."""
    finding, cuts = source.finding, find_cuts(source)
    chosen = tuple(choose_padding(place.found, target.padding) for place in cuts)
    fixed = replace(target, ranges=fixed_ranges(finding, target.ranges))
    if fixed.ranges is not None and not PRECISIONS[target.precision].int8:
        raise FusebertError(f"ranges belong to int8 and int8-bf16, not to {target.precision}; omit them")
    edits: dict[str, _Edit] = {}
    notes: tuple[str, ...] = ()
    for name, place, rows in zip(new_names("fused_bert", source.graph), cuts, chosen, strict=False):
        edit = edits.setdefault(place.found.function, _Edit(place.found.function))
        notes += _add_bert(edit, _Place(source.graph, finding, place), name, rows, fixed)
    file = source.file.copy()
    for edit in edits.values():
        edit.apply(file)
    if file.kind == "SavedModel" and any(edit.stored for edit in edits.values()):
        file = only_serving(file, source.graph.weights)
    file.write(out)
    return Rewritten(finding, cuts, chosen, notes)


@dataclass
class _Edit:
    """New nodes in one function ("" is the main graph), and which of their outputs takes the place of which tensor; all
    names as they are inside that function."""

    function: str
    nodes: list[NewNode] = field(default_factory=list)
    instead: dict[str, str] = field(default_factory=dict)
    stored: dict[Any, tuple[tuple[str, ...], list[Type]]] = field(
        default_factory=dict
    )  # the int8 weights of encoders that share them

    def apply(self, file: TensorFlowFile) -> None:
        """Edits every meta graph that has the function with these tensors."""
        names = {Edge.of(tensor).node for tensor in self.instead}
        scopes = [scope for meta in file.metas for scope in file.scopes(meta) if scope.function == self.function]
        fitting = [scope for scope in scopes if names <= scope.nodes.keys()]
        if not fitting:
            raise FusebertError(f"{file.file}: no graph has function {self.function or 'main'} with {', '.join(names)}")
        for scope in fitting:
            Editor(scope, file.payloads).replace(self.nodes, self.instead)


def _add_bert(edit: _Edit, place: _Place, name: str, padding: str, target: FusedTensorFlow) -> tuple[str, ...]:
    """Adds the node to an edit; returns notes."""
    cut, found = place.cut, place.cut.found
    if beyond_bert_layers(found) or (found.operator is not None and found.operator.op == FORM):
        return _add_form(edit, place, name, padding, target)
    layers = range(len(found.layers))
    compact = target.compact or is_rounded(place.finding.raised, found)
    store = _compact_weights if compact else _float_weights
    weights, own, notes = store(edit, place, name, target)
    attributes = {
        **encoder_attributes(found, layers), **precision_types(target.precision), "Padding": padding,
        "NumThreads": target.threads or 0, **own,
    }  # fmt: skip
    if target.ranges is not None:
        attributes["QuantizationFactors"] = [float(number) for number in target.ranges.ravel()]
    elif found.operator and stays(found, target.precision):
        attributes |= {name: found.operator.attributes[name] for name in _KEPT if name in found.operator.attributes}
    if cut.taps:
        attributes["NumHiddenStates"] = len(layers)
    _put(
        edit,
        place,
        name,
        ("BertCompact" if compact else "Bert") + ("HiddenStates" if cut.taps else ""),
        weights,
        attributes,
    )
    return notes


def _add_form(edit: _Edit, place: _Place, name: str, padding: str, target: FusedTensorFlow) -> tuple[str, ...]:
    """The same with the op that carries every form; its weights are new constants."""
    found, raised = place.cut.found, place.finding.raised
    compact, fixed = target.compact or is_rounded(raised, found), target.ranges is not None
    notes: tuple[str, ...] = ()
    kept = read_operator(raised, found) if stays(found, target.precision) and not fixed else None
    if kept is not None:
        encoder, plan = kept.encoder, kept.plan
    else:
        if PRECISIONS[target.precision].int8 and not fixed:
            encoder, notes = smoothed_encoder(place.finding, found, target.threads, floats=not compact)
        else:
            encoder = read_encoder(raised, found)
        plan = make_plan(target.precision, len(encoder.blocks), target.ranges)
    made = Operator(convert_encoder(encoder, plan) if compact else encoder, plan, padding)
    op, arrays, own = node_of(made, compact)
    known: dict[int, str] = {}
    for number, array in enumerate(arrays):
        if id(array) not in known:
            floats = array if array.dtype == np.int8 else np.asarray(array, np.float32)
            known[id(array)] = place.constant(f"{name}/weight_{number}", floats, edit.nodes)
    weights = tuple(known[id(array)] for array in arrays)
    edit.stored[name] = weights, own["WeightTypes"]
    states = {"NumHiddenStates": len(found.layers) if place.cut.taps else 0}
    _put(edit, place, name, op, weights, {**own, **states, "Padding": padding, "NumThreads": target.threads or 0})
    return notes


def _put(edit: _Edit, place: _Place, name: str, op: str, weights: tuple[str, ...], attributes: dict[str, Any]) -> None:
    """Adds a node, with what its mask says, in place of the encoder."""
    cut, found = place.cut, place.cut.found
    mask, mask_type = place.mask(name, edit.nodes)
    attributes |= {"MaskT": mask_type, "AdditiveMask": cut.mask_kind == "additive"}
    if cut.mask_kind == "rows" and (value := hiding_value(place.finding.raised, found.mask.added)) is not None:
        attributes["MaskValue"] = float(np.clip(value, _LOWEST, 0))  # decides what a sequence gets that is all hidden
    known = {key: value for key, value in attributes.items() if key in ATTRIBUTES[op]}
    edit.nodes.append(NewNode(op, name, (place.local(cut.rows), mask, *weights), typed(known)))
    made = [(cut.outputs[0], "encoded", 0, 0)]
    made += [(tap, "hidden_states", i, 1 + i) for tap, i in zip(cut.outputs[1:], cut.taps, strict=True)]
    edit.instead |= {
        place.local(tensor): f"{name}:{output}:{i}" if edit.function else f"{name}:{flat}"
        for tensor, output, i, flat in made
    }


def _float_weights(
    edit: _Edit, place: _Place, name: str, target: FusedTensorFlow
) -> tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]:
    """The tensors of `Bert`, the attributes that go with them, and notes."""
    found = place.cut.found
    weights = tuple(t for number in range(len(found.layers)) for t in place.weights(number, name, edit.nodes))
    own: dict[str, Any] = {"NumWeights": len(weights)}
    if not PRECISIONS[target.precision].int8 or target.ranges is not None or stays(found, target.precision):
        return weights, own, ()
    smoothed, notes = smoothed_encoder(place.finding, found, target.threads, floats=True)  # weights stay variables
    return weights, {**own, "InputScales": _input_scales(smoothed)}, notes


def _compact_weights(
    edit: _Edit, place: _Place, name: str, target: FusedTensorFlow
) -> tuple[tuple[str, ...], dict[str, Any], tuple[str, ...]]:
    """The same of `BertCompact`: new constants. Encoders with the same weights share them."""
    found = place.cut.found
    notes: tuple[str, ...] = ()
    same = tuple(tuple(sorted((path, ref.name) for path, ref in layer.items())) for layer in found.weights)
    if same not in edit.stored:
        encoder, notes = packed_encoder(place.finding, found, target.precision, target.threads, target.ranges)
        given = list(compact_weights(encoder))
        names = tuple(place.constant(f"{name}/{path}", array, edit.nodes) for path, array in given)
        edit.stored[same] = names, [Type(array.dtype.name) for _, array in given]
    names, types = edit.stored[same]
    operator = read_operator(place.finding.raised, found) if stays(found, target.precision) else None
    fixed = [] if operator is None or not operator.plan.static else operator.plan.ranges
    return names, {"WeightTypes": types, "QuantizationFactors": fixed}, notes


def _input_scales(encoder: Encoder) -> list[float]:
    """What the inputs of the products behind a LayerNorm are divided by, layer by layer; none if that is not known."""
    firsts = (getattr(block.body, block.body.products()[0][0]) for block in encoder.blocks)
    scales = [linear.input_scales for linear in firsts]
    known = [array for array in scales if array is not None]
    return [float(n) for array in known for n in array] if len(known) == len(scales) else []


class _Place:
    """The function an encoder sits in, and what tensors are called there."""

    def __init__(self, graph: Graph, finding: Finding, cut: Cut) -> None:
        self.finding, self.cut = finding, cut
        self.function = cut.found.function
        body = graph.functions[self.function] if self.function else graph
        own = {*body.weights, *(name for node in body.nodes for name in node.outputs)}
        own -= {*body.inputs} if self.function else set()
        path, arguments = call_of(finding, self.function, body, cut.outputs[0])
        self._local = {path + name: name for name in own}
        handles = {name for node in body.nodes if node.op in _VARIABLES for name in node.outputs}
        # what a node reads off a constant comes before the constant
        readable = sorted((name in body.weights, path + name) for name in own - handles)
        self._reach = Reach(finding, cut.found, [tensor for _, tensor in readable])
        self._local |= {tensor: name for name, tensor in arguments.items() if tensor}

    def local(self, tensor: str) -> str:
        """What a tensor of the flat graph is called in the function."""
        if tensor not in self._local:
            raise UnsupportedError(f"{tensor} cannot be reached in function {self.function or 'main'}")
        return self._local[tensor]

    def weights(self, number: int, name: str, nodes: list[NewNode]) -> Iterator[str]:
        """The tensors of a layer; one that is not there as the node takes it becomes a new constant."""
        match = self.cut.found.layers[number]
        for part, kind in WEIGHTS:
            tensor = self._reach.weight(number, part, kind)
            if tensor is not None:
                yield self.local(tensor)
            else:
                array = self._array(match, f"{part}.{kind}")
                yield self.constant(f"{name}/layer_{number}/{part}/{kind}", array, nodes)

    def _array(self, match: Layer, weight: str) -> Array:
        tensor = match.bindings.get(weight)
        if tensor is not None:
            array = self.finding.raised.graph.weights[tensor].read()
            return np.asarray(array.T if array.ndim == 2 else array, np.float32)
        part, field = weight.rsplit(".", 1)
        found = self.cut.found
        width = found.hidden if is_norm(part) else found.weights[0][f"{part}.weight"].shape[0]
        return np.full(width, 1 if field == "gain" else 0, np.float32)

    def constant(self, name: str, array: Array, nodes: list[NewNode]) -> str:
        """Adds a constant, and gives its tensor."""
        nodes.append(NewNode("Const", name, (), {"dtype": Type(array.dtype.name), "value": array}))
        return f"{name}:output:0" if self.function else name

    def mask(self, name: str, nodes: list[NewNode]) -> tuple[str, str]:
        """A tensor with the mask, and its type; ones where the encoder has none."""
        place = self.cut
        if place.mask_kind == "lengths":
            raise UnsupportedError(f"{place.mask} is a number of positions, which the node does not take")
        if place.mask_kind != "none":
            tensor = place.mask if place.mask in self._local else self._seen(place.mask)
            kind = self.finding.translated.types.get(place.mask)
            return self.local(tensor), kind.dtype if kind and kind.dtype else "float32"
        rows = self.local(place.rows)
        ports = (":output:0", ":output:0") if self.function else ("", "")
        numbers = {"begin": [0], "end": [2], "strides": [1]}
        given = [self.constant(f"{name}/{key}", np.array(n, np.int32), nodes) for key, n in numbers.items()]
        one = self.constant(f"{name}/one", np.array(1, np.int32), nodes)
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
        for tensor in shown_as_is(self.finding.raised, value):
            if tensor in self._local:
                return tensor
        raise UnsupportedError(f"the mask {value} cannot be reached in function {self.function or 'main'}")
