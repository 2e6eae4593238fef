"""What a model on disk is: family, sizes, precision plan, bytes. Reads headers and shapes; packs and runs nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from fusebert import artifact
from fusebert.errors import FusebertError
from fusebert.formats import huggingface, tensorflow
from fusebert.graph import Array, Graph
from fusebert.network import Network
from fusebert.plan import PRODUCTS, Plan, make_plan
from fusebert.read import read
from fusebert.report import Report, Table


def inspect(path: str | Path) -> Report:
    """The facts about a checkpoint, an artifact, or a model file with a graph."""
    folder = Path(path)
    if folder.is_file() or tensorflow.is_saved_model(folder):
        return _graph(folder, read(folder))
    if artifact.is_artifact(folder):
        network, plan, max_length = artifact.read(folder)
        kind = "fusebert artifact"
    elif huggingface.is_checkpoint(folder):
        network = huggingface.read(folder)
        plan, max_length, kind = (
            make_plan("fp32", len(network.encoder.layers)),
            network.embeddings.longest,
            "Hugging Face checkpoint",
        )
    else:
        raise FusebertError(
            f"{folder} has neither config.json (a Hugging Face checkpoint) nor fusebert.json (an artifact)"
        )
    first = network.encoder.layers[0] if network.encoder.layers else None
    facts = {
        "kind": kind,
        "family": network.family,
        "head": network.head.kind,
        "labels": list(network.labels),
        "layers": len(network.encoder.layers),
        "hidden": network.encoder.hidden,
        "heads": first.heads if first else 0,
        "inner": len(first.ffn_in.weight) if first else 0,
        "activation": first.activation if first else "",
        "vocabulary": len(network.embeddings.word),
        "max_tokens": max_length,
        "precision": plan.precision,
        "ranges": "static" if plan.static else "per token",
    }
    if not plan.precision.startswith("int8"):
        del facts["ranges"]
    return Report(str(folder), facts, (_parts(network), _plan(plan)))


def _graph(path: Path, graph: Graph) -> Report:
    facts = {
        **graph.facts,
        "inputs": [f"{name} {_shown(graph, name)}" for name in graph.inputs],
        "outputs": [f"{name} {_shown(graph, name)}" for name in graph.outputs],
        "nodes": len(graph.nodes),
        "functions": len(graph.functions),
        "weights": len(graph.weights),
        "parameters": sum(math.prod(weight.shape) for weight in graph.weights.values()),
    }
    words = Counter(node.word for node in graph.nodes).most_common()
    return Report(str(path), facts, (Table("operations", ("operation", "nodes"), tuple(words)),))


def _shown(graph: Graph, name: str) -> str:
    declared = graph.types.get(name)
    shape = "?" if declared is None or declared.shape is None else "x".join(str(n or "?") for n in declared.shape)
    return f"{declared.dtype if declared else '?'}[{shape}]"


def _parts(network: Network) -> Table:
    parts: dict[str, list[Array]] = {"embeddings": [], "layer": [], "head": []}
    seen: set[int] = set()
    for name, array in network.weights():
        if id(array) not in seen:  # a tied weight counts where it comes first
            parts[name.split(".")[0]].append(array)
        seen.add(id(array))
    rows = tuple(
        ("encoder" if name == "layer" else name, _count(arrays), _bytes(arrays), _types(arrays))
        for name, arrays in parts.items()
    )
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
    for i, layer in enumerate(plan.layers):
        if i + 1 < len(plan.layers) and plan.layers[i + 1] == layer:
            continue
        products = [getattr(layer, name) for name in PRODUCTS]
        rows.append(
            (
                f"{begin} to {i}",
                *(p.type if p.low >= p.high else f"{p.type} {p.low:g}..{p.high:g}" for p in products),
                layer.attention,
            )
        )
        begin = i + 1
    return Table("plan", ("layers", *PRODUCTS, "attention"), tuple(rows))
