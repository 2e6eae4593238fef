"""Request: one call of optimize as a value: which model, where to, for whom, and how carefully."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fusebert.errors import DifferentError, FusebertError
from fusebert.measure.compare import compare
from fusebert.measure.comparison import Comparison
from fusebert.measure.inputs import Told
from fusebert.measure.tasks import Task, built_in_texts
from fusebert.source import Source
from fusebert.values.blocks import Attention, Encoder
from fusebert.values.target import StockOnnx, Target

_BEYOND_RANGES = (
    "Fixed ranges hold for texts like those they were observed on. Omit them (a range per token is more exact), or "
    "write without comparing (--no-verify) and judge with fusebert accuracy."
)


@dataclass(frozen=True)
class Request:
    """`expected` are sizes (heads, hidden) that every encoder must have. `verify`: compare before anything is put in
    place. `overwrite`: replace a model of the same kind. `verbose`: tell more of what was found. `inputs`: as in
    `compare`. `texts` to compare on, if not random ids, and the folder of their `tokenizer`, if not the model's."""

    source: Source
    out: Path
    target: Target
    expected: Mapping[str, int] = field(default_factory=dict)
    verify: bool = True
    overwrite: bool = False
    verbose: bool = False
    show_progress: bool = False
    inputs: Told | None = None
    texts: Task | None = None
    tokenizer: Path | None = None

    @property
    def static(self) -> bool:
        """Whether the ranges of int8 are fixed beforehand."""
        return getattr(self.target, "ranges", None) is not None

    def check_sizes(self, encoder: Encoder) -> None:
        """Refuses an encoder that does not have the sizes that are expected."""
        sizes = {"hidden": {encoder.hidden_size}}
        sizes["heads"] = {block.body.heads for block in encoder.blocks if isinstance(block.body, Attention)}
        for name, size in self.expected.items():
            if sizes[name] != {size}:
                have = ", ".join(map(str, sorted(sizes[name])))
                raise FusebertError(f"{self.source.path}: the encoder has {name} {have}, not {size}; omit that option")

    def compared(self, baseline: object, made: object, what: str) -> Comparison:
        """Both models' answers, on random ids; or on texts, where those are given, or where ranges are fixed that hold
        for texts and a tokenizer is there. Raises DifferentError if they differ by more than the precision's limits."""
        folder = self.tokenizer or self.source.tokenizer_folder
        if self.texts is not None and folder is None:
            raise FusebertError(f"{self.source.path} has no tokenizer beside it, which texts need; give --tokenizer")
        task = self.texts or (built_in_texts() if self.static and folder is not None else None)
        texts = {} if task is None else {"task": task, "tokenizer": folder, "batch_size": 4}
        found = compare(baseline, made, self.show_progress, threads=self.target.threads, inputs=self.inputs, **texts)  # type: ignore[arg-type]
        if not found.same:
            how = str(found.facts["verdict"]).removeprefix("different answers: ")
            raise DifferentError(f"{what}: {how}; nothing was written. {self._advice}")
        return found

    @property
    def _advice(self) -> str:
        """What may help against different answers."""
        if self.static:
            return _BEYOND_RANGES
        if self.target.precision == "fp32":
            return "No other precision is more exact: please report this model."
        finer = "fp32" if isinstance(self.target, StockOnnx) or self.target.precision == "bf16" else "bf16 or fp32"
        return f"Try --precision {finer}."
