"""Rounding: an 8-bit graph, and a model that is to replace it, against what both approximate: the graph without
rounding of activations, its truth. Three sets of differences in; three distances of every output, and which of them
are larger than the original's own, out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fusebert.measure.difference import Difference
from fusebert.measure.inputs import Told
from fusebert.measure.runners import Runner, Unrounded
from fusebert.report import Table
from fusebert.source import GraphSource

POLICY = (
    "The original rounds to 8 bits, so its answers are approximations. A result is accepted if it gives the same "
    "answers within limits, or if each of its outputs is at least as near to the truth as the original's: to what the "
    "same graph computes, with its weights as they are, without rounding of activations."
)


NEARER = "at least as near to the truth as the 8-bit original"


@dataclass(frozen=True)
class Rounding:
    """Differences of the `original` to the truth, of the `result` to the truth, and `between` result and original.
    `decides`: the answers are not the same within limits, so these distances count."""

    original: Sequence[Difference]
    result: Sequence[Difference]
    between: Sequence[Difference]
    decides: bool = False

    def _rows(self) -> Iterator[tuple[Difference, Difference, Difference]]:
        original, between = _named(self.original), _named(self.between)
        return ((original[one.output], one, between[one.output]) for one in self.result if one.output in between)

    @property
    def farther(self) -> list[str]:
        """The outputs whose result is farther from the truth than the original, in words."""
        return [
            f"{mine.output} is {mine.distance:.3g} from the truth, the original {his.distance:.3g} ({mine.measure})"
            for his, mine, _ in self._rows()
            if not mine.distance <= his.distance or mine.not_finite
        ]

    def table(self) -> Table:
        """The three distances of every output."""
        columns = ("output", "distance", "original_to_truth", "result_to_truth", "result_to_original")
        rows = tuple(
            (mine.output, mine.measure, his.distance, mine.distance, both.distance) for his, mine, both in self._rows()
        )
        return Table("rounding", columns, rows)


def is_rounded(source: object) -> bool:
    """Whether a model is a graph that rounds to 8 bits, in a way that can be taken out."""
    return isinstance(source, GraphSource) and bool(source.finding.raised.quantized)


def truth_of(source: GraphSource, original: Runner) -> Runner:
    """The graph without rounding, fed as the original is."""
    told: dict[str, str | float] = {role: given.name for role, given in original.inputs.items()}
    numbers: Told = {given.name: role for given, role in original.roles.fed if not isinstance(role, str)}
    return Unrounded(source, {**told, **numbers})


def _named(differences: Sequence[Difference]) -> Mapping[str, Difference]:
    return {one.output: one for one in differences}
