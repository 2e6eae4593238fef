"""Roles: which input of a graph is the ids, which the mask, which the token types, and what may be put into them.

The finder knows by what the graph does with them; where it finds no encoder, such as in a graph that is fused already,
the tables that inputs are looked up in, names and types tell. Whoever knows better names them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.bert_op import OPS, precision_of
from fusebert.match import Finding, FoundEncoder, computed, read_embeddings
from fusebert.ops.graph import Graph
from fusebert.source import GraphSource

ROLES = ("ids", "mask", "types")
OPTIONS = {"ids": "--input-ids", "mask": "--input-mask", "types": "--segment-ids"}
_MOST_KINDS = 16  # token types; a larger table is another vocabulary
_WORDS = (("mask", "mask"), ("segment", "types"), ("type", "types"), ("ids", "ids"), ("token", "ids"), ("word", "ids"))


class UnknownInputError(FusebertError):
    """The user named an input that the model does not have."""


@dataclass(frozen=True)
class Input:
    """An input as its framework declares it: the name to feed it by, and the tensor it is in the graph, if that is
    called otherwise. Sizes that are not settled are None."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None = None
    tensor: str = ""


@dataclass(frozen=True)
class Roles:
    """The inputs by role, in the order of the model; `more` are those of a second encoder, which get the same. And what
    is known of what they take: ids below `vocabulary`, types below `kinds`, at most `longest` tokens, sizes of batch
    and length (0 and 1) that are `settled`, the id that hides its position or is not counted as one (`padding_id`); and
    the precision that the graph computes in."""

    inputs: Mapping[str, Input]
    more: tuple[tuple[str, Input], ...] = ()
    vocabulary: int | None = None
    kinds: int | None = None
    longest: int | None = None
    settled: Mapping[int, int] = field(default_factory=dict)
    hiding_id: int | None = None
    padding_id: int | None = None
    precision: str = "fp32"


def find_roles(inputs: Sequence[Input], source: GraphSource, told: Mapping[str, str | None] | None = None) -> Roles:
    """The roles of a model's inputs. `told` are names by role that the user gave. A file that can be run, but not read,
    is judged by names and types alone."""
    by_tensor = {given.tensor or given.name: given for given in inputs}
    known = _understood(source, by_tensor.keys())
    found = {role: by_tensor[tensor] for role, tensor in known.tensors.items() if tensor in by_tensor}
    chosen = _told(inputs, told or {})
    chosen |= {role: given for role, given in found.items() if role not in chosen and given not in chosen.values()}
    _by_name(inputs, chosen)
    spare = [given for given in inputs if given not in chosen.values()]
    more = tuple((role, given) for given in spare if (role := _role_by_name(given)) and len(chosen) > 1)
    if len(more) < len(spare) or "ids" not in chosen:
        raise FusebertError(
            f"its inputs are {', '.join(f'{given.name} ({given.dtype})' for given in inputs)}; which of them are ids, "
            f"mask and token types is not clear. Say so with {', '.join(OPTIONS.values())}; others cannot be filled"
        )
    ordered = {role: given for given in inputs for role, one in chosen.items() if one is given}
    settled = {place: size for place, size in enumerate((chosen["ids"].shape or ())[:2]) if size is not None}
    return replace(known.roles, inputs=ordered, more=more, settled={**known.roles.settled, **settled})


@dataclass(frozen=True)
class _Known:
    """Tensors by role, and the rest of what a graph tells."""

    tensors: Mapping[str, str] = field(default_factory=dict)
    roles: Roles = field(default_factory=lambda: Roles({}))


def _understood(source: GraphSource, given: Set[str]) -> _Known:
    """What the finder knows of the tensors that are fed; of a result, what it knows of the model it was made from."""
    origin = source.made_from or source
    try:
        finding = origin.finding
    except FusebertError:
        known = _Known()
        with suppress(FusebertError):  # of a file that nobody can read
            known = _Known(roles=Roles({}, precision=_precision(source.graph, False)))
        return known
    known = _by_encoder(finding, given) or _by_tables(finding, given)
    settled = {place: size for place, size in finding.raised.fixed_sizes.items() if place < 2}
    quantized = bool(finding.raised.quantized) and source is origin
    return replace(known, roles=replace(known.roles, settled=settled, precision=_precision(source.graph, quantized)))


