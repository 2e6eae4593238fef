"""fusebert.json with checked access: a missing or absurd field is an error that names the file and the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError

VERSION = 2
HEADER = "fusebert.json"
WEIGHTS = "model.safetensors"


class Fields:
    """A JSON object with checked access; errors name the file and the field."""

    def __init__(self, path: Path, values: dict[str, Any], where: str = "") -> None:
        self.path, self.values, self._where = path, values, where

    def _wrong(self, name: str, expected: str) -> FusebertError:
        return FusebertError(
            f"{self.path}: {self._where}{name} is {self.values.get(name)!r:.60}, but must be {expected}"
        )

    def whole(self, name: str, low: int, high: int) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float = -3.4e38, high: float = 3.4e38) -> float:
        return self._number(self.values.get(name), name, low, high)

    def numbers(self, name: str, count: int, low: float, high: float) -> list[float]:
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise self._wrong(name, f"a list of {count} numbers")
        return [self._number(v, name, low, high) for v in value]

    def _number(self, value: Any, name: str, low: float, high: float) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def choice(self, name: str, choices: Any) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._wrong(name, "a list of strings")
        return tuple(value)

    def mapping(self, name: str) -> dict[str, str]:
        value = self.values.get(name)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._wrong(name, "an object of strings")
        return value

    def optional(self, name: str) -> bool:
        """Whether a field is there and not null."""
        return self.values.get(name) is not None

    def section(self, name: str) -> Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return Fields(self.path, value, f"{self._where}{name}.")

    def sections(self, name: str) -> list[Fields]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self._wrong(name, "a list of objects")
        return [Fields(self.path, v, f"{self._where}{name}[{i}].") for i, v in enumerate(value)]
