"""Spelling: what the vocabularies of all formats share when they write a graph word by word: weights and constants,
each stored once, and what is made once for all layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from fusebert.ops.graph import Array


class Spelling(ABC):
    """A graph as it grows."""

    def __init__(self) -> None:
        self._stored: dict[Any, tuple[str, Any]] = {}  # with the array, which must not be freed while its id is in use
        self._made: dict[Any, str] = {}

    @abstractmethod
    def constant(self, array: Any) -> str:
        """Adds a constant: floats, or whole numbers."""

    def weight(self, array: Array, transposed: bool = False) -> str:
        """The name of a float weight; one that is used again is stored once."""
        place = array.__array_interface__
        key = place["data"][0], place["typestr"], array.shape, array.strides, transposed
        if key not in self._stored:
            self._stored[key] = self.constant(array.T if transposed else array), array
        return self._stored[key][0]

    def number(self, value: float) -> str:
        """A float; one that is used again is stored once."""
        return self.once(("number", value), lambda: self.constant(np.float32(value)))

    def once(self, key: Any, make: Callable[[], str]) -> str:
        """What `make` adds, the first time that it is asked for by its key."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]
