"""Texts as questions for two models: the same tokens for both, padded as texts are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from fusebert.engine.tokenizer import Tokenizer
from fusebert.measure.pairing import Questions, Sizes
from fusebert.measure.predictions import batches, longest
from fusebert.measure.runners import Runner
from fusebert.measure.samples import Sample
from fusebert.measure.tasks import Task


class Texts(Questions):
    """The texts of a task, in batches; `tokenizer` is the folder with theirs."""

    def __init__(self, first: Runner, second: Runner, sizes: Sizes, task: Task, tokenizer: Path) -> None:
        super().__init__(first, second, Sizes(sizes.batch, None, 1), seed=0)
        chosen = task.spread(sizes.samples)
        limit = min(longest(first), longest(second))
        read = Tokenizer.read(tokenizer, limit, None if sizes.length is None else min(sizes.length, limit))
        assert read is not None  # the folder was chosen for it
        known = (
            *(n for one in (first, second) for n in (one.roles.hiding_id, one.roles.padding_id)),
            read.padding_id(),
        )
        padding = next((number for number in known if number is not None), 0)
        strict = second if second.roles.settled else first
        self._samples = list(batches(strict, read(chosen.texts), sizes.batch or 1, padding))
        self.count = len(self._samples)
        self.notes = [f"Compared on {len(chosen.texts)} texts of {task.name}, not on random ids."]

    @property
    def size(self) -> str:
        """Sequences and tokens of a sample."""
        batch = len(self._samples[0].ids)
        lengths = [sample.ids.shape[1] for sample in self._samples]
        return f"{batch} x {min(lengths)} to {batch} x {max(lengths)}"

    def samples(self) -> Iterator[Sample]:
        """All samples, the same each time."""
        return iter(self._samples)
