"""Meanings: what a graph does with its inputs. A GraphSource in; which tensors are ids, mask, token types and
positions, what may be put into them, and on which no answer depends, out.

The finder knows by what an encoder reads; where it finds none, the tables that inputs are looked up in tell."""

from __future__ import annotations

from collections.abc import Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.bert_op import FUSED, precision_of
from fusebert.match import MOST_KINDS, Finding, FoundEncoder, computed, inputs_that_matter, read_embeddings
from fusebert.ops.graph import Graph
from fusebert.source import GraphSource


@dataclass(frozen=True)
class Limits:
    """What inputs take: ids below `vocabulary`, types below `kinds`, at most `longest` tokens, sizes of batch and
    length (0 and 1) that are `settled`, the id that hides its position or is not counted as one (`padding_id`); and the
    precision that the model computes in."""

    vocabulary: int | None = None
    kinds: int | None = None
    longest: int | None = None
    settled: Mapping[int, int] = field(default_factory=dict)
    hiding_id: int | None = None
    padding_id: int | None = None
    precision: str = "fp32"


@dataclass(frozen=True)
class Meanings:
    """Tensors by role, for each encoder that reads other ones; inputs that are `idle`, since no answer depends on their
    numbers; and the limits of all."""

    encoders: tuple[Mapping[str, str], ...] = ()
    idle: frozenset[str] = frozenset()
    limits: Limits = field(default_factory=Limits)


def read_meanings(source: GraphSource, given: Set[str]) -> Meanings:
    """What the finder knows of the tensors that are fed; of a result, what it knows of the model it was made from. A
    file that can be run, but not read, tells nothing."""
    origin = source.made_from or source
    try:
        finding = origin.finding
    except FusebertError:
        known = Meanings()
        with suppress(FusebertError):  # of a file that nobody can read
            known = Meanings(limits=Limits(precision=_precision(source.graph, False)))
        return known
    known = _by_encoders(finding, given) or _by_tables(finding, given)
    settled = {place: size for place, size in finding.raised.fixed_sizes.items() if place < 2}
    quantized = bool(finding.raised.quantized) and source is origin
    limits = replace(known.limits, settled=settled, precision=_precision(source.graph, quantized))
    return replace(known, idle=frozenset(given) - inputs_that_matter(finding.raised), limits=limits)


def _by_encoders(finding: Finding, given: Set[str]) -> Meanings | None:
    """What the finder knows of the embeddings and the mask of every encoder; of several, those that read other inputs
    belong to other signatures."""
    called = [one for encoder in finding.encoders for one in (encoder, *encoder.others)]
    fitting = [one for encoder in called if (one := _of_encoder(finding, encoder)) is not None]
    if len(called) > 1:
        fitting = [(tensors, limits) for tensors, limits in fitting if given >= set(tensors.values())]
    if not fitting:
        return None
    different = []
    for tensors, _ in fitting:
        if tensors not in different:
            different.append(tensors)
    limits = fitting[0][1]
    for _, other in fitting[1:]:
        limits = _both(limits, other)
    return Meanings(tuple(different), limits=limits)


def _both(one: Limits, other: Limits) -> Limits:
    """Limits within which both encoders work."""
    least = {
        name: min((n for n in (getattr(one, name), getattr(other, name)) if n is not None), default=None)
        for name in ("vocabulary", "kinds", "longest")
    }
    return replace(one, **least)  # type: ignore[arg-type]


def _of_encoder(finding: Finding, found: FoundEncoder) -> tuple[dict[str, str], Limits] | None:
    try:
        embeddings, tensors = read_embeddings(finding.raised, found)
    except FusebertError:
        return None
    if tensors.get("positions") not in finding.raised.graph.inputs:
        tensors.pop("positions", None)  # computed from other inputs
    tensors |= _mask(found)
    limits = Limits(
        vocabulary=len(embeddings.word),
        kinds=None if embeddings.kind is None else len(embeddings.kind),
        longest=embeddings.longest,
        hiding_id=found.mask.hidden_id,
        padding_id=embeddings.padding_id,
    )
    return tensors, limits


def _mask(found: FoundEncoder) -> dict[str, str]:
    """The role of the input that hides positions, if that is one."""
    roles = {"rows": "mask", "lengths": "mask", "padding": "padding", "additive": "additive"}
    return {roles[found.mask.kind]: found.mask.tensor} if found.mask.kind in roles else {}


def _by_tables(finding: Finding, given: Set[str]) -> Meanings:
    """The inputs that rows of tables are looked up by: ids in the largest, types in another; and the mask of the
    encoder if there is one."""
    graph, probe = finding.raised.graph, finding.raised.probes[0]
    sizes: dict[str, int] = {}
    positions = []
    for node in graph.nodes:
        if node.op != "embed" or node.inputs[0] not in graph.weights:
            continue
        rows = graph.weights[node.inputs[0]].shape[0]
        try:
            index = computed(graph, node.inputs[1], probe)
        except FusebertError:
            continue
        if node.inputs[1] not in finding.raised.content and index.size and np.ptp(index):
            positions.append(rows)
        for name in given:
            if name in probe and np.array_equal(index, probe[name]):
                sizes[name] = min(rows, sizes.get(name, rows))
    longest = min(positions, default=None)
    masks = {role: tensor for found in finding.encoders for role, tensor in _mask(found).items() if tensor in given}
    tensors = masks if len({*masks.values()}) == 1 else {}
    largest = max(sizes.values(), default=0)
    ids = [name for name in probe if sizes.get(name) == largest]  # several read the same table: siamese
    types = [name for name in probe if 0 < sizes.get(name, 0) < largest]
    if not ids or len(types) > len(ids) or any(sizes[name] > MOST_KINDS for name in types):
        limits = Limits(vocabulary=min(sizes.values(), default=None), longest=longest)
        return Meanings((tensors,) if tensors else (), limits=limits)
    encoders = [{"ids": name} for name in ids]
    for one, name in zip(encoders, types, strict=False):
        one["types"] = name
    encoders[0] |= tensors
    kinds = min((sizes[name] for name in types), default=None)
    return Meanings(tuple(encoders), limits=Limits(vocabulary=largest, kinds=kinds, longest=longest))


def _precision(graph: Graph, quantized: bool) -> str:
    """What a graph computes in: as its fused nodes say, unless it is rounded to halves around them; else by its
    weights."""
    halves = any(weight.dtype in ("float16", "bfloat16") for weight in graph.weights.values())
    nodes = [*graph.nodes, *(node for function in graph.functions.values() for node in function.nodes)]
    for node in nodes:
        if node.op.startswith("fusebert."):
            said = str(node.attributes.get("precision", "fp32"))
            return "bf16" if said == "fp32" and halves else said
        if node.op in FUSED:
            return precision_of(node.attributes)
    if quantized or any(node.op in _ROUNDING for node in nodes):
        return "int8"
    return "bf16" if halves else "fp32"


_ROUNDING = {
    "MatMulInteger", "QLinearMatMul", "DynamicQuantizeLinear",
    "com.microsoft.MatMulNBits", "com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat",
    "com.microsoft.QAttention", "com.microsoft.QGemm",
}  # fmt: skip
