"""Difference: how far apart two models' answers are, output by output, and whether that is within a tolerance. Pure.

Vectors count by their direction, scores by the decisions they mean, with the probabilities and margins of these,
numbers by themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.measure.kinds import VECTOR, Kind, probabilities
from fusebert.ops.graph import Array
from fusebert.report import Table

SIZES = np.array([0, *(10.0**n for n in range(-8, 1))])  # what differences are counted by: up to so much
MOST_FLIPS = 0.1  # of the decisions: on random ids many are close


@dataclass(frozen=True)
class Limit:
    """What a precision may cost. `error`: the worst one as a share of the output's scale. `cosine`: of rows, on
    average. `probability`: how much those of a decision change, on average. `margin`: by how much what flips was
    decided.

    The worst of many rounded numbers is a matter of luck, so in int8 the bounds on it are only there for what is
    broken: 3.5 times the error that the cosine allows."""

    error: float
    cosine: float
    probability: float
    margin: float

    @property
    def behind_head(self) -> float:
        """The usual error that a head may give whose encoder's rows have that cosine. The error of those rows follows
        from the cosine; a head, which is there to tell texts apart, makes up to twice as much of it."""
        return 2 * float(np.sqrt(2 * (1 - self.cosine)))

    @property
    def cosine_behind_head(self) -> float:
        """What that is for vectors."""
        return 1 - 4 * (1 - self.cosine)


_INT8 = Limit(0.5, 0.99, 0.05, 0.5)
LIMITS = {
    "fp32": Limit(1e-4, 0.99999, 1e-3, 1e-3), "bf16": Limit(0.05, 0.999, 0.02, 0.15), "int8": _INT8, "int8-bf16": _INT8,
}  # fmt: skip


@dataclass(frozen=True)
class Difference:
    """Of one output: the worst and the usual error (root mean square) as shares of its scale, the cosine of its rows;
    the usual error as a share of the usual number; of its decisions how many flip, how much their probabilities change
    on average, and the largest margin by which the baseline preferred what flipped; the worst and mean difference, the
    share of elements over tolerance, how many are no finite numbers, and how many samples failed."""

    output: str
    worst_error: float
    mean_cosine: float
    worst_cosine: float
    usual_error: float = 0.0
    relative_error: float = 0.0
    kind: Kind = VECTOR
    decisions: int = 0
    flips: int = 0
    probability: float = 0.0
    margin: float = 0.0
    worst: float = 0.0
    mean: float = 0.0
    over: float = 0.0
    not_finite: int = 0
    failed: int = 0

    @property
    def measure(self) -> str:
        """What `distance` is."""
        names = {"vector": "1 - mean cosine", "labels": "share of flips"}
        return names.get(self.kind.name, "usual error / usual number")

    @property
    def distance(self) -> float:
        """How far apart the two are, in one number."""
        if self.kind.name == "vector":
            return 1 - self.mean_cosine
        return self.flips / (self.decisions or 1) if self.kind.name == "labels" else self.relative_error

    def faults(self, precision: str) -> Iterator[str]:
        """What is beyond a precision's limits."""
        limit, name = LIMITS[precision], self.output
        if self.kind.name in ("vector", "value", "classes", "positions") and not self.worst_error <= limit.error:
            yield f"{name} is off by up to {self.worst_error:.3g} of its scale, over {limit.error:g}"
        if self.kind.name == "vector":
            least = limit.cosine_behind_head if self.kind.head else limit.cosine
            if not self.mean_cosine >= least:
                yield f"{name} has a mean cosine of {self.mean_cosine:.5f}, under {least:g}"
        elif not self.relative_error <= limit.behind_head and self.kind.name != "labels":
            most = limit.behind_head
            yield f"{name} is usually off by {self.relative_error:.2g} of its usual number, over {most:.2g}"
        if self.flips > MOST_FLIPS * self.decisions:
            yield f"{name}: {self.flips} of {self.decisions} decisions flip, over {MOST_FLIPS:.0%}"
        if not self.probability <= limit.probability:
            yield f"{name}: probabilities change by {self.probability:.2g} on average, over {limit.probability:g}"
        if not self.margin <= limit.margin:
            yield f"{name}: a decision flips that had a margin of {self.margin:.2g}, over {limit.margin:g}"


@dataclass(frozen=True)
class Tolerance:
    """What an element may be off: `atol` and `rtol` of what it should be; or, where a precision is named, that
    precision's share of the output's scale, and for the whole output what its limits ask for."""

    rtol: float = 1e-3
    atol: float = 1e-4
    precision: str | None = None

    def allowed(self, baseline: Array, scale: float) -> Any:
        """How far each element may be off."""
        if self.precision is None:
            return self.atol + self.rtol * np.abs(baseline)
        return LIMITS[self.precision].error * (scale or 1.0)

    @property
    def short(self) -> str:
        """In a few words."""
        return (
            f"rtol {self.rtol:g}, atol {self.atol:g}" if self.precision is None else f"the limits of {self.precision}"
        )

    def __str__(self) -> str:
        if self.precision is None:
            return self.short
        limit = LIMITS[self.precision]
        return (
            f"{self.precision}: vectors with a mean cosine of {limit.cosine:g}, behind a head of "
            f"{limit.cosine_behind_head:g}; {MOST_FLIPS:.0%} flips of decisions, of a margin up to {limit.margin:g}, "
            f"and probabilities within {limit.probability:g}; at worst {limit.error:g} of the output's scale"
        )