def _by_encoder(finding: Finding, given: Set[str]) -> _Known | None:
    """What the finder knows of the embeddings and the mask, if one encoder reads these inputs."""
    known = [one for found in finding.encoders if (one := _of_encoder(finding, found))]
    if len(finding.encoders) > 1:  # perhaps those of several signatures
        known = [one for one in known if given >= set(one.tensors.values())]
    return known[0] if len(known) == 1 else None


def _of_encoder(finding: Finding, found: FoundEncoder) -> _Known | None:
    try:
        embeddings, tensors = read_embeddings(finding.raised, found)
    except FusebertError:
        return None
    if found.mask.kind in ("rows", "lengths"):
        tensors["mask"] = found.mask.tensor
    roles = Roles(
        {},
        vocabulary=len(embeddings.word),
        kinds=None if embeddings.kind is None else len(embeddings.kind),
        longest=embeddings.longest,
        hiding_id=found.mask.hidden_id,
        padding_id=embeddings.padding_id,
    )
    return _Known(tensors, roles)


def _by_tables(finding: Finding, given: Set[str]) -> _Known:
    """The inputs that rows of tables are looked up by: ids in the largest, types in another."""
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
    largest = sorted(sizes, key=lambda name: -sizes[name])
    if not largest or len(largest) > 2 or (len(largest) > 1 and sizes[largest[1]] > _MOST_KINDS):
        return _Known(
            roles=Roles({}, vocabulary=min(sizes.values(), default=None), longest=min(positions, default=None))
        )
    tensors = dict(zip(("ids", "types"), largest, strict=False))
    kinds = sizes[largest[1]] if len(largest) > 1 else None
    roles = Roles({}, vocabulary=sizes[largest[0]], kinds=kinds, longest=min(positions, default=None))
    return _Known(tensors, roles)


def _precision(graph: Graph, quantized: bool) -> str:
    """What a graph computes in: as its fused nodes say, unless it is rounded to halves around them; else by its
    weights."""
    halves = any(weight.dtype in ("float16", "bfloat16") for weight in graph.weights.values())
    nodes = [*graph.nodes, *(node for function in graph.functions.values() for node in function.nodes)]
    for node in nodes:
        if node.op.startswith("fusebert."):
            said = str(node.attributes.get("precision", "fp32"))
            return "bf16" if said == "fp32" and halves else said
        if node.op in OPS:
            return precision_of(node.attributes)
    if quantized or any(node.op in _ROUNDING for node in nodes):
        return "int8"
    return "bf16" if halves else "fp32"


_ROUNDING = {
    "MatMulInteger", "QLinearMatMul", "DynamicQuantizeLinear",
    "com.microsoft.MatMulNBits", "com.microsoft.DynamicQuantizeMatMul", "com.microsoft.MatMulIntegerToFloat",
    "com.microsoft.QAttention", "com.microsoft.QGemm",
}  # fmt: skip


def _told(inputs: Sequence[Input], told: Mapping[str, str | None]) -> dict[str, Input]:
    chosen: dict[str, Input] = {}
    for role, name in told.items():
        if name is None:
            continue
        match = next((given for given in inputs if name in (given.name, given.tensor)), None)
        if match is None:
            raise UnknownInputError(f"it has no input {name!r}; there are {', '.join(given.name for given in inputs)}")
        if match in chosen.values():
            raise FusebertError(f"input {name!r} cannot be two things at once")
        chosen[role] = match
    return chosen


def _by_name(inputs: Sequence[Input], chosen: dict[str, Input]) -> None:
    """Gives roles to the inputs that have none: by name; a mask may be told by its type; one that is left may be told
    by what is missing."""
    for given in (given for given in inputs if given not in chosen.values()):
        role = _role_by_name(given) or (None if given.dtype.startswith("int") else "mask")
        if role is not None and role not in chosen:
            chosen[role] = given
    spare = [given for given in inputs if given not in chosen.values()]
    missing = [role for role in ROLES if role not in chosen]
    if len(spare) == 1 and (len(missing) == 1 or "ids" in missing) and _role_by_name(spare[0]) is None:
        chosen[missing[0]] = spare[0]


def _role_by_name(given: Input) -> str | None:
    return next((role for word, role in _WORDS if word in given.name.lower()), None)
