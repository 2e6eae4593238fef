"""Mask: what is added to the scores, known by what it is for the probes. A 0/1 mask of an input, padding told by its
id, an additive mask that comes from outside, nothing; or something that an encoder of ours cannot carry."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fusebert.errors import FusebertError
from fusebert.graph import Array, Graph
from fusebert.match.lift.lifting import Lifted, numbers_read
from fusebert.match.probe import Probe
from fusebert.ops import evaluate

_HIDDEN = -100.0  # from here on exp() leaves nothing of a score


@dataclass(frozen=True)
class Mask:
    """`kind` is "none", "rows" (a 0/1 input), "lengths" (as many positions are seen as an input says or has ones),
    "ids" (an input whose `hidden_id` is padding), "additive" (an input that is added), or "refused", with the reason.
    `tensor` is that input; `added` is what the scores get."""

    kind: str
    tensor: str = ""
    added: str = ""
    hidden_id: int | None = None
    reason: str = ""


class Masks:
    """Reads masks of one lifted graph, each once."""

    def __init__(self, lifted: Lifted) -> None:
        self._lifted = lifted
        self._known: dict[tuple[str | None, int], Mask] = {}
        self._ids = _inputs_of({n.inputs[1] for n in lifted.graph.nodes if n.word == "embed"}, lifted.graph)

    def read(self, added: str | None, heads: int) -> Mask:
        """What a tensor means that is added to scores."""
        key = added, min(heads, 2)
        if key not in self._known:
            self._known[key] = Mask("none") if added is None else self._read(added, heads)
        return self._known[key]

    def _read(self, added: str, heads: int) -> Mask:
        graph = self._lifted.graph
        if added in graph.inputs and added not in self._lifted.probes[0]:
            return Mask("additive", added, added)
        arrays = []
        for probe in self._lifted.probes:
            try:
                array = computed(graph, added, probe)
            except FusebertError as error:
                return _refused(added, f"what is added to the scores is not a mask: {error}")
            arrays.append(_four(array, heads))
        if added not in self._lifted.content:
            if all(np.ptp(array) == 0 for array in arrays):
                return Mask("none", added=added)
            if all(map(_causal, arrays)):
                return _refused(added, "attention is causal: a token does not see those after it")
            return _refused(added, "a constant that is no mask is added to the scores, such as relative positions")
        for name in graph.inputs:
            given = [probe.get(name) for probe in self._lifted.probes]
            if all(map(_hides, arrays, [_seen(g, array) for g, array in zip(given, arrays, strict=True)])):
                kind = "lengths" if given[0] is not None and given[0].ndim == 1 else "rows"
                return Mask("ids", name, added, 0) if name in self._ids else Mask(kind, name, added)
            if name in self._ids and all(map(_hides, arrays, [None if g is None else g != 1 for g in given])):
                return Mask("ids", name, added, 1)
            counts = [None if g is None or g.ndim != 2 else (g != 0).sum(1) for g in given]
            if all(map(_hides, arrays, [_seen(c, array) for c, array in zip(counts, arrays, strict=True)])):
                return Mask("lengths", name, added)
        if all(_causal(array) for array in arrays):
            return _refused(added, "attention is causal: a token does not see those after it")
        if any(array.shape[2] > 1 and (array != array[:, :, :1]).any() for array in arrays):
            return _refused(added, "what is hidden differs from query to query")
        return _refused(added, "what is added to the scores is not a mask of zeros and large negative numbers")


def computed(graph: Graph, tensor: str, probe: Probe) -> Array:
    """A tensor of a lifted graph, for a probe."""
    return evaluate(replace(graph, outputs=(tensor,)), probe)[tensor]


def _inputs_of(tensors: set[str], graph: Graph) -> set[str]:
    """The inputs that the content of tensors depends on."""
    needed = set(tensors)
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(numbers_read(node))
    return needed.intersection(graph.inputs)


def _refused(added: str, reason: str) -> Mask:
    return Mask("refused", added=added, reason=reason)


def _four(array: Array, heads: int) -> Array:
    """As `[batch, heads, queries, keys]`, each of which may be 1."""
    if heads == 1 and array.ndim == 3:
        return array[:, None]
    return array.reshape((1,) * (4 - array.ndim) + array.shape) if array.ndim < 4 else array


def _seen(given: Array | None, added: Array) -> Array | None:
    """The positions that a 0/1 mask or lengths let be seen."""
    if given is None or given.ndim != 1:
        return None if given is None else given != 0
    return np.arange(added.shape[-1]) < given[:, None]


def _hides(array: Array, visible: Array | None) -> bool:
    """Whether exactly the positions are hidden that are not visible."""
    if visible is None or visible.ndim != 2 or array.ndim != 4:
        return False
    batch, length = visible.shape
    if array.shape[0] not in (1, batch) or array.shape[3] != length:
        return False
    want = np.broadcast_to(visible[:, None, None, :], (batch, *array.shape[1:3], length))
    have = np.broadcast_to(array, want.shape)
    shown = have[want]  # a number that is added everywhere changes nothing
    return bool((np.abs(shown) <= 1).all() and np.ptp(shown) == 0 and (have[~want] <= _HIDDEN).all())


def _causal(array: Array) -> bool:
    queries, keys = array.shape[2:]
    if queries != keys or queries < 2:
        return False
    later = np.triu(np.ones((queries, keys), bool), 1)
    return bool((array[..., later] <= _HIDDEN).all())
