"""What all makers of the zoo share: the inputs every model is run on, random weights, how a made model is put in place.

Imported by the maker scripts (each in a process of its own, with the framework it needs); needs NumPy only.
"""

import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

BATCH, LENGTH = 3, 7
VOCABULARY, POSITIONS = 60, 40
KINDS = ("right", "left", "holes", "full")
NAMES = ("input_ids", "attention_mask", "token_type_ids")


def case(kind: str, batch: int, length: int, pad: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, 0/1 mask and types; the first row is full, every row sees something, padding at an end holds the pad id."""
    random = np.random.default_rng(100 + KINDS.index(kind))
    ids = random.integers(5, VOCABULARY, (batch, length))
    types = np.sort(random.integers(0, 2, (batch, length)), axis=1)
    mask = np.ones((batch, length), np.int64)
    for row in range(1, batch):
        cut = 1 + 2 * row % (length - 1)
        if kind == "right":
            mask[row, length - cut :] = 0
        elif kind == "left":
            mask[row, :cut] = 0
        elif kind == "holes":
            mask[row, row::3] = 0
            mask[row, 0] = row % 2  # the first token of some row is hidden too
    if kind in ("right", "left"):
        ids[mask == 0] = pad
    return ids, mask, types


def weight(name: str, shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """A value for a weight, by its name, wide enough that attention, activation, biases and norms all do something."""
    name = name.lower()
    values = random.standard_normal(shape).astype(np.float32)
    if any(part in name for part in ("layernorm", "layer_norm", "norm")):
        return (0.2 * values + (0 if "bias" in name or "beta" in name else 1)).astype(np.float32)
    if "embedding" in name and len(shape) == 2 and "project" not in name and "dense" not in name:
        return 0.7 * values
    return 0.25 * values


class Cases:
    """Gathers a model's inputs and outputs over the kinds of masks; saved as cases.npz beside the model."""

    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}

    def add(self, kind: str, inputs: dict, outputs: dict, hidden: list | None = None) -> None:
        """`hidden` is what enters the first layer, then what leaves each layer; from the framework."""
        named = {f"in/{name}": value for name, value in inputs.items()}
        named |= {f"out/{name}": value for name, value in outputs.items()}
        if hidden is not None:
            named["hidden"] = np.stack([np.asarray(value) for value in hidden])
        for name, value in named.items():
            self.arrays[f"{kind}/{name}"] = np.asarray(value)

    def save(self, folder: Path, tensors: dict | None = None) -> None:
        """`tensors`: signature name -> tensor name of the graph, for inputs and outputs, where they differ."""
        np.savez(folder / "cases.npz", **self.arrays)
        names = {side: [n.split("/", 2)[2] for n in self.arrays if n.split("/")[1] == side] for side in ("in", "out")}
        same = {"inputs": {n: n for n in names["in"]}, "outputs": {n: n for n in names["out"]}}
        (folder / "tensors.json").write_text(json.dumps(tensors or same, indent=1))


def work(make: Callable[[dict, Path], None]) -> None:
    """Does the jobs of the file named on the command line: each model is made in a temporary folder, then moved."""
    jobs = json.loads(Path(sys.argv[1]).read_text())
    for job in jobs:
        started, folder = time.perf_counter(), Path(job["folder"])
        making = folder.with_name(folder.name + ".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        try:
            make(job["recipe"], making)
        except Exception:
            text = traceback.format_exc()
            folder.with_name(folder.name + ".error").write_text(text)
            sys.stdout.write(f"{folder.name}: failed\n{text}\n")
            shutil.rmtree(making, ignore_errors=True)
            continue
        shutil.rmtree(folder, ignore_errors=True)
        making.rename(folder)
        folder.with_name(folder.name + ".error").unlink(missing_ok=True)
        sys.stdout.write(f"{folder.name}: {time.perf_counter() - started:.1f} s\n")
        sys.stdout.flush()


def kinds(recipe: dict) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """The kinds of masks a model can be given, with their inputs."""
    batch, length = recipe.get("static") or (BATCH, LENGTH)
    for kind in recipe["kinds"]:
        yield kind, case(kind, batch, length, recipe.get("pad", 0))


def stored_inputs(source: Path) -> dict[str, dict[str, np.ndarray]]:
    """Kind of mask -> named inputs, of a model made before."""
    found: dict[str, dict[str, np.ndarray]] = {}
    with np.load(source / "cases.npz") as stored:
        for path in stored.files:
            kind, side, *name = path.split("/", 2)
            if side == "in":
                found.setdefault(kind, {})[name[0]] = stored[path]
    return found


def copy_cases(source: Path, folder: Path, wanted: list[str], names: dict[str, str]) -> None:
    """The source's cases for a converted model; `names` are those that the conversion changed."""
    cases = Cases()
    with np.load(source / "cases.npz") as stored:
        for path in stored.files:
            kind, side, *name = path.split("/", 2)
            if kind in wanted:
                renamed = [names.get(n, n) for n in name]
                cases.arrays["/".join([kind, side, *renamed])] = stored[path]
    cases.save(folder)
