"""Skipping: a rewritten model -> what it would gain if hidden positions were skipped that only its outputs show. Each
such encoder's first layer runs on a padded batch both ways, in turns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fusebert.engine.native import EncoderEngine, pool
from fusebert.engine.quantize import convert_encoder
from fusebert.match import FoundEncoder, read_encoder
from fusebert.measure.timing import interleave
from fusebert.rewrite.packing import Rewritten
from fusebert.values.batch import Batch
from fusebert.values.plan import make_plan
from fusebert.values.target import Fused

_LENGTHS = (12, 20, 28, 39, 52, 69, 93, 128)  # as texts have them: 43 % of a padded batch are tokens
_NOTE = (
    "Hidden positions are computed, since outputs show them and nobody knows who reads them. --padding skip leaves "
    "zeros there: a layer takes {:.0%} of the time then, for {} texts of {} to {} tokens."
)


def describe_skipping(rewritten: Rewritten, target: Fused) -> Iterator[str]:
    """A note for every encoder whose hidden positions are computed for its outputs alone."""
    for place, padding in zip(rewritten.cuts, rewritten.padding, strict=True):
        if target.padding == "auto" and padding == "compute" and place.found.shows_hidden:
            share = _share(rewritten, place.found, target)
            yield _NOTE.format(share, len(_LENGTHS), min(_LENGTHS), max(_LENGTHS))


def _share(rewritten: Rewritten, found: FoundEncoder, target: Fused) -> float:
    """The time of a layer that skips hidden positions, as a share of one that computes them."""
    whole = read_encoder(rewritten.finding.raised, found)
    first = replace(whole, blocks=whole.blocks[:2], order=(0, 1), final=None)
    plan = make_plan(target.precision, 2)
    engine = EncoderEngine(convert_encoder(first, plan), plan, pool(target.threads))
    shape = len(_LENGTHS), max(_LENGTHS)
    rows = np.random.default_rng(0).standard_normal((shape[0] * shape[1], whole.hidden_size), np.float32)
    mask, output = np.arange(shape[1]) < np.array(_LENGTHS)[:, None], np.empty_like(rows)
    batches = {how: Batch.masked(mask, shape, how, found.heads) for how in ("compute", "skip")}
    calls = {how: lambda batch=batch: engine.run_padded(rows, output, batch, []) for how, batch in batches.items()}
    times = interleave(calls, rounds=3, seconds=0.05)
    return times["skip"].best / times["compute"].best
