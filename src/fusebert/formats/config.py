"""A checkpoint's config.json with checked access: a missing or absurd field is an error that names file and field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, UnsupportedError

_ACTIVATIONS = {
    "gelu": "gelu_erf", "gelu_python": "gelu_erf", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "quick_gelu": "gelu_quick", "relu": "relu", "tanh": "tanh", "silu": "silu",
}  # fmt: skip

# The end of an architecture's name -> the head it carries.
_ARCHITECTURES = {
    "Model": "none",
    "ForSequenceClassification": "sequence",
    "ForTokenClassification": "token",
    "ForQuestionAnswering": "question",
    "ForMaskedLM": "masked",
}
_MOST = 1 << 24


class Config:
    """config.json; fields that are not there have a family's defaults."""

    def __init__(self, path: Path, values: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        self.path, self.values = path, {**(defaults or {}), **values}

    def has(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.values.get(name) is not None

    def field(self, names: str | tuple[str, ...]) -> str:
        """The first of these fields that is there, or else the first."""
        names = (names,) if isinstance(names, str) else names
        return next((name for name in names if name in self.values), names[0])

    def expect(self, expected: Mapping[str, Iterable[Any]]) -> None:
        """Refuses a field with another value than these, by its name."""
        for name, good in expected.items():
            good = tuple(good)
            if (value := self.values.get(name)) not in good:
                raise UnsupportedError(f"{self.path}: {name} {value!r} is not supported; only {good[0]!r} is")

    def size(self, name: str, most: int = _MOST) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise FusebertError(f"{self.path}: {name} is {value!r}, but must be a whole number from 1 to {most}")
        return value

    def number(self, name: str, low: float, high: float) -> float:
        value = self.values.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value < high:
            raise FusebertError(f"{self.path}: {name} is {value!r}, but must be from {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise FusebertError(f"{self.path}: {name} is {value!r}, but must be true or false")
        return value

    def choice(self, name: str, choices: Mapping[str, str]) -> str:
        """What one of several words means."""
        value = self.values.get(name)
        if not isinstance(value, str) or value not in choices:
            raise UnsupportedError(f"{self.path}: {name} {value!r} is not supported; these are: {', '.join(choices)}")
        return choices[value]

    def section(self, name: str) -> Config:
        """The fields of an object."""
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise FusebertError(f"{self.path}: {name} is {value!r:.60}, but must be an object")
        return Config(self.path, value)

    def words(self, name: str, count: int, choices: tuple[str, ...]) -> list[str]:
        """A list of so many words, each one of several."""
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count or not all(word in choices for word in value):
            raise UnsupportedError(
                f"{self.path}: {name} is {value!r:.80}, but must be {count} of the words {', '.join(choices)}"
            )
        return value

    def activation(self, name: str, more: Mapping[str, str] | None = None) -> str:
        return self.choice(name, {**_ACTIVATIONS, **(more or {})})

    def head(self) -> str:
        names = self.values.get("architectures") or ["Model"]
        name = names[0] if isinstance(names, list) else names
        for ending, head in _ARCHITECTURES.items():
            if str(name).endswith(ending):
                return head
        raise UnsupportedError(
            f'{self.path}: the head of {name!r} is not supported; head="none" runs the model without it, '
            f"and these heads are known: {', '.join('...' + e for e in _ARCHITECTURES)}"
        )

    def labels(self) -> tuple[str, ...]:
        names = self.values.get("id2label")
        if isinstance(names, dict) and sorted(names, key=str) == sorted(map(str, range(len(names)))):
            labels = [str(names[str(i)]) for i in range(len(names))]
            twice = len(set(labels)) < len(labels)  # answers are told apart by their labels
            return tuple(f"{label} ({i})" if twice else label for i, label in enumerate(labels))
        count = self.values.get("num_labels", 2)
        return tuple(f"LABEL_{i}" for i in range(count if isinstance(count, int) and 0 < count < 1 << 20 else 2))

    def problem(self) -> str:
        if self.values.get("problem_type") is None:
            return "regression" if len(self.labels()) == 1 else "single_label"
        known = {
            "single_label_classification": "single_label",
            "multi_label_classification": "multi_label",
            "regression": "regression",
        }
        return self.choice("problem_type", known)
