"""Spread: what was counted of differences -> tables of details: how many are of each size, for every kind of padding,
and the samples that are farthest apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fusebert.measure.difference import SIZES, Tally
from fusebert.report import Table

_MOST = 5  # samples that are listed of each output
_COLUMNS = ("output", "padding", "place", "up_to", "elements")


def spread(tallies: Sequence[Tally], asked: Sequence[tuple[str, tuple[int, ...]]]) -> tuple[Table, ...]:
    """Both tables; `asked` has the padding and the size of every sample."""
    limits = [*(float(size) for size in SIZES), "more"]
    counts, worst = [], []
    for tally in tallies:
        for padding in dict.fromkeys(padding for padding, _ in asked):
            own = [n for n, (kind, _) in zip(tally.sizes, asked, strict=False) if kind == padding]
            total = np.sum(own, axis=0) if own else []
            counts += [(tally.output, padding, i, limits[i], int(n)) for i, n in enumerate(total) if n]
        far = sorted(enumerate(tally.worst[: len(asked)]), key=lambda one: -one[1])[:_MOST]
        for i, most in far:
            worst.append((tally.output, i, asked[i][0], " x ".join(map(str, asked[i][1])), float(f"{most:.4g}")))
    columns = ("output", "sample", "padding", "size", "worst")
    return (
        Table("distribution", _COLUMNS, tuple(counts), detail=True),
        Table("worst_samples", columns, tuple(worst), detail=True),
    )
