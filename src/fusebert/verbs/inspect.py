"""What a model on disk is: family, sizes, precision plan, bytes; or a graph, and the encoders in it. Reads headers and
shapes; packs and runs nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fusebert.match import Finding, FoundEncoder, find_elsewhere
from fusebert.measure.inputs import contradictions, roles
from fusebert.ops.graph import Array, Graph, Node
from fusebert.report import Report, Table
from fusebert.source import Artifact, Checkpoint, GraphSource, Source, open
from fusebert.values.blocks import Attention, FeedForward
from fusebert.values.network import Network
from fusebert.values.plan import PRODUCTS, Plan, make_plan
from fusebert.values.precision import PRECISIONS
from fusebert.values.traverse import layers


def inspect(path: str | Path | Source, nodes: bool = False, everywhere: bool = False) -> Report:
    """The facts about a checkpoint, an artifact, or a model file with a graph; `nodes` adds the simplified graph
    and every rule that was applied, `everywhere` the encoders in functions that no signature reaches."""
    source = open(path)
    if isinstance(source, GraphSource):
        return _graph(source, nodes, everywhere)
    if isinstance(source, Artifact):
        network, plan, max_length = source.stored
    else:
        assert isinstance(source, Checkpoint)
        network = source.network()
        plan, max_length = make_plan("fp32", len(network.encoder.blocks)), network.embeddings.longest
    bodies = [block.body for block in network.encoder.blocks[:2]]
    attention = next((body for body in bodies if isinstance(body, Attention)), None)
    feed_forward = next((body for body in bodies if isinstance(body, FeedForward)), None)
    facts = {
        "kind": source.kind,
        "family": network.family,
        "head": network.head.kind,
        "labels": list(network.labels),
        "layers": len(layers(network.encoder)),
        "hidden": network.encoder.hidden_size,
        "heads": attention.heads if attention else 0,
        "inner": len(feed_forward.up.weight) if feed_forward else 0,
        "activation": feed_forward.activation if feed_forward else "",
        "vocabulary": len(network.embeddings.word),
        "max_tokens": max_length,
        "precision": plan.precision,
        "ranges": "static" if plan.static else "per token",
    }
    if not PRECISIONS[plan.precision].int8:
        del facts["ranges"]
    return Report(str(source.path), facts, network_tables(network, plan))


def network_tables(network: Network, plan: Plan) -> tuple[Table, ...]:
    """The weights of a network by part, and the precision of its products."""
    return _parts(network), _plan(plan)


def _graph(source: GraphSource, with_nodes: bool, everywhere: bool) -> Report:
    """A graph's facts, the encoders in it, and the rest of it; or what came nearest to an encoder."""
    graph, finding = source.graph, source.finding
    facts = {
        **{name: value for name, value in graph.facts.items() if name not in ("names", "served")},
        "inputs": [f"{name} {_shown(graph, name)}" for name in graph.inputs],
        "outputs": [f"{name} {_shown(graph, name)}" for name in graph.outputs],
        "nodes": len(graph.nodes) + sum(len(function.nodes) for function in graph.functions.values()),
        "functions": len(graph.functions),
        "weights": len(graph.weights),
        "parameters": sum(math.prod(weight.shape) for weight in graph.weights.values()),
    }
    used = Table("roles", ("input", "used_as"), tuple(roles(source).items()))
    tables = [_encoders("encoders", finding.encoders), used, _fused(finding), _misses(finding), _rest(finding)]
    if everywhere:
        elsewhere = find_elsewhere(graph, finding)
        copies = [
            replace(found, function=found.function or name) for name, f in elsewhere.items() for found in f.encoders
        ]
        tables.insert(1, _encoders("elsewhere", copies))
    if with_nodes:
        words = tuple((n.op, n.name, n.function, ", ".join(filter(None, n.outputs))) for n in _raised(finding).nodes)
        tables.append(
            Table(
                "rules",
                ("stage", "rule", "nodes", "result", "reason"),
                tuple((r.stage, r.rule, r.nodes, r.result or "refused", r.reason) for r in finding.rows),
            )
        )
        tables.append(Table("raised", ("word", "node", "function", "makes"), words))
    notes = list(contradictions(source))
    if finding.raised.quantized:
        notes.append("The graph computes with 8-bit numbers; its weights are read as the floats they stand for.")
    if finding.encoders and finding.raised.fixed_sizes:
        sizes = ", ".join(f"{('batch', 'length')[place]} {size}" for place, size in finding.raised.fixed_sizes.items())
        notes.append(f"The graph declares other sizes too, but only works for {sizes}.")
    return Report(
        str(source.path), facts, tuple(t for t in tables if t.rows or t.title in ("encoders", "misses")), tuple(notes)
    )


def _encoders(title: str, encoders: Iterable[FoundEncoder]) -> Table:
    columns = (
        "layers", "hidden", "heads", "inner", "activation", "epsilon", "scale", "where", "calls", "mask", "mask_tensor",
        "input", "output", "taps", "inner_taps", "readers", "hidden_positions",
    )  # fmt: skip
    rows = tuple(
        (
            len(f.layers), f.hidden, f.heads, f.inner, f.activation, f.epsilon, f.scale, f.function or "main graph",
            f.calls, f.mask.kind, f.mask.tensor, f.input, f.output, f.taps, f.inner_taps, f.readers,
            _hidden_positions(f),
        )
        for f in encoders
    )  # fmt: skip
    return Table(title, columns, rows)


