"""Graph: a model as nodes with named tensors, whatever file it came from. Knows no format.

Words are the common vocabulary (`ops`) or an exporter's own operations; raising turns the latter into the former."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from fusebert.errors import FusebertError

Array = NDArray[Any]
_NUMBERS = frozenset(
    (
        "float16",
        "float32",
        "float64",
        "bfloat16",
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
)


@dataclass(frozen=True)
class Weight:
    """A constant whose numbers are read only when asked for."""

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Array] = field(compare=False, repr=False)

    @property
    def is_numbers(self) -> bool:
        """Whether these are numbers, and neither strings nor of a type that nobody knows."""
        return self.dtype in _NUMBERS

    @staticmethod
    def of(array: Array) -> Weight:
        """A weight that is in memory already."""
        return Weight(array.shape, array.dtype.name, lambda: array)


@dataclass(frozen=True)
class TensorType:
    """What a file declares about a tensor; sizes may be numbers, names, or unknown."""

    dtype: str
    shape: tuple[int | str | None, ...] | None


@dataclass(frozen=True)
class AttributeOf:
    """An attribute inside a function whose value is the attribute of that name where the function is called."""

    name: str


@dataclass(frozen=True)
class Node:
    """One operation: what it is, the tensors it reads ("" for an optional one left out) and makes, and the library
    function it sits in ("" for the main graph)."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    function: str = ""


@dataclass(frozen=True, repr=False)
class Graph:
    """Nodes in the order of the file; `weights` are the constants they read. `functions` are graphs that nodes call."""

    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, Weight]
    types: Mapping[str, TensorType] = field(default_factory=dict)
    functions: Mapping[str, Graph] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # format, producer, versions: for reports

    def __repr__(self) -> str:
        shown = f"{len(self.nodes)} nodes, {len(self.weights)} weights, inputs {', '.join(self.inputs)}"
        return f"<Graph: {shown:.200}, outputs {', '.join(self.outputs):.200}>"

    def readers(self, tensor: str) -> tuple[Node, ...]:
        """The nodes that read a tensor."""
        return tuple(node for node in self.nodes if tensor in node.inputs)


def in_order(before: Mapping[int, Sequence[int]], told: Callable[[int], str]) -> Iterator[int]:
    """Places in rising order, but each after those `before` it; `told` names a node where they go round in a cycle."""
    done: set[int] = set()
    for first in sorted(before):
        path = {first: iter(before[first])} if first not in done else {}
        while path:
            i = next(reversed(path))
            earlier = next((j for j in path[i] if j not in done), None)
            if earlier is None:
                del path[i]
                done.add(i)
                yield i
            elif earlier in path:
                raise FusebertError(f"node {told(earlier)} depends on its own result: the graph has a cycle")
            else:
                path[earlier] = iter(before[earlier])
