"""Outcome: what became of the requests of a load. Latencies of those that were answered are in a histogram of equal
relative error; the refused and the failed are counted apart, and have no part in any percentile."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from hdrh.histogram import HdrHistogram

from fusebert.serve.load.connection import Answer

PERCENTILES = (50.0, 90.0, 95.0, 99.0, 99.9)
REFUSED = (429, 503)
_LONGEST = 3_600_000_000  # microseconds


def histogram() -> Any:
    """An empty histogram of microseconds, exact to three digits."""
    return HdrHistogram(1, _LONGEST, 3)


@dataclass
class Outcome:
    """`bound` is the seconds within which an answer counts as good. `seconds` is how long the load was offered,
    `drained` how long until the last answer."""

    bound: float | None = None
    answered: Any = field(default_factory=histogram)
    refused: Any = field(default_factory=histogram)
    lags: Any = field(default_factory=histogram)
    statuses: Counter[int] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    good: int = 0
    said: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    seconds: float = 0.0
    drained: float = 0.0
    cpu: float = 0.0  # seconds that the generator computed

    def add(self, answer: Answer, seconds: float) -> None:
        """Counts one request."""
        self.statuses[answer.status] += 1
        microseconds = max(1, min(_LONGEST, round(seconds * 1e6)))
        if answer.status == 200:
            self.answered.record_value(microseconds)
            self.good += self.bound is None or seconds <= self.bound
            self.stages.update(answer.stages)
        elif answer.status in REFUSED:
            self.refused.record_value(microseconds)

    @property
    def requests(self) -> int:
        """All that were sent."""
        return sum(self.statuses.values())

    @property
    def refusals(self) -> int:
        """Those that the server turned away."""
        return sum(self.statuses[status] for status in REFUSED)

    @property
    def failures(self) -> int:
        """Those that were neither answered nor turned away."""
        return self.requests - self.statuses[200] - self.refusals

    @property
    def rate(self) -> float:
        """Answers a second."""
        return self.statuses[200] / self.drained if self.drained else 0.0

    def percentile(self, percent: float) -> float:
        """Milliseconds within which that share of the answered were answered."""
        return float(self.answered.get_value_at_percentile(percent)) / 1e3

    @property
    def kept(self) -> bool:
        """Whether 99 % of all requests were answered within the bound."""
        return self.requests > 0 and self.good >= 0.99 * self.requests

    def latencies(self) -> dict[str, float]:
        """Milliseconds, by name."""
        named = {f"p{percent:g}": round(self.percentile(percent), 3) for percent in PERCENTILES}
        mean, largest = self.answered.get_mean_value() / 1e3, self.answered.get_max_value() / 1e3
        return {"mean": round(mean, 3), **named, "max": round(largest, 3)}

    def split(self) -> dict[str, float]:
        """Mean milliseconds of the server's stages, as it told them; the rest is the way there and back."""
        count = max(1, self.statuses[200])
        told = {stage: round(total / count, 3) for stage, total in self.stages.items()}
        if told:
            told["rest"] = round(max(0.0, self.answered.get_mean_value() / 1e3 - sum(told.values())), 3)
        return told