def _hidden_positions(found: FoundEncoder) -> str:
    if found.mask.kind == "none":
        return "none"
    if found.may_skip:
        return "may be skipped"
    return "shown by outputs" if found.shows_hidden else "must be computed"


def _fused(finding: Finding) -> Table:
    """The encoders that are one operator of ours already."""
    rows = tuple(
        (n.op, n.name, n.function or "main graph", len(n.inputs) - 2, _settings(n)) for n in _operators(finding)
    )
    return Table("fused", ("operator", "node", "where", "weights", "settings"), rows)


def _operators(finding: Finding) -> list[Node]:
    return list({id(node): node for node in finding.translated.facts["operators"].values()}.values())


def _settings(node: Node) -> str:
    """A node's attributes, but for lists of numbers that differ."""
    said = {name: value for name, value in sorted(node.attributes.items()) if name[:1] not in ("_", "^")}
    same = {n: v[0] if isinstance(v, tuple) and v and all(x == v[0] for x in v) else v for n, v in said.items()}
    return ", ".join(f"{n} {v:.6g}" if isinstance(v, float) else f"{n} {v}" for n, v in same.items() if _is_short(v))


def _is_short(value: object) -> bool:
    return isinstance(value, str | int | float) and value != ""


def _misses(finding: Finding) -> Table:
    fused = {node.name for node in _operators(finding)}
    rows = tuple((m.matched, m.expected, m.found, m.node, m.function) for m in finding.misses if m.node not in fused)
    return Table("misses", ("matched", "expected", "found", "node", "function"), rows)


def _raised(finding: Finding) -> Graph:
    return finding.raised.graph


def _rest(finding: Finding) -> Table:
    """What is around the encoders, one line per part: before them, their masks, and after them."""
    graph = _raised(finding)
    inside = {id(node) for found in finding.encoders for match in found.layers for node in match.nodes}
    before = _needed(graph, {found.input for found in finding.encoders})
    masks = _needed(graph, {found.mask.added for found in finding.encoders if found.mask.added}) - before
    parts: dict[str, list[Node]] = {"before the encoder": [], "mask": [], "after the encoder": []}
    for node in graph.nodes:
        if id(node) not in inside:
            part = "before the encoder" if id(node) in before else "mask" if id(node) in masks else "after the encoder"
            parts[part if finding.encoders else "before the encoder"].append(node)
    rows = []
    for part, nodes in parts.items():
        words = Counter(node.op for node in nodes).most_common()
        if nodes:
            rows.append((part if finding.encoders else "all", len(nodes), ", ".join(f"{w} {n}" for w, n in words)))
    return Table("rest", ("part", "nodes", "words"), tuple(rows))


def _needed(graph: Graph, tensors: set[str]) -> set[int]:
    """The nodes that tensors depend on."""
    needed, nodes = set(tensors), set()
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            nodes.add(id(node))
    return nodes


def _shown(graph: Graph, name: str) -> str:
    declared = graph.types.get(name)
    shape = "?" if declared is None or declared.shape is None else "x".join(str(n or "?") for n in declared.shape)
    return f"{declared.dtype if declared else '?'}[{shape}]"


def _parts(network: Network) -> Table:
    parts: dict[str, list[Array]] = {"embeddings": [], "encoder": [], "head": []}
    seen: set[int] = set()
    for name, array in network.weights():
        if id(array) not in seen:  # a tied weight counts where it comes first
            parts.get(name.split(".")[0], parts["encoder"]).append(array)
        seen.add(id(array))
    rows = tuple((name, _count(arrays), _bytes(arrays), _types(arrays)) for name, arrays in parts.items())
    return Table("weights", ("part", "parameters", "bytes", "types"), rows)


def _count(arrays: Iterable[Array]) -> int:
    return sum(array.size for array in arrays)


def _bytes(arrays: Iterable[Array]) -> int:
    return sum(array.nbytes for array in arrays)


def _types(arrays: Iterable[Array]) -> str:
    return ", ".join(sorted({array.dtype.name for array in arrays}))


def _plan(plan: Plan) -> Table:
    """One row for each run of layers with the same plan."""
    rows: list[tuple[str, ...]] = []
    begin = 0
    pairs = list(zip(plan.blocks[::2], plan.blocks[1::2], strict=True))
    for i, pair in enumerate(pairs):
        if i + 1 < len(pairs) and pairs[i + 1] == pair:
            continue
        products = [product for block in pair for product in (block.first, block.second)]
        rows.append(
            (
                f"{begin} to {i}",
                *(p.type if not p.static else f"{p.type} {p.low:g}..{p.high:g}" for p in products),
                pair[0].scores,
            )
        )
        begin = i + 1
    return Table("plan", ("layers", *PRODUCTS, "attention"), tuple(rows))
