"""Comparison: how far apart two models' answers are, and whether that is within tolerance, to be shown as a Report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fusebert.measure.difference import Difference, tables
from fusebert.measure.rounding import NEARER, POLICY, Rounding
from fusebert.report import Report, Table


class Comparison(list[Difference]):
    """The differences at visible positions, one per output; `hidden` are those at hidden ones,
    which count if `hidden_count`. `same` is the verdict,
    `run_by` who ran the other model, and `facts` and `notes` are what else there is to say; `rounding` is there where
    the baseline is an 8-bit graph, and `spread` are tables of details."""

    def __init__(
        self,
        visible: Iterable[Difference],
        hidden: Sequence[Difference],
        hidden_count: bool,
        same: bool,
        title: str,
        facts: Mapping[str, Any],
        notes: Sequence[str],
        run_by: str,
        rounding: Rounding | None = None,
    ) -> None:
        super().__init__(visible)
        self.hidden, self.hidden_count, self.same, self.title = hidden, hidden_count, same, title
        self.facts, self.notes, self.run_by, self.rounding = facts, notes, run_by, rounding
        self.spread: tuple[Table, ...] = ()

    @property
    def verdict(self) -> dict[str, str]:
        """What to say of a model that may replace the baseline, as facts of a report."""
        if self.rounding is None:
            return {"verdict": "same answers within tolerance"}
        return {"verdict": NEARER if self.rounding.decides else "same answers within tolerance", "policy": POLICY}

    def tables(self, title: str = "differences") -> tuple[Table, ...]:
        """How near the outputs are; and how near to the truth, where the baseline only approximates it."""
        return *tables(self, title), *([self.rounding.table()] if self.rounding else []), *self.spread

    def report(self) -> Report:
        """Everything, to be shown."""
        rows = tuple(
            (d.output, place, short(d.worst), short(d.mean), short(d.over), d.not_finite, d.failed)
            for place, differences in (
                ("visible", self),
                ("hidden" if self.hidden_count else "hidden, not counted", self.hidden),
            )
            for d in differences
        )
        columns = ("output", "at", "worst", "mean", "over", "nan", "failed")
        shown = Table("outputs", columns, rows), *self.tables("closeness")
        return Report(self.title, {**self.facts, "same": self.same}, shown, tuple(self.notes))


def short(value: float) -> float | str:
    """Three digits; JSON has no infinity."""
    return float(f"{value:.3g}") if np.isfinite(value) else "inf"
