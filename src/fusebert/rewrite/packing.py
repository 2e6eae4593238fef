"""Packing: a finding and a target -> where encoders are cut out of a graph, and their weights in the types of a
precision. For every format that is rewritten."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any

import numpy as np

from fusebert.engine.quantize import convert_encoder, smooth
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.ranges import read_ranges
from fusebert.match import (
    FIRST,
    Cut,
    Finding,
    FoundEncoder,
    cut,
    is_rounded,
    operator_settings,
    read_embeddings,
    read_encoder,
    read_operator,
)
from fusebert.ops.graph import Array, Graph
from fusebert.source import GraphSource
from fusebert.values.batch import hidden_rows
from fusebert.values.blocks import Encoder
from fusebert.values.network import Head, Network
from fusebert.values.operator import Operator
from fusebert.values.plan import make_plan
from fusebert.values.precision import PRECISIONS
from fusebert.values.target import Fused, Target
from fusebert.values.traverse import layers


@dataclass(frozen=True)
class Rewritten:
    """What was replaced, what becomes of hidden positions in each place, and what else there is to tell."""

    finding: Finding
    cuts: tuple[Cut, ...]
    padding: tuple[str, ...]
    notes: tuple[str, ...] = ()


def find_cuts(source: GraphSource) -> tuple[Cut, ...]:
    """Where each encoder of a graph is cut out; raises UnsupportedError if there are none."""
    finding = source.finding
    if not finding.encoders:
        raise UnsupportedError(f"{source.path}: no encoder was found: {'; '.join(map(str, finding.misses))}")
    return tuple(cut(finding, found) for found in finding.encoders)


def check_operators(source: GraphSource, target: Target) -> None:
    """Refuses to change nothing about fused operators that are there already, and to change weights whose floats are
    gone."""
    finding = source.finding
    same = [stays(found, target.precision) and isinstance(target, Fused) for found in finding.encoders]
    for found, stay in zip(finding.encoders, same, strict=True):
        if is_rounded(finding.raised, found) and not (stay and target.ranges is None):  # type: ignore[union-attr]
            raise FusebertError(
                f"{source.path}: the encoder's weights are int8 already, and what was rounded does not come back; "
                "optimise the model that it was made from"
            )
    plain = type(target)(precision=target.precision, threads=target.threads)
    if same and all(same) and target == plain:
        raise FusebertError(
            f"{source.path} is fused already, in {target.precision}; name another precision, or use it as it is"
        )


def stays(found: FoundEncoder, precision: str) -> bool:
    """Whether an encoder is a fused operator of that precision already, whose numbers are kept."""
    settings = operator_settings(found)
    return settings is not None and settings[0] == precision


def choose_padding(found: FoundEncoder, padding: str) -> str:
    """What becomes of hidden positions: "auto" skips them where all readers are known and none needs them, and leaves a
    fused operator as it is."""
    settings = operator_settings(found)
    if padding == "auto" and settings is not None:
        return settings[1]
    return hidden_rows(padding, may_skip=found.may_skip, reads_first=FIRST in found.readers)


def new_names(stem: str, graph: Graph) -> Iterator[str]:
    """Names for operators that no node of a graph has: one that was rewritten before has some of them."""
    bodies = (graph, *graph.functions.values())
    taken = {node.name for body in bodies for node in body.nodes}
    return (name for number in count() if (name := f"{stem}_{number}") not in taken)


def row_inputs(finding: Finding) -> tuple[str, ...]:
    """The inputs that are ids, types or masks `[batch, length]`."""
    types = finding.translated.types
    shapes = {name: types[name].shape for name in finding.translated.inputs if name in types}
    return tuple(name for name, shape in shapes.items() if shape is not None and len(shape) == 2)


def check_length(source: GraphSource, length: int | None) -> None:
    """Refuses a sequence length that a model does not take."""
    finding = source.finding
    types = finding.translated.types
    declared = [size for name in row_inputs(finding) for size in types[name].shape[1:] if isinstance(size, int)]  # type: ignore[index]
    fixed = next((size for size in (finding.raised.fixed_sizes.get(1), *declared) if size is not None), None)
    if length is None or length == fixed:
        return
    if length < 1 or fixed is not None:
        raise FusebertError(f"{source.path}: a sequence has {fixed or 'at least 1'} tokens, not {length}")
    for found in finding.encoders:
        with suppress(UnsupportedError):  # of embeddings that are not known
            embeddings, _ = read_embeddings(finding.raised, found)
            if embeddings.longest is not None and length > embeddings.longest:
                raise FusebertError(f"{source.path}: a sequence has up to {embeddings.longest} tokens, not {length}")


def fixed_ranges(finding: Finding, ranges: Any) -> Array | None:
    """The input ranges `[layers, 4, 2]` of the only encoder, from numbers or a file; None stays None."""
    if ranges is None:
        return None
    if len(finding.encoders) != 1:
        raise UnsupportedError(f"ranges are for one encoder, but there are {len(finding.encoders)}")
    layers = len(finding.encoders[0].layers)
    fixed = read_ranges(ranges, layers)
    make_plan("int8", 2 * layers, fixed)  # refuses what does not fit
    return np.asarray(fixed, np.float32).reshape(layers, -1, 2)


def packed_encoder(
    finding: Finding, found: FoundEncoder, precision: str, threads: int | None, ranges: Array | None = None
) -> tuple[Encoder, tuple[str, ...]]:
    """The encoder with its weights in the types of a precision, and notes; int8 is smoothed unless ranges are fixed."""
    if ranges is None and stays(found, precision) and (operator := read_operator(finding.raised, found)):
        return convert_encoder(operator.encoder, operator.plan), ()
    notes: tuple[str, ...] = ()
    int8 = PRECISIONS[precision].int8
    if not int8 or ranges is not None:
        encoder = read_encoder(finding.raised, found)
    else:
        encoder, notes = smoothed_encoder(finding, found, threads)
    return convert_encoder(encoder, make_plan(precision, len(encoder.blocks), ranges)), notes


def fuse_network(network: Network, target: Fused, floats: bool = False) -> Operator:
    """A Network's encoder as one operator, with its weights in the types of a precision, unless these `floats` are to
    stay. Of hidden positions the head says who reads them."""
    if target.ranges is None:
        plan = make_plan(target.precision, len(network.encoder.blocks))
        encoder = smooth(network, target.threads, floats).encoder if plan.decoder == "s8" else network.encoder
    else:
        ranges = read_ranges(target.ranges, len(layers(network.encoder)))
        plan, encoder = make_plan(target.precision, len(network.encoder.blocks), ranges), network.encoder
    pools = network.head.kind == "sequence"  # else every row is an output, or what an output is made of
    padding = hidden_rows(target.padding, may_skip=pools, reads_first=network.head.reads_first)
    return Operator(encoder if floats else convert_encoder(encoder, plan), plan, padding)


def smoothed_encoder(
    finding: Finding, found: FoundEncoder, threads: int | None, floats: bool = False
) -> tuple[Encoder, tuple[str, ...]]:
    """The encoder smoothed, in int8 unless its `floats` are to stay; as it is, with a note, where its embeddings are
    not known: what goes through the encoder cannot be observed then."""
    encoder = read_encoder(finding.raised, found)
    try:
        embeddings, _ = read_embeddings(finding.raised, found)
    except UnsupportedError as error:
        return encoder, (f"int8 was not smoothed, so its error may be larger: {error}.",)
    return smooth(Network("", embeddings, encoder, Head()), threads, floats).encoder, ()


def store_once(weights: dict[str, Array], stored: dict[object, str], name: str, array: Array) -> str:
    """Adds a weight; one with the same numbers, as shared layers and both sides of a siamese model have, is kept once.
    Returns the name that it has."""
    numbers = memoryview(np.ascontiguousarray(array).view(np.uint8).reshape(-1)) if array.size else b""  # type: ignore[arg-type]
    key = array.dtype.name, array.shape, sha256(numbers).digest()
    if key not in stored:
        stored[key], weights[name] = name, array
    return stored[key]
