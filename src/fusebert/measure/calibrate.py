"""Calibrate: a model and texts like those it will see -> the range of every product's input, as a file that makes int8
static. The texts run in fp32, once to see the ends and, unless those are what is wanted, once more to count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine.load import load
from fusebert.engine.model import Model
from fusebert.engine.tokenizer import Text
from fusebert.errors import FusebertError, unknown
from fusebert.formats import write
from fusebert.formats.ranges import FORMS, default_form, is_factors, write_factors
from fusebert.measure.histogram import Histogram, check_method, choose_range
from fusebert.measure.tasks import Task, read_texts
from fusebert.ops.graph import Array
from fusebert.report import Report, Table
from fusebert.source import Source, open
from fusebert.values.plan import PRODUCTS, too_wide

SAMPLES = 512


@dataclass(frozen=True)
class Settings:
    """How ranges are observed, as `calibrate` takes it."""

    samples: int = SAMPLES
    method: str = "minmax"
    percentile: float = 99.99
    form: str | None = None
    tokenizer: str | Path | None = None
    threads: int | None = None


def calibrate(
    path: str | Path | Source,
    data: str | Path,
    out: str | Path,
    overwrite: bool = False,
    show_progress: bool = False,
    **settings: Any,
) -> Report:
    """Writes the observed input ranges of a checkpoint or a graph to `out`.

    data: a text on every line, or a labelled file as `accuracy` takes it.
    samples: texts, taken evenly from the whole file; 512 unless given.
    method, percentile: see `choose_range`. form: "ours" (JSON) or "bert-op" (the TensorFlow op's text); by default as
    the file is called. tokenizer: a folder, where the model's own has none. threads: as in `load`."""
    source, data, out, wanted = open(path), Path(data), Path(out), Settings(**settings)
    form, method = wanted.form or default_form(out), wanted.method
    if form not in FORMS:
        raise unknown("form", form, FORMS)
    check_method(method, wanted.percentile)
    write.check(out, is_factors if overwrite else None)
    task = read_texts(data).spread(wanted.samples)
    model = _fp32(source, wanted)
    texts = _texts(task, model)
    seen = model.observe(texts, progress=show_progress)
    ranges, clipped = seen, np.zeros(seen.shape[:2])
    if method != "minmax":
        ranges, clipped = find_ranges(model, texts, seen, method, wanted.percentile, show_progress)
    about: dict[str, Any] = {"model": str(source.path), "data": str(data), "texts": len(texts), "method": method}
    about |= {"percentile": wanted.percentile} if method == "percentile" else {}
    write_factors(out, ranges, form, about, overwrite)
    facts = {**about, "form": form, "largest_share_clipped": float(clipped.max(initial=0))}
    return Report(f"{source.path} -> {out}", facts, (_table(ranges, seen, clipped),), _notes(ranges, out, form))


def find_ranges(
    model: Model, texts: list[Text], seen: Array, method: str, percentile: float = 99.99, show: bool = False
) -> tuple[Array, Array]:
    """Ranges `[layers, 4, 2]` within those `seen`, and the share of values outside of them `[layers, 4]`."""
    histograms = [[Histogram(low, high) for low, high in layer] for layer in seen]
    model.watch(texts, lambda layer, product, rows: histograms[layer][product].add(rows), progress=show)
    chosen = [[choose_range(histogram, method, percentile) for histogram in layer] for layer in histograms]
    values = np.array(chosen, np.float64).reshape(*seen.shape[:2], 3)
    return values[..., :2].astype(np.float32), values[..., 2]


def _fp32(source: Source, wanted: Settings) -> Model:
    model = load(source, threads=wanted.threads)
    if model.plan.precision != "fp32":
        raise FusebertError(
            f"{source.path} computes in {model.plan.precision}; ranges are observed in fp32: give its checkpoint"
        )
    if wanted.tokenizer is not None:
        model.take_tokenizer(wanted.tokenizer)
    return model


def _texts(task: Task, model: Model) -> list[Text]:
    """Pairs run as one input where a head reads them, and as two texts where each gets an embedding."""
    if task.pairs and model.network.head.kind == "none":
        return [part for pair in task.texts for part in pair]
    return list(task.texts)


def _table(ranges: Array, seen: Array, clipped: Array) -> Table:
    rows = tuple(
        (layer, name, *(float(f"{n:.4g}") for n in (*ranges[layer, i], clipped[layer, i], *seen[layer, i])))
        for layer in range(len(ranges))
        for i, name in enumerate(PRODUCTS)
    )
    return Table("ranges", ("layer", "product", "low", "high", "clipped", "seen_low", "seen_high"), rows)


def seen_ranges(model: Model, texts: list[Text]) -> Table:
    """Low and high of the input of every product over these texts, by a model in fp32."""
    seen = model.observe(texts)
    rows = tuple(
        (layer, name, *(float(f"{n:.4g}") for n in seen[layer, i])) for layer in range(len(seen))
        for i, name in enumerate(PRODUCTS)
    )  # fmt: skip
    return Table("ranges", ("layer", "product", "low", "high"), rows, detail=True)


def _notes(ranges: Array, out: Path, form: str) -> tuple[str, ...]:
    wide = [
        f"{name} of layer {layer}"
        for layer in range(len(ranges))
        for i, name in enumerate(PRODUCTS)
        if too_wide(*ranges[layer, i])
    ]
    notes = [f"Too wide for 8 bits, and found per token all the same: {', '.join(wide)}."] if wide else []
    where = "" if form == "ours" else ", QuantizationFactorsPath of the TensorFlow op"
    return *notes, f"Use it: fusebert optimize --ranges {out}, fusebert.load(..., ranges={str(out)!r}){where}."
