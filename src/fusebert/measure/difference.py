"""Difference: how far apart two models' answers are, output by output, and whether that is within a tolerance. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fusebert.ops.graph import Array
from fusebert.report import Table

# Worst error as a share of the output's scale; mean cosine per row. The worst of many rounded numbers is a matter of
# luck, so in int8 that bound is only there for what is broken: it is 3.5 times the error that the cosine allows.
TOLERANCES = {"fp32": (1e-4, 0.99999), "bf16": (0.05, 0.999), "int8": (0.5, 0.99), "int8-bf16": (0.5, 0.99)}
_HEADS = ("logits", "pool")  # in the name of an output that a head makes
MOST_FLIPS = 0.1  # of the rows, on random ids, where many a decision is close


@dataclass(frozen=True)
class Difference:
    """Of one output: the worst error as a share of its scale, the cosine of its rows, for logits the share of rows
    whose largest is another one, the usual error (root mean square) as a share of the usual number; the worst and mean
    difference, the share of elements over tolerance, how many are no finite numbers, and how many samples failed."""

    output: str
    worst_error: float
    mean_cosine: float
    worst_cosine: float
    flips: float = 0.0
    usual_error: float = 0.0
    worst: float = 0.0
    mean: float = 0.0
    over: float = 0.0
    not_finite: int = 0
    failed: int = 0


@dataclass(frozen=True)
class Tolerance:
    """What an element may be off: `atol` and `rtol` of what it should be; or, where a precision is named, that
    precision's share of the output's scale, and for the whole output what `within` asks for."""

    rtol: float = 1e-3
    atol: float = 1e-4
    precision: str | None = None

    def allowed(self, baseline: Array, scale: float) -> Any:
        """How far each element may be off."""
        if self.precision is None:
            return self.atol + self.rtol * np.abs(baseline)
        return TOLERANCES[self.precision][0] * (scale or 1.0)

    def __str__(self) -> str:
        if self.precision is None:
            return f"rtol {self.rtol:g}, atol {self.atol:g}"
        error, cosine = TOLERANCES[self.precision]
        return (
            f"{self.precision}: mean cosine {cosine:g}, behind a head a usual error of {_behind_a_head(cosine):.2g}; "
            f"at worst {error:g} of the output's scale, {MOST_FLIPS:.0%} flips"
        )


def _behind_a_head(cosine: float) -> float:
    """The usual error that a head may give whose encoder's rows have that cosine. The error of those rows follows from
    the cosine; a head, which is there to tell texts apart, makes up to twice as much of it."""
    return 2 * float(np.sqrt(2 * (1 - cosine)))


class Tally:
    """Adds up the difference of one output over samples; keeps none of them."""

    def __init__(self, output: str, tolerance: Tolerance | None = None) -> None:
        self._output, self._tolerance = output, tolerance or Tolerance()
        self._scale = self._sum = self._cosines = self._squares = self._errors = 0.0
        self._lowest = 1.0
        self._elements = self._rows = self._over = self._broken = self._flips = self._directions = 0
        self._worst: list[float] = []  # of each sample
        self._beyond: list[bool] = []  # each sample's own tolerance

    def add(self, baseline: Array, other: Array) -> None:
        """Compares one sample's rows `[rows, width]`. An element that is no finite number on either side is never
        within tolerance, even where both have the same."""
        a, b = baseline.astype(np.float64), other.astype(np.float64)
        good = np.isfinite(a) & np.isfinite(b)
        broken = int(a.size - good.sum())
        if broken:
            a, b = np.where(good, a, 0), np.where(good, b, 0)
        off = np.abs(a - b)
        self._scale = max(self._scale, float(np.abs(a).max(initial=0)))
        over = ~good | (off > self._tolerance.allowed(a, self._scale))
        self._beyond.append(bool(over.any()))
        self._worst.append(float("inf") if broken else float(off.max(initial=0)))
        self._over, self._broken = self._over + int(over.sum()), self._broken + broken
        self._sum, self._elements = self._sum + float(off.sum()), self._elements + a.size
        self._squares, self._errors = self._squares + float((a * a).sum()), self._errors + float((off * off).sum())
        if a.size:
            cosines = _cosines(a, b)
            self._cosines, self._directions = self._cosines + float(cosines.sum()), self._directions + len(cosines)
            self._lowest = min(self._lowest, float(cosines.min()))
            self._flips, self._rows = self._flips + int((a.argmax(-1) != b.argmax(-1)).sum()), self._rows + len(a)

    @property
    def failures(self) -> set[int]:
        """The numbers of the samples that are beyond tolerance."""
        if self._tolerance.precision is None:
            return {number for number, beyond in enumerate(self._beyond) if beyond}
        allowed = self._tolerance.allowed(np.empty(0), self._scale)
        return {number for number, worst in enumerate(self._worst) if worst > allowed}

    @property
    def difference(self) -> Difference | None:
        """The difference so far; none if nothing was added."""
        if not self._elements:
            return None
        counted: dict[str, Any] = {
            "over": self._over / self._elements, "not_finite": self._broken, "failed": len(self.failures),
        }  # fmt: skip
        if self._broken:
            inf = float("inf")
            return Difference(self._output, inf, -1.0, -1.0, 1.0, inf, worst=inf, mean=inf, **counted)
        worst = max(self._worst)
        return Difference(
            self._output,
            worst_error=worst / (self._scale or 1.0),
            mean_cosine=self._cosines / self._directions,
            worst_cosine=self._lowest,
            flips=self._flips / self._rows if "logits" in self._output else 0.0,
            usual_error=float(np.sqrt(self._errors / (self._squares or 1.0))),
            worst=worst,
            mean=self._sum / self._elements,
            **counted,
        )


def _cosines(a: Array, b: Array) -> Array:
    """Of each pair of rows. Rows of one number have no direction: those are taken together."""
    if a.shape[-1] == 1:
        a, b = a.T, b.T
    lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    same = np.abs(a - b).sum(-1) == 0
    cosines: Array = np.where(lengths > 0, (a * b).sum(-1) / np.where(lengths > 0, lengths, 1), same * 1.0)
    return cosines


def difference(output: str, baseline: Array, other: Array) -> Difference:
    """Compares rows along the last axis; a NaN on either side counts as infinitely wrong."""
    tally = Tally(output)
    tally.add(*(value.reshape(-1, value.shape[-1]) for value in (baseline, other)))
    return tally.difference or Difference(output, 0.0, 1.0, 1.0)


def within(differences: Iterable[Difference], precision: str) -> bool:
    """Whether every difference is within the precision's tolerances. A row of a few logits may point anywhere once they
    are near zero, so behind a head the usual error and flips count instead of the angle."""
    error, cosine = TOLERANCES[precision]
    return all(
        d.worst_error <= error
        and (
            d.flips <= MOST_FLIPS and d.usual_error <= _behind_a_head(cosine)
            if any(word in d.output for word in _HEADS)
            else d.mean_cosine >= cosine
        )
        for d in differences
    )


def table(differences: Iterable[Difference], title: str = "differences") -> Table:
    """As a table of a report."""
    columns = ("output", "worst_error", "usual_error", "mean_cosine", "worst_cosine", "flips")
    return Table(title, columns, tuple(tuple(asdict(d)[name] for name in columns) for d in differences))
