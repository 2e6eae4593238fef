"""Standalone: a checkpoint or a graph -> the artifact that fusebert runs by itself; compared with the model in fp32,
and that with the graph it comes from, before it is put in place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine.load import pack, read_network
from fusebert.engine.model import Model
from fusebert.engine.quantize import convert
from fusebert.errors import DifferentError, UnsupportedError
from fusebert.formats import artifact, write
from fusebert.measure.calibrate import seen_ranges
from fusebert.measure.difference import Difference, within
from fusebert.measure.difference import tables as tables_of
from fusebert.measure.inputs import contradictions
from fusebert.measure.original import compare_with_graph
from fusebert.measure.rounding import is_rounded
from fusebert.measure.tasks import built_in_texts
from fusebert.report import Report, Table
from fusebert.source import GraphSource, Source
from fusebert.values.network import Network
from fusebert.values.operator import unpacked
from fusebert.values.precision import PRECISIONS
from fusebert.values.target import Standalone
from fusebert.values.traverse import layers
from fusebert.verbs.inspect import network_tables
from fusebert.verbs.request import Request

_OBSERVED = 32  # texts that the ranges of products are observed on

_COMPARED = "Compared with the same model in fp32, on random ids with every kind of padding."
_COMPARED_ON_TEXTS = "Compared with the same model in fp32, on built-in texts: fixed ranges hold for texts."
_COMPARED_ON_GIVEN = "Compared with the same model in fp32, on the texts that were given."
_NOT_CHANGED = "fp32 changes no number: what was written was read back and is the same, byte for byte."
_WITH_GRAPH = "The fp32 model was compared with the original graph, every node of which was computed in NumPy."
_WITH_UNROUNDED = "The fp32 model was compared with the original graph without rounding, computed in NumPy."
_COMPARED_WITH_ROUNDED = "Compared with the original, which rounds to 8 bits, run by its framework."


def make_standalone(request: Request) -> Report:
    """Writes the artifact."""
    source, out, target = request.source, request.out, _target(request)
    replaces = artifact.is_artifact if request.overwrite else None
    write.check(out, replaces)
    network = _network(request)
    floats = replace(network, encoder=unpacked(network.encoder))
    baseline = pack(source, floats, "fp32", target.threads) if request.verify else None
    model = baseline if baseline and target.precision == "fp32" else _packed(request, network, baseline)
    verdict, tables, notes = _verified(request, baseline, model) if baseline else ({"verdict": "not compared"}, [], [])
    written = convert(model.network, model.plan)
    model.save(out, request.overwrite, lambda folder: _check_written(folder, written, out))
    notes += [*_said(source), *(f"Left out: {what}." for what in model.left_out)]
    facts = {**_facts(model), "bytes_after": written.bytes, **verdict}
    more = [replace(table, detail=not request.verbose) for table in network_tables(written, model.plan)]
    if baseline and baseline.tokenizer and PRECISIONS[target.precision].int8:
        more.append(seen_ranges(baseline, list((request.texts or built_in_texts()).texts[:_OBSERVED])))
    return Report(f"{source.path} -> {out}", facts, (*more, *tables), tuple(notes))


def _verified(request: Request, baseline: Model, model: Model) -> tuple[Mapping[str, str], list[Table], list[str]]:
    """The verdict, what it rests on, and notes. The graph is compared with the model in fp32, and that, or a graph that
    rounds to 8 bits, with the one that is written."""
    source, target = request.source, _target(request)
    tables: list[Table] = []
    notes: list[str] = []
    if isinstance(source, GraphSource):
        differences, note = _compare_with_graph(source, baseline)
        tables += tables_of(differences, "original_graph") if differences else ()
        notes.append(note)
    if isinstance(source, GraphSource) and is_rounded(source) and target.head is None and _gives_all(source):
        what = f"{source.path} as {target.precision} differs too much from the original"
        found = request.compared(source, model, what)
        notes += [_COMPARED_WITH_ROUNDED, *found.notes]
    else:
        found = request.compared(baseline, model, f"{source.path} as {target.precision} differs too much from fp32")
        built_in = request.static and source.tokenizer_folder is not None
        how = _COMPARED_ON_GIVEN if request.texts else _COMPARED_ON_TEXTS if built_in else _COMPARED
        notes.append(_NOT_CHANGED if model is baseline else how)
    return found.verdict, [*tables, *found.tables()], notes


def _gives_all(source: GraphSource) -> bool:
    """Whether a stand-alone model gives the outputs of a graph as they are, nothing applied after them."""
    return not any(final for _, final in source.assembled.outputs.values())


def plan_standalone(request: Request) -> Report:
    """What would be written, without writing anything."""
    model = _packed(request, _network(request))
    notes = [f"An artifact would be written to {request.out}.", *_said(request.source)]
    notes += [f"Left out: {what}." for what in model.left_out]
    more = network_tables(model.network, model.plan) if request.verbose else ()
    title = f"{request.source.path} (nothing was written)"
    return Report(title, {"for": "standalone", **_facts(model)}, more, tuple(notes))


def _said(source: Source) -> tuple[str, ...]:
    """What is to be said of a graph's inputs."""
    return contradictions(source) if isinstance(source, GraphSource) else ()


def _target(request: Request) -> Standalone:
    assert isinstance(request.target, Standalone)
    return request.target


def _network(request: Request) -> Network:
    source = request.source
    network = read_network(source, _target(request).head)
    request.check_sizes(network.encoder)
    return network


def _packed(request: Request, network: Network, like: Model | None = None) -> Model:
    target = _target(request)
    return pack(request.source, network, target.precision, target.threads, target.ranges, like=like)


def _compare_with_graph(source: GraphSource, baseline: Model) -> tuple[list[Difference], str]:
    """The difference between a model and the graph that it was found in."""
    try:
        differences = compare_with_graph(source, baseline)
    except UnsupportedError as error:
        return [], f"The original graph cannot be computed here, so it was not compared: {error}."
    in_float16 = any(weight.dtype == "float16" for weight in source.graph.weights.values())  # perhaps computed in, too
    exactness = "bf16" if in_float16 else "fp32"
    if not within(differences, exactness):
        how = "; ".join(fault for one in differences for fault in one.faults(exactness))
        raise DifferentError(
            f"{source.path} as it was found differs too much from its graph: {how}; nothing was written. Please report "
            "this model."
        )
    return differences, _WITH_UNROUNDED if is_rounded(source) else _WITH_GRAPH


def _check_written(folder: Path, written: Network, out: Path) -> None:
    """Reads an artifact back, as values: every array must have the bytes that were meant."""
    read_back = dict(artifact.read(folder)[0].weights())
    for name, array in written.weights():
        if name not in read_back or read_back[name].dtype != array.dtype or not np.array_equal(read_back[name], array):
            raise DifferentError(
                f"{out}: {name} was not read back as it was written; check the disk or the file system"
            )


def _facts(model: Model) -> dict[str, Any]:
    return {
        "family": model.network.family,
        "head": model.network.head.kind,
        "layers": len(layers(model.network.encoder)),
        "precision": model.plan.precision,
        "bytes_before": model.bytes_read,
    }
