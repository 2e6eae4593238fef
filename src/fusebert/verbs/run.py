"""A model on a few texts, as a Report: labels, entities, answers, masked words, or similarities of embeddings."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from fusebert.engine.load import load
from fusebert.engine.model import Model
from fusebert.errors import FusebertError
from fusebert.report import Report, Table


def run(
    path: str | Path,
    texts: list[str],
    pair: bool = False,
    precision: str | None = None,
    pooling: str | None = None,
    head: str | None = None,
    threads: int | None = None,
    vectors: bool = False,
) -> Report:
    """Loads a model and runs it; with `pair`, texts are taken two by two. `vectors` adds the embeddings themselves."""
    if pair and len(texts) % 2:
        raise FusebertError(f"pairs need an even number of texts, not {len(texts)}")
    inputs: list[Any] = list(zip(texts[::2], texts[1::2], strict=True)) if pair else list(texts)
    model = load(path, precision, threads, head=head)
    facts: dict[str, Any] = {
        "family": model.network.family,
        "precision": model.plan.precision,
        "threads": model.threads,
    }
    names = [" | ".join(i) if pair else i for i in inputs]
    if model.network.head.kind == "none":
        embeddings = model.encode(inputs, pooling)
        if vectors:
            facts["embeddings"] = embeddings.tolist()
        rows = [
            (name, *(round(float(s), 4) for s in line))
            for name, line in zip(names, embeddings @ embeddings.T, strict=True)
        ]
        return Report(
            str(path), facts, (Table("similarity", ("text", *(str(i + 1) for i in range(len(names)))), tuple(rows)),)
        )
    return Report(str(path), facts, (_predictions(model, inputs, names),))


def _predictions(model: Model, inputs: list[Any], names: list[str]) -> Table:
    kind, results = model.network.head.kind, list(zip(names, model.predict(inputs), strict=True))
    rows: list[tuple[Any, ...]]
    if kind == "sequence":
        rows = [(name, label.label, round(label.score, 4)) for name, label in results]
        return Table("labels", ("text", "label", "score"), tuple(rows))
    if kind == "masked":
        rows = [
            (name, i + 1, word, round(s, 4))
            for name, masks in results
            for i, words in enumerate(masks)
            for word, s in words
        ]
        return Table("words", ("text", "mask", "word", "score"), tuple(rows))
    spans = [(name, span) for name, found in results for span in (found if kind == "token" else [found])]
    rows = [(name, *asdict(span).values()) for name, span in spans]
    return Table("spans", ("text", "found", "start", "end", "label", "score"), tuple(rows))
