"""Embed: a model on all texts of a data set, however large -> vectors, labels or scores on disk, in this process or on
Ray. Killed at any moment, the same command goes on and gives the same bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusebert.engine.fingerprint import fingerprint
from fusebert.engine.load import load
from fusebert.engine.model import Model
from fusebert.errors import FusebertError
from fusebert.formats import dataset
from fusebert.formats.parts import Output
from fusebert.progress import progress
from fusebert.report import Report
from fusebert.verbs import embed_here, embed_on_ray
from fusebert.verbs.windows import Place as Place
from fusebert.verbs.windows import Settings as Settings
from fusebert.verbs.windows import Worker


def embed(
    model: str | Path | Model,
    data: str | Path,
    out: str | Path,
    settings: Settings = Settings(),  # noqa: B008  (frozen)
    *,
    precision: str | None = None,
    threads: int | None = None,
    tokenizer: str | Path | None = None,
    place: Place = Place(),  # noqa: B008
    overwrite: bool = False,
    show_progress: bool = False,
) -> Report:
    """Writes a vector, label, score or token vectors for every row of `data` (a file, a folder, a glob, or `-`)."""
    output, files = Output(Path(out)), dataset.list_files(data)
    if place.on and dataset.STDIN in files:
        raise FusebertError("standard input cannot be read on Ray, which may have to read it again; give a file")
    loaded = model if isinstance(model, Model) else load(model, precision, threads)
    if tokenizer is not None:
        loaded.take_tokenizer(tokenizer)
    Worker(loaded, settings)  # or says what does not fit
    manifest = {
        "version": 1,
        "input": [dataset.fingerprint(path) for path in files],
        "model": fingerprint(loaded),
        "options": {**vars(settings), "columns": list(settings.columns), "keep": list(settings.keep)},
    }
    with output.opened(manifest, overwrite) as ready:
        if ready is None:
            return _report(data, out, output.stored, ("All of it was done before.",), output.rejected)
        start = time.monotonic()
        rows = tokens = 0

        def tell(more_rows: int, more_tokens: int) -> None:
            nonlocal rows, tokens
            rows, tokens = rows + more_rows, tokens + more_tokens
            advance(more_rows, f"{rows:,} rows, {tokens / (time.monotonic() - start):,.0f} tokens/s")

        with progress("embedding", dataset.count_rows(files), show_progress) as advance:
            if place.on is None:
                parts = embed_here.run(loaded, settings, files, ready, output, tell, place.workers)
            else:
                parts = embed_on_ray.run(loaded, settings, files, ready, output, tell, place, threads)
        done = output.finish(manifest, parts, rows)
    seconds = time.monotonic() - start
    speed = {"seconds": round(seconds, 3), "tokens": tokens, "tokens_per_second": round(tokens / seconds)}
    notes = (f"{len(ready)} parts were there already.",) if ready else ()
    return _report(data, out, {**done, **speed}, notes, output.rejected)


def _report(data: Any, out: Any, done: Mapping[str, Any], notes: tuple[str, ...], rejected: Path) -> Report:
    names = ("rows", "rejected", "parts", "seconds", "tokens", "tokens_per_second", "model")
    if done["rejected"]:
        notes += (f"{done['rejected']} rows were not usable; {rejected} tells which, and why.",)
    return Report(f"{data} -> {out}", {name: done[name] for name in names if name in done}, notes=notes)
