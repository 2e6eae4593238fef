"""Rewrite: an ONNX file -> the same with every encoder as one fused operator, which ONNX Runtime runs through
`fusebert.onnxruntime`. Embeddings, heads and whatever else is in the graph stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from fusebert.errors import UnsupportedError
from fusebert.formats.onnx import encoder_op
from fusebert.formats.onnx.edit import Changes, NewNode, rewrite
from fusebert.formats.onnx.types import NUMBERS
from fusebert.match import Cut, Finding, embedded, read_encoder
from fusebert.ops.graph import Array
from fusebert.rewrite.packing import (
    Rewritten,
    check_length,
    choose_padding,
    find_cuts,
    fixed_ranges,
    new_names,
    packed_encoder,
    row_inputs,
    stays,
    store_once,
)
from fusebert.rewrite.stock import MICROSOFT, Stock, stock_embeddings, stock_encoder
from fusebert.source import OnnxFile
from fusebert.values.precision import PRECISIONS
from fusebert.values.target import FusedOnnx, StockOnnx


def rewrite_onnx(source: OnnxFile, out: Path, target: FusedOnnx) -> Rewritten:
    """Writes `source` to `out` with a fused operator for every encoder."""
    finding, cuts = source.finding, find_cuts(source)
    check_length(source, target.length)
    fixed, precision = fixed_ranges(finding, target.ranges), target.precision
    chosen = tuple(choose_padding(found, target.padding) for found in finding.encoders)
    groups: list[list[NewNode]] = []
    weights: dict[str, Array] = {}
    stored: dict[object, str] = {}
    notes: tuple[str, ...] = ()
    for name, place, rows in zip(new_names("fused_encoder", source.graph), cuts, chosen, strict=False):
        encoder, own = packed_encoder(finding, place.found, precision, target.threads, fixed)
        notes += own
        given = encoder_op.tensors(encoder, PRECISIONS[precision].int8)
        tensors = [store_once(weights, stored, f"{name}.{key}", array) for key, array in given]
        attributes = encoder_op.attributes_of(encoder, precision, rows)
        if place.taps:
            attributes["taps"] = list(place.taps)
        if fixed is not None:
            attributes["ranges"] = [float(number) for number in fixed.ravel()]
        elif (operator := place.found.operator) and stays(place.found, precision) and "ranges" in operator.attributes:
            attributes["ranges"] = list(operator.attributes["ranges"])
        inner, before, after = _in_floats(name, place)
        inputs = (inner.rows, inner.mask, *tensors)
        fused = NewNode(encoder_op.OPERATION, encoder_op.DOMAIN, inputs, inner.outputs, attributes, name)
        groups.append([*before, fused, *after])
    groups, weights = _stored_once(groups, weights)
    opsets = {encoder_op.DOMAIN: encoder_op.VERSION}
    notes += rewrite(source.message, out, groups, weights, opsets, _changes(finding, cuts, target))
    return Rewritten(finding, cuts, chosen, notes)


def rewrite_stock(source: OnnxFile, out: Path, target: StockOnnx) -> Rewritten:
    """Writes `source` to `out` with ONNX Runtime's own fused kernels for every encoder, and for the embeddings where
    they are what its kernel computes."""
    finding, cuts = source.finding, find_cuts(source)
    check_length(source, target.length)
    groups: list[list[NewNode]] = []
    weights: dict[str, Array] = {}
    opset, int8 = source.graph.facts["opsets"]["ai.onnx"], target.precision == "int8"
    for number, place in enumerate(cuts):
        stock = Stock(f"stock_encoder_{number}", opset, int8, target.fast_gelu)
        inner, before, after = _in_floats(stock.name, place)
        stock_encoder(stock, inner, read_encoder(finding.raised, place.found), target.multi_head)
        groups.append([*before, *stock.nodes, *after])
        weights |= stock.weights
    with suppress(UnsupportedError):  # then the embeddings stay as they are
        if any(place.dtype == "float16" for place in cuts):
            raise UnsupportedError("the stock kernel for embeddings makes floats")
        stock = Stock("stock_embeddings", opset)
        _stock_embeddings(stock, source)
        groups.append(stock.nodes)
        weights |= stock.weights
    groups, weights = _stored_once(groups, weights)
    notes = rewrite(source.message, out, groups, weights, {MICROSOFT: 1}, _changes(finding, cuts, target))
    return Rewritten(finding, cuts, ("compute",) * len(cuts), notes)


def _stored_once(
    groups: list[list[NewNode]], weights: dict[str, Array]
) -> tuple[list[list[NewNode]], dict[str, Array]]:
    """The same nodes and constants, with constants that are equal under one name: encoders may share their weights."""
    first: dict[tuple[str, tuple[int, ...], bytes], str] = {}
    names = {
        name: first.setdefault((str(array.dtype), array.shape, sha256(array.tobytes()).digest()), name)
        for name, array in weights.items()
    }
    nodes = [
        [replace(node, inputs=tuple(names.get(tensor, tensor) for tensor in node.inputs)) for node in group]
        for group in groups
    ]
    return nodes, {name: array for name, array in weights.items() if names[name] == name}


def _changes(finding: Finding, cuts: Sequence[Cut], target: FusedOnnx | StockOnnx) -> Changes:
    declared = {output: shape for place in cuts for output in place.outputs if (shape := _shape(finding, place))}
    return Changes(row_inputs(finding), target.int32, target.length, target.float16, declared)


def _shape(finding: Finding, place: Cut) -> tuple[int | str | None, ...] | None:
    """The shape of what comes out of an encoder; batch and length as its mask has them, or as they are settled."""
    if place.dtype != "float32" or any(place.rounding):
        return None
    hidden, fixed_sizes = place.found.hidden, finding.raised.fixed_sizes
    if place.flat:
        return None, hidden
    seen = place.mask_type.shape if place.mask_kind == "rows" and place.mask_type else None
    return (*(seen or (fixed_sizes.get(0), fixed_sizes.get(1))), hidden)


def _stock_embeddings(stock: Stock, source: OnnxFile) -> None:
    finding, whole = source.finding, source.assembled
    output = embedded(finding, finding.encoders[0])
    if output is None:
        raise UnsupportedError("no tensor has what the embeddings make")
    types = finding.translated.types
    inputs = {role: (name, types[name].dtype) for role, name in whole.inputs.items() if role != "mask"}
    positions = ""
    if whole.positions:
        if whole.positions not in finding.raised.views or " " in whole.positions:
            raise UnsupportedError("positions are not a tensor of the graph")
        positions = stock.say("Cast", whole.positions, domain="", to=NUMBERS["int32"])
    stock_embeddings(stock, whole.network.embeddings, inputs, positions, output)


def _in_floats(name: str, place: Cut) -> tuple[Cut, list[NewNode], list[NewNode]]:
    """The same place with float32 rows, and what converts them before and after, where the graph computes in halves or
    has what comes out in 8 bits only."""
    rows, outputs, half = place.rows, list(place.outputs), place.dtype == "float16"
    before, after = [], []
    if half:
        rows = f"{name}.rows"
        before = [NewNode("Cast", "", (place.rows,), (rows,), {"to": NUMBERS["float32"]}, f"{name}.to_float")]
    for i, (output, rounding) in enumerate(zip(place.outputs, place.rounding, strict=True)):
        made = f"{name}.{output}"
        if rounding:
            after.append(NewNode("QuantizeLinear", "", (made, *rounding), (output,), {}, f"{made}.to_8_bits"))
        elif half:
            after.append(NewNode("Cast", "", (made,), (output,), {"to": NUMBERS["float16"]}, f"{made}.to_half"))
        else:
            continue
        outputs[i] = made
    return replace(place, rows=rows, outputs=tuple(outputs)), before, after
