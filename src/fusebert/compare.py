"""Two models on the same inputs: how far apart are their answers, and is that within what the precision promises?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fusebert.graph import Array, Graph
from fusebert.match.assemble import Assembled
from fusebert.match.translate import translate
from fusebert.model import Model
from fusebert.ops import evaluate
from fusebert.progress import progress
from fusebert.report import Table

# Worst error as a share of the output's scale; mean cosine per row.
TOLERANCES = {"fp32": (1e-4, 0.99999), "bf16": (0.05, 0.999), "int8": (0.2, 0.99), "int8-bf16": (0.2, 0.99)}
MOST_FLIPS = 0.1  # of the rows, on random ids, where many a decision is close


@dataclass(frozen=True)
class Difference:
    """Of one output: the worst error as a share of its scale, the cosine of its rows, and for logits the share of rows
    whose largest is another one."""

    output: str
    worst_error: float
    mean_cosine: float
    worst_cosine: float
    flips: float = 0.0


def difference(output: str, baseline: Array, other: Array) -> Difference:
    """Compares rows along the last axis; a NaN on either side counts as infinitely wrong."""
    if np.isnan(baseline).any() or np.isnan(other).any():
        return Difference(output, float("inf"), -1.0, -1.0, 1.0)
    a, b = baseline.astype(np.float64), other.astype(np.float64)
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine = np.where(
        lengths > 0, (a * b).sum(-1) / np.where(lengths > 0, lengths, 1), (np.abs(a - b).sum(-1) == 0) * 1.0
    )
    scale = float(np.abs(a).max(initial=0)) or 1.0
    flips = float((a.argmax(-1) != b.argmax(-1)).mean()) if "logits" in output else 0.0
    error = float(np.abs(a - b).max(initial=0)) / scale
    return Difference(output, error, float(cosine.mean()), float(cosine.min()), flips)


def sample_inputs(model: Model, seed: int = 0) -> list[dict[str, Array]]:
    """Random ids at several lengths with padding right, left and in holes; the same for every precision."""
    random = np.random.default_rng(seed)
    network = model.network
    longest = network.embeddings.longest
    batches = []
    for sequences, length in ((1, 1), (4, 16), (3, 64), (2, 128), (1, 384)):
        length = min(length, longest)
        ids = random.integers(0, len(network.embeddings.word), (sequences, length))
        mask = np.ones_like(ids)
        for row, kind in zip(mask[1:], ("right", "left", "holes"), strict=False):
            cut = int(random.integers(1, length)) if length > 1 else 0
            if kind == "right":
                row[length - cut :] = 0
            elif kind == "left":
                row[:cut] = 0
            else:
                row[1::3] = 0
        batches.append({"input_ids": ids, "attention_mask": mask})
    return batches


def compare(baseline: Model, other: Model, show_progress: bool = False) -> list[Difference]:
    """The difference of every output over `sample_inputs`, at visible positions."""
    pairs: dict[str, tuple[list[Array], list[Array]]] = {}
    batches = sample_inputs(baseline)
    with progress("comparing", len(batches), show_progress) as advance:
        for inputs in batches:
            visible = inputs["attention_mask"].astype(bool)
            expected, got = (model.run(inputs["input_ids"], inputs["attention_mask"]) for model in (baseline, other))
            for name, value in expected.items():
                rows, others = (_rows(name, v, visible) for v in (value, got[name]))
                pairs.setdefault(name, ([], []))[0].append(rows)
                pairs[name][1].append(others)
            advance(1)
    return [difference(name, np.concatenate(a), np.concatenate(b)) for name, (a, b) in pairs.items()]


def compare_with_graph(graph: Graph, model: Model, assembled: Assembled) -> list[Difference]:
    """The difference of a model to the graph it was assembled from, whose every node is computed in NumPy: of the
    outputs that both have, or else of the encoder's rows."""
    original = translate(graph)
    places = dict(assembled.outputs)
    wanted = {name: original.outputs[place] for name, place in places.items()} or {"encoder": assembled.encoder_output}
    original = replace(original, outputs=tuple(wanted.values()))
    names = assembled.inputs
    pairs: dict[str, tuple[list[Array], list[Array]]] = {}
    for given in _small_inputs(original, model, assembled):
        feeds = {names[role]: given[role].astype(original.types[names[role]].dtype or "int64") for role in names}
        answers = evaluate(original, feeds)
        visible = given["mask"].astype(bool) if "mask" in names else np.ones(given["ids"].shape, bool)
        got = model.run(given["ids"], visible, given["types"] if "types" in names else None, not places)
        for name, tensor in wanted.items():
            value = got["hidden_states"][-1] if name == "encoder" else got[name]
            pairs.setdefault(name, ([], []))[0].append(_rows(name, answers[tensor].reshape(value.shape), visible))
            pairs[name][1].append(_rows(name, value, visible))
    return [difference(name, np.concatenate(a), np.concatenate(b)) for name, (a, b) in pairs.items()]


def _small_inputs(graph: Graph, model: Model, assembled: Assembled) -> list[dict[str, Array]]:
    """Few tokens, since NumPy is slow, with padding right, and in holes where the graph does not just count positions;
    of the size that the graph declares, if any."""
    random = np.random.default_rng(0)
    declared = graph.types[assembled.inputs["ids"]].shape or (None, None)
    batches = []
    for usual in ((1, 4), (3, 9)):
        shape = tuple(n if isinstance(n, int) else m for n, m in zip(declared, usual, strict=True))
        ids = random.integers(0, len(model.network.embeddings.word), shape)
        mask = np.ones_like(ids)
        if shape[1] > 1:
            mask[1::2, -(shape[1] // 2) :] = 0
            mask[2::2, 1::3] = assembled.counts_positions
        batches.append({"ids": ids, "mask": mask, "types": random.integers(0, 2, shape)})
    return batches


def _rows(name: str, value: Array, visible: Array) -> Array:
    """An output as rows `[rows, width]`: those of visible tokens, or one per sequence."""
    if name in ("start_logits", "end_logits"):
        return value[visible][:, None]
    return value[visible] if value.ndim == 3 else value


def within(differences: list[Difference], precision: str) -> bool:
    """Whether every difference is within the precision's tolerances. A row of a few logits may point anywhere once they
    are near zero, so for those error and flips count instead of the angle."""
    error, cosine = TOLERANCES[precision]
    return all(
        d.worst_error <= error and d.flips <= MOST_FLIPS and (d.mean_cosine >= cosine or "logits" in d.output)
        for d in differences
    )


def table(differences: list[Difference], title: str = "differences") -> Table:
    """As a table of a report."""
    rows: list[tuple[Any, ...]] = [tuple(asdict(d).values()) for d in differences]
    return Table(title, ("output", "worst_error", "mean_cosine", "worst_cosine", "flips"), tuple(rows))