class Tally:
    """Adds up the difference of one output over samples; keeps none of them."""

    def __init__(self, output: str, tolerance: Tolerance | None = None, kind: Kind = VECTOR) -> None:
        self._output, self._tolerance, self._kind = output, tolerance or Tolerance(), kind
        self._scale = self._sum = self._cosines = self._squares = self._errors = self._changes = self._margin = 0.0
        self._lowest = 1.0
        self._elements = self._over = self._broken = self._directions = self._decisions = self._flips = 0
        self._worst: list[float] = []  # of each sample
        self._beyond: list[bool] = []  # each sample's own tolerance
        self.sizes: list[Array] = []  # of each sample: how many differences are of each size

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
        self.sizes.append(
            np.bincount(np.searchsorted(SIZES, np.where(good, off, np.inf).ravel()), minlength=len(SIZES) + 1)
        )
        self._over, self._broken = self._over + int(over.sum()), self._broken + broken
        self._sum, self._elements = self._sum + float(off.sum()), self._elements + a.size
        self._squares, self._errors = self._squares + float((a * a).sum()), self._errors + float((off * off).sum())
        if a.size:
            cosines = _cosines(a, b)
            self._cosines, self._directions = self._cosines + float(cosines.sum()), self._directions + len(cosines)
            self._lowest = min(self._lowest, float(cosines.min()))
            if self._kind.decides:
                self.decide(*decisions(a, b, self._kind))

    def decide(self, flipped: Array, changes: Array, margins: Array) -> None:
        """Counts decisions: which of them flip, how much their probabilities change, and by how much the baseline
        preferred what it decided to what the other did."""
        self._decisions, self._flips = self._decisions + len(flipped), self._flips + int(flipped.sum())
        self._changes = self._changes + float(changes.sum())
        self._margin = max(self._margin, float(margins[flipped].max(initial=0)))

    @property
    def worst(self) -> list[float]:
        """The largest difference of each sample."""
        return self._worst

    @property
    def output(self) -> str:
        """The output that is counted."""
        return self._output

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
            "kind": self._kind, "decisions": self._decisions, "flips": self._flips,
            "over": self._over / self._elements, "not_finite": self._broken, "failed": len(self.failures),
        }  # fmt: skip
        if self._broken:
            inf = float("inf")
            return Difference(self._output, inf, -1.0, -1.0, inf, inf, worst=inf, mean=inf, **counted)
        worst, scale = max(self._worst), self._scale or 1.0
        return Difference(
            self._output,
            worst_error=worst / scale,
            mean_cosine=self._cosines / self._directions,
            worst_cosine=self._lowest,
            usual_error=float(np.sqrt(self._errors / self._elements)) / scale,
            relative_error=float(np.sqrt(self._errors / (self._squares or 1.0))),
            probability=self._changes / (self._decisions or 1),
            margin=self._margin,
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


def decisions(a: Array, b: Array, kind: Kind) -> tuple[Array, Array, Array]:
    """Of rows `[rows, classes]`: which decisions flip, how much probabilities change, and the baseline's margins."""
    if kind.name == "labels":
        flipped = (a != b).ravel()
        return flipped, flipped * 0.0, flipped * 0.0
    p, q = probabilities(a, kind.form), probabilities(b, kind.form)
    changes = np.abs(p - q).max(-1)
    if kind.form == "independent":  # each is a decision of its own
        flips = (p > 0.5) != (q > 0.5)
        return flips.any(-1), changes, (np.abs(2 * p - 1) * flips).max(-1)
    mine, others = p.argmax(-1), q.argmax(-1)
    rows = np.arange(len(p))
    return mine != others, changes, p[rows, mine] - p[rows, others]


def difference(output: str, baseline: Array, other: Array, kind: Kind = VECTOR) -> Difference:
    """Compares rows along the last axis; a NaN on either side counts as infinitely wrong."""
    tally = Tally(output, kind=kind)
    tally.add(*(value.reshape(-1, value.shape[-1]) for value in (baseline, other)))
    return tally.difference or Difference(output, 0.0, 1.0, 1.0, kind=kind)


def within(differences: Iterable[Difference], precision: str) -> bool:
    """Whether every difference is within the precision's limits."""
    return not any(True for one in differences for _ in one.faults(precision))


def tables(differences: Iterable[Difference], title: str = "differences") -> tuple[Table, ...]:
    """As tables of a report; errors are shares of an output's scale."""
    all_of_them = list(differences)
    named = ("worst_error", "usual_error", "mean_cosine", "worst_cosine")
    rows = tuple((one.output, one.kind.name, *(getattr(one, name) for name in named)) for one in all_of_them)
    made = Table(title, ("output", "judged_as", *named), rows)
    decided = tuple((d.output, d.decisions, d.flips, d.probability, d.margin) for d in all_of_them if d.decisions)
    columns = ("output", "decisions", "flips", "probability_change", "largest_margin")
    return (made, Table(f"{title}_in_decisions", columns, decided)) if decided else (made,)
