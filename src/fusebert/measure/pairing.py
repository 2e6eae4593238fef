"""Judge: two runners, asked the same questions; which of their outputs belong together, and how far apart they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fusebert.errors import FusebertError
from fusebert.measure.difference import Difference, Tally, Tolerance, difference
from fusebert.measure.kinds import POSITIONS, kind_of
from fusebert.measure.pairs import Pair, Positions, rows_of
from fusebert.measure.runners import Fusebert, Runner
from fusebert.measure.samples import PADDINGS, Sample, Source, pad
from fusebert.ops.graph import Array

USUAL = (1, 128)  # sequences, length
SAMPLES = 100
UNKNOWN_VOCABULARY = 100  # ids that any model has
_LONGEST = 384
_SLOW_LONGEST, _SLOW_SAMPLES = 32, 8  # of what a slow runner is asked if nobody says how much
_COUNTS = "The baseline only counts the positions that its mask shows, so nothing was padded left or in holes."
_NO_MASK = "The baseline takes no mask, so nothing was padded."


@dataclass(frozen=True)
class Sizes:
    """What the user wants: sequences and tokens of a batch, and how many batches; None leaves it open."""

    batch: int | None = None
    length: int | None = None
    samples: int | None = None


class Questions:
    """What both models are asked: sizes that both take, ids and types that both know, paddings that the baseline
    honours. `notes` say what that rules out."""

    def __init__(self, first: Runner, second: Runner, sizes: Sizes, seed: int) -> None:
        roles = first.roles, second.roles
        self.notes: list[str] = []
        self._seed = seed
        self.source = self._source(first, second)
        slow = sizes == Sizes() and (first.slow or second.slow)
        known = [one.longest for one in roles if one.longest]
        self.longest = min([*known, *([_SLOW_LONGEST] if slow else [])], default=_LONGEST)
        self._settled = {place: size for one in roles for place, size in one.settled.items()}
        self.various = sizes == Sizes() and not self._settled
        self.count = 5 if self.various else sizes.samples or (_SLOW_SAMPLES if slow else SAMPLES)
        self.shape = self._size(0, sizes.batch), self._size(1, sizes.length)
        self.paddings = self._honoured(first)

    def _source(self, first: Runner, second: Runner) -> Source:
        roles = first.roles, second.roles
        known = [one.vocabulary for one in roles if one.vocabulary]
        if not known:
            self.notes.append(f"How many ids there are is not known; those below {UNKNOWN_VOCABULARY} were used.")
        kinds = min(one.kinds or 2 for one in roles) if all("types" in one.inputs for one in roles) else 1
        for role, word in (("mask", "mask"), ("types", "token types")):
            if role in first.inputs and role not in second.inputs:
                self.notes.append(f"The other model takes no {word}.")
        if first.roles.more:
            names = ", ".join(given.name for given in first.roles.more)
            self.notes.append(f"A second encoder's inputs ({names}) got the same tokens at other positions.")
        padding = next((n for one in roles for n in (one.hiding_id, one.padding_id) if n is not None), None)
        return Source(min(known, default=UNKNOWN_VOCABULARY), kinds, padding)

    def _size(self, place: int, wanted: int | None) -> int:
        """The batch size or the length: what is wanted, what a model insists on, or what is usual."""
        word = ("batch size", "sequence length")[place]
        if place in self._settled:
            size = self._settled[place]
            if wanted not in (None, size):
                raise FusebertError(f"{word} {wanted} is not possible: a model insists on {size}")
            if wanted is None:
                self.notes.append(f"The {word} is {size}, which a model insists on.")
            return size
        if place and wanted is not None and wanted > self.longest:
            raise FusebertError(f"{word} {wanted} is not possible: the models take up to {self.longest} tokens")
        return wanted or min(USUAL[place], self.longest)

    def _honoured(self, runner: Runner) -> tuple[str, ...]:
        """The kinds of padding that a model can be asked about. One that only counts what its mask shows takes padding
        on the left for padding on the right, but not for none, which is tried: an answer that hardly changes, such as a
        label, tells nothing."""
        if "mask" not in runner.inputs and runner.roles.hiding_id is None:
            self.notes.append(_NO_MASK)
            return ("none",)
        if self.shape[1] < 2 and not self.various:
            return ("none",)
        if "mask" not in runner.inputs or self.shape[1] < 2 or isinstance(runner, Fusebert):
            return PADDINGS
        random = np.random.default_rng(self._seed)
        right = pad(random, self.shape, "right")
        sample = self.source.fill(random, np.ones_like(right))
        masks = right, right[:, ::-1].copy(), np.ones_like(right)
        one, *others = (runner.run(sample.ids, mask, sample.types) for mask in masks)
        left, none = (all(np.allclose(one[name], other[name], 1e-6, 1e-7) for name in one) for other in others)
        if left and not none:
            self.notes.append(_COUNTS)
            return ("right", "none")
        return PADDINGS

    def samples(self) -> Iterator[Sample]:
        """All samples, the same each time."""
        if self.various:
            return self.source.various(self.longest, self.paddings, self._seed)
        return self.source.alike(self.shape, self.paddings, self.count, self._seed)

    @property
    def size(self) -> str:
        """Sequences and tokens of a sample."""
        return f"1 x 1 to 1 x {self.longest}" if self.various else " x ".join(map(str, self.shape))

    def unpadded(self) -> tuple[Sample, Sample]:
        """Two samples of different sizes, as far as those may be chosen."""
        batch, length = self.shape
        other = length - 1 if length > 1 else min(2, self.longest)
        shape = batch if 0 in self._settled else batch + 1, length if 1 in self._settled else other
        random = np.random.default_rng(self._seed)
        first, second = (self.source.fill(random, np.ones(size, np.int64)) for size in (self.shape, shape))
        return first, second


class Judge:
    """Runs samples through both models and adds up the differences. `missing` are outputs of the baseline that the
    other should have, but has not. Hidden positions count where both models compute them."""

    def __init__(self, first: Runner, second: Runner, tolerance: Tolerance, questions: Questions) -> None:
        self._first, self._second, self._tolerance = first, second, tolerance
        self.hidden_count = not (first.skips or second.skips)
        self.notes: list[str] = []
        self.missing: list[str] = []
        self.paddings: dict[str, int] = {}
        self.asked: list[tuple[str, tuple[int, ...]]] = []  # padding and size of each sample
        self._pairs = self._match(questions, *questions.unpadded())
        self._positions = Positions([pair for pair in self._pairs if pair.kind.name == "positions"], tolerance)

    @property
    def failures(self) -> set[int]:
        """The numbers of the samples with an answer beyond tolerance that counts."""
        tallies = [tally for pair in self._pairs for tally in (pair.visible, pair.hidden)[: 1 + self.hidden_count]]
        return set[int]().union(*(tally.failures for tally in tallies))

    @property
    def faults(self) -> list[str]:
        """What is not within tolerance, in words."""
        precision, failed = self._tolerance.precision, len(self.failures)
        hidden = self.hidden if self.hidden_count else []
        if precision is not None:
            faults = [fault for one in self.visible for fault in one.faults(precision)]
            return faults or [f"{fault} at hidden positions" for one in hidden for fault in one.faults(precision)]
        if not failed:
            return []
        worst = max((*self.visible, *hidden), key=lambda d: (d.failed, d.worst_error))
        samples = sum(self.paddings.values())
        return [
            f"{failed} of {samples} samples are over {self._tolerance.short}; {worst.output} is off by up to "
            f"{worst.worst:.3g}"
        ]

    @property
    def visible(self) -> list[Difference]:
        """The difference of each output at visible positions."""
        tallies = [
            *(pair.visible for pair in self._pairs),
            *([self._positions.answer] if self._positions.answer else []),
        ]
        return [d for tally in tallies if (d := tally.difference) is not None]

    @property
    def tallies(self) -> list[Tally]:
        """What was counted at visible positions, by output."""
        return [pair.visible for pair in self._pairs]

    @property
    def hidden(self) -> list[Difference]:
        """The difference of each output that has hidden positions."""
        return [d for pair in self._pairs if (d := pair.hidden.difference) is not None]

    def ask(self, sample: Sample) -> dict[str, Array]:
        """Compares one sample; returns the baseline's answers."""
        expected, got = _answers(self._first, sample), _answers(self._second, sample)
        for pair in self._pairs:
            pair.add(expected[pair.name], got[pair.other], sample.mask)
        self._positions.add(expected, got, sample.mask)
        self.paddings[sample.padding] = self.paddings.get(sample.padding, 0) + 1
        self.asked.append((sample.padding, sample.ids.shape))
        return expected

    def _match(self, questions: Questions, sample: Sample, resized: Sample) -> list[Pair]:
        """Outputs of the same name; then those of the same size, the nearest first."""
        expected, got = _answers(self._first, sample), _answers(self._second, sample)
        shapes = {name: value.shape for name, value in _answers(self._first, resized).items()}
        names = {name: name for name in expected if name in got and got[name].size == expected[name].size}
        names |= self._nearest(expected, got, names)
        for name in expected:
            if name not in names:
                self._unmatched(name, got.get(name))
        if not names:
            raise FusebertError(
                f"no output of {self._first.name} ({', '.join(expected)}) belongs to one of {self._second.name} "
                f"({', '.join(got)})"
            )
        sizes = sample.ids.shape, resized.ids.shape
        pairs = []
        for name, value in expected.items():
            if name in names:
                axes = _axes(name, (value.shape, shapes[name]), sizes)
                width = value.size // sample.ids.size if axes else rows_of(value).shape[-1]
                ending = self._first.endings.get(name) or self._second.endings.get(names[name])
                kind = kind_of(name, value, width, bool(axes), ending, questions.source.vocabulary)
                tallies = (Tally(name, self._tolerance, kind) for _ in range(2))
                pairs.append(Pair(name, names[name], kind, axes, *tallies))
        return pairs

    def _nearest(
        self, expected: Mapping[str, Array], got: Mapping[str, Array], named: Mapping[str, str]
    ) -> dict[str, str]:
        options = []
        for i, (name, value) in enumerate(expected.items()):
            for j, (other, answer) in enumerate(got.items()):
                same_size = answer.size == value.size and answer.shape[-1:] == value.shape[-1:]
                if name not in got and other not in named and same_size:
                    far = difference("", rows_of(value), rows_of(answer.reshape(value.shape))).worst_error
                    options.append((far, i, j, name, other))
        chosen: dict[str, str] = {}
        for *_, name, other in sorted(options):
            if name not in chosen and other not in chosen.values():
                chosen[name] = other
        for name in (name for name in expected if name in chosen):
            self.notes.append(f"Output {name} was compared with {chosen[name]}, by shape and content.")
        return chosen

    def _unmatched(self, name: str, other: Array | None) -> None:
        """Notes an output that is not compared: a fault where one model should replace the other."""
        what = "is missing" if other is None else f"has another size, {' x '.join(map(str, other.shape))}"
        self.notes.append(f"Output {name} was not compared: it {what} in the other model.")
        if other is not None or self._first.framework == self._second.framework:
            self.missing.append(f"output {name} {what}")


def _answers(runner: Runner, sample: Sample) -> dict[str, Array]:
    answers = runner.run(sample.ids, sample.mask, sample.types)
    return {name: value for name, value in answers.items() if value.dtype.kind in "fiub" or "float" in value.dtype.name}


def _axes(
    name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], sizes: tuple[tuple[int, ...], tuple[int, ...]]
) -> tuple[int, ...]:
    """The axes of an output that sequences and tokens are along: those that change as the batch does. Where it cannot
    change, the first two of three count, and of two if the name says so."""
    (batch, length), (other_batch, other_length) = sizes
    if length != other_length:
        for axis, both in enumerate(zip(*shapes, strict=True)):
            if axis and both == (length, other_length) and shapes[0][axis - 1] == batch:
                return axis - 1, axis
            if both == (batch * length, other_batch * other_length) and batch > 1:
                return (axis,)
        return ()
    shape = shapes[0]
    per_token = len(shape) > 2 or name in POSITIONS
    return (0, 1) if shape[:2] == (batch, length) and per_token else ()
