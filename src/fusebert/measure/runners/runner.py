"""Runner: anything that answers a padded batch, behind one face; and what the runners of all frameworks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.match import Ending, read_endings
from fusebert.measure.inputs import Input, Roles, Told, UnknownInputError, added, fill, find_roles
from fusebert.ops.graph import Array, Graph
from fusebert.source import GraphSource

Feeds = Mapping[str, Any]


class Runner(Protocol):
    """Something that answers a padded batch `[sequences, length]`. `outputs` are the names of its answers; `roles` are
    its inputs, and what they take; `endings` how its outputs are made, as far as that is known; `framework` runs it,
    for a `slow` one not to be asked much. One that `skips` leaves zeros at positions that the mask hides."""

    name: str
    framework: str
    roles: Roles
    outputs: tuple[str, ...]
    slow: bool = False
    skips: bool = False
    remarks: tuple[str, ...] = ()
    endings: Mapping[str, Ending] = MappingProxyType({})

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to tell: of itself, and of its inputs."""
        return *self.remarks, *self.roles.notes

    @property
    def inputs(self) -> Mapping[str, Input]:
        """Its inputs by role: ids, and perhaps mask and types."""
        return self.roles.inputs

    def feeds(self, ids: Array, mask: Array, types: Array) -> dict[str, Array]:
        """The arrays that it is fed, in its own order, by its own names and types. Ids of a second encoder are others
        than those of the first, so that two sides of a model differ."""
        given = {"ids": ids, "mask": mask, "padding": 1 - mask, "types": types}
        feeds: dict[str, Array] = {}
        for one, role in self.roles.fed:
            if role == "additive":
                feeds[one.name] = added(mask, one)
            else:
                feeds[one.name] = _as_declared(given[role], one) if role in given else fill(one, role, ids.shape)
            if role == "ids":
                given["ids"] = _other_texts(given["ids"], mask)
        return feeds

    def prepare(self, ids: Array, mask: Array, types: Array) -> Any:
        """The inputs as `answer` takes them."""
        return self.feeds(ids, mask, types)

    def answer(self, prepared: Any) -> dict[str, Array]:
        """Runs prepared inputs; the answers by name."""
        ...

    def run(self, ids: Array, mask: Array, types: Array) -> dict[str, Array]:
        """Runs a batch; inputs that it does not have are dropped."""
        try:
            return self.answer(self.prepare(ids, mask, types))
        except FusebertError as error:
            raise type(error)(f"{self.name}: {error}") from error
        except Exception as error:  # frameworks have families of their own, not all of them public
            raise FusebertError(
                f"{self.name} fails on {ids.shape[0]} x {ids.shape[1]} ids: {first_line(error)}"
            ) from error

    def as_written(self) -> Runner | None:
        """The same model with its graph run as it is written, for a framework that rewrites graphs and may change
        answers by it; None for one that does not. It needs no closing of its own."""
        return None

    def close(self) -> None:
        """Lets go of what it holds."""
        ...


def import_framework(name: str, path: Path) -> Any:
    """A framework that a model needs, or an error that says how to get it."""
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise FusebertError(f"{path} needs {name}, which is missing: {error}; try: pip install {name}") from error


def roles_of(source: GraphSource, inputs: Sequence[Input], told: Told | None) -> Roles:
    """What the inputs of a model are, by its graph and by the names that the user gave."""
    try:
        return find_roles(inputs, source, told)
    except UnknownInputError as error:
        raise UnknownInputError(f"{source.path}: {error}", error.key) from None
    except FusebertError as error:
        raise type(error)(f"{source.path}: {error}") from None


def endings_of(source: GraphSource, tensors: Mapping[str, str] | None = None) -> dict[str, Ending]:
    """How the outputs of a model are made, by their names; of a result, those of the model it was made from. `tensors`
    are the names that outputs have in the graph, where those differ."""
    try:
        made = read_endings((source.made_from or source).finding)
    except FusebertError:
        return {}
    return {name: made[tensor] for name, tensor in (tensors or {name: name for name in made}).items() if tensor in made}


def words(graph: Graph) -> set[str]:
    """Every operation that occurs in a graph or its functions."""
    functions = (function.nodes for function in graph.functions.values())
    return {node.op for nodes in (graph.nodes, *functions) for node in nodes}


def first_line(error: BaseException) -> str:
    """The first line of what a framework says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def _other_texts(ids: Array, mask: Array) -> Array:
    """The same tokens at other positions, of those that the mask shows."""
    others, shown = ids.copy(), ids[mask != 0]
    others[mask != 0] = np.roll(shown, max(1, len(shown) // 3))
    return others


def _as_declared(array: Array, declared: Input) -> Array:
    """An input as a model declares it: of its type, and a mask of one dimension as the number of ones."""
    rank = 2 if declared.shape is None else len(declared.shape)
    if rank == 1:
        array = array.sum(1)
    elif rank != 2:
        raise UnsupportedError(f"input {declared.name} has {rank} dimensions; 1 (lengths) or 2 can be filled")
    return np.ascontiguousarray(array, declared.dtype)
