"""The zoo: real exporters' outputs at tiny sizes, made on first use and cached under build/zoo; zoo.get(name) -> Entry.

`ZOO` lists all entries without building. `get` builds what is missing; `python -m zoo [NAME...]` builds everything
(or those). catalogue.py is the list, describe.py its words, makers/ the exporters, workshop.py runs them.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from zoo.catalogue import LISTED, Listed
from zoo.workshop import build, folder


@dataclass(frozen=True)
class Entry(Listed):
    """A model of the zoo with what its own framework says about it."""

    def make(self) -> Path:
        """The model, built if it is missing: a file, or the folder of a SavedModel."""
        return self.folder / self.file

    @cached_property
    def folder(self) -> Path:
        """Where it is, with its cases; built if it is missing, with all that its maker has not made in the same way."""
        place = folder(self.name)
        if not place.is_dir():
            build(name for name, entry in ZOO.items() if (entry.maker, entry.way) == (self.maker, self.way))
        if not place.is_dir():
            raise RuntimeError(f"{self.name} could not be made: {place}.error says why")
        return place

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "cases.npz") as stored:
            return dict(stored)

    @cached_property
    def _tensors(self) -> dict[str, dict[str, str]]:
        return json.loads((self.folder / "tensors.json").read_text())

    def _side(self, start: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(start): value for name, value in self._arrays.items() if name.startswith(start)}

    def inputs(self, kind: str = "full") -> dict[str, np.ndarray]:
        """What to feed: names of ONNX inputs, or of the signature for TensorFlow."""
        return self._side(f"{kind}/in/")

    def outputs(self, kind: str = "full") -> dict[str, np.ndarray]:
        """What the framework answered."""
        return self._side(f"{kind}/out/")

    def hidden(self, kind: str = "full") -> np.ndarray | None:
        """[layers + 1, batch, length, hidden]: what enters the first layer, then what leaves each, by the framework."""
        return self._arrays.get(f"{kind}/hidden")

    @property
    def input_tensors(self) -> dict[str, str]:
        """Name in inputs() -> tensor name in the graph, such as serving_default_input_ids:0."""
        return self._tensors["inputs"]

    @property
    def output_tensors(self) -> dict[str, str]:
        """Name in outputs() -> tensor name in the graph."""
        return self._tensors["outputs"]


ZOO: dict[str, Entry] = {listed.name: Entry(**vars(listed)) for listed in LISTED}


def get(name: str) -> Entry:
    """The entry of that name, made."""
    ZOO[name].make()
    return ZOO[name]
