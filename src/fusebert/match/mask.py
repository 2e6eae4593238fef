"""Mask: what is added to the scores, known by its values for the probes: a 0/1 mask from an input, or its opposite,
padding told by its id, an additive mask that is an input, or nothing; and numbers by distance, or a window. Anything
else is refused, since the fused encoder cannot carry it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fusebert.errors import FusebertError
from fusebert.match.budget import refuse_large
from fusebert.match.distances import ANYWHERE, ByDistance, by_distance
from fusebert.match.findings import Lifted, Mask, Refused
from fusebert.match.lift.masks import HIDDEN
from fusebert.match.probe import Probe
from fusebert.match.trials import LONGER, Trials
from fusebert.ops.graph import Array, Graph
from fusebert.ops.vocabulary import evaluate

_LONG = 2081
_PRODUCTS = "disentangled attention or relative keys: products of activations with positions are added to the scores"


class Masks:
    """Reads masks of one lifted graph, each once."""

    def __init__(self, lifted: Lifted, trials: Trials, unbounded: bool = False) -> None:
        """Texts are `unbounded` where positions are rotary: windows are looked for in longer ones, too."""
        self._lifted, self._trials, self._unbounded = lifted, trials, unbounded
        self._known: dict[tuple[str | None, int], tuple[Mask, ByDistance] | Refused] = {}

    def read(self, added: str | None, heads: int) -> tuple[Mask, ByDistance] | Refused:
        """What a tensor that is added to scores hides, and what it adds by distance, or why it does something else."""
        key = added, min(heads, 2)
        if key not in self._known:
            self._known[key] = (Mask("none"), ANYWHERE) if added is None else self._read(added, heads)
        return self._known[key]

    def _read(self, added: str, heads: int) -> tuple[Mask, ByDistance] | Refused:
        graph = self._lifted.graph
        if added in graph.inputs and added not in self._lifted.probes[0]:
            return Mask("additive", added, added), ANYWHERE
        strange = sorted(self._trials.inputs_of({added}).difference(self._lifted.probes[0]))
        if strange:
            return _refused(added, f"it is made of the input {strange[0]}, which is not a 0/1 mask of two dimensions")
        if any(node.op in ("linear", "layer_norm") for node in self._trials.makers(added)):
            return _refused(added, _PRODUCTS)
        try:
            tried = [(probe, _four(array, heads)) for probe, array in self._trials.try_all(added)]
        except FusebertError as error:
            return _refused(added, f"what is added to the scores is not a mask: {error}")
        arrays = [array for _, array in tried]
        steady = added not in self._lifted.content and all(array.size and np.ptp(array) == 0 for array in arrays)
        if steady and not self._is_cut(added, heads):
            return Mask("none", added=added), ANYWHERE
        for mask in () if self._is_cut(added, heads) else self._kinds(added):
            if all(_hides(array, visible(mask, probe, array.shape[-1])) for probe, array in tried):
                return mask, ANYWHERE
        return self._with_distances(added, heads, tried) or _refused(added, _named(arrays))

    def _with_distances(
        self, added: str, heads: int, tried: list[tuple[Probe, Array]]
    ) -> tuple[Mask, ByDistance] | None:
        """A mask and what is added by distance, if the two make up all that is added."""
        whole = self._whole(added)
        if whole is None:
            return None
        kinds = self._kinds(added) if added in self._lifted.content else iter((Mask("none", added=added),))
        for mask in kinds:
            cases = ((array, self._seen(mask, probe, array)) for probe, array in tried)
            if (found := by_distance(_four(whole, heads), cases)) is not None:
                return mask, found
        return None

    def _whole(self, added: str) -> Array | None:
        return self._trials.whole(added, (_LONG, *LONGER) if self._unbounded else LONGER)

    def _is_cut(self, added: str, heads: int) -> bool:
        """Whether something is hidden in a long text that is shown in full."""
        whole = self._whole(added) if self._unbounded else None
        return whole is not None and bool((_four(whole, heads) <= HIDDEN).any())

    @staticmethod
    def _seen(mask: Mask, probe: Probe, array: Array) -> Array | None:
        if mask.kind == "none":
            return np.ones((array.shape[0], array.shape[-1]), bool)
        return visible(mask, probe, array.shape[-1])

    def _kinds(self, added: str) -> Iterator[Mask]:
        """All that a mask can be."""
        for name in self._lifted.graph.inputs:
            given = self._lifted.probes[0].get(name)
            if given is None:
                continue
            if given.ndim == 1:
                yield Mask("lengths", name, added)
            elif name in self._trials.ids:
                yield from (Mask("ids", name, added, hidden) for hidden in range(4))
            else:
                yield Mask("rows", name, added)
                yield Mask("lengths", name, added)
                yield Mask("padding", name, added)


def computed(graph: Graph, tensor: str, probe: Probe) -> Array:
    """A tensor of a raised graph, for a probe."""
    return evaluate(replace(graph, outputs=(tensor,)), probe, refuse_large)[tensor]


def hiding_value(lifted: Lifted, added: str) -> float | None:
    """What a hidden position's scores get added, where that is one number for all."""
    arrays = [computed(lifted.graph, added, probe) for probe in lifted.probes]
    values = {float(value) for array in arrays for value in np.unique(array[array <= HIDDEN])}
    return values.pop() if len(values) == 1 else None


def visible(mask: Mask, probe: Probe, length: int) -> Array | None:
    """The positions `[batch, length]` that a mask lets be seen, given some inputs."""
    given = probe.get(mask.tensor)
    if given is None or given.ndim > 2:
        return None
    if mask.kind == "lengths":
        counts = given if given.ndim == 1 else (given != 0).sum(1)
        seen: Array = np.arange(length) < counts[:, None]
        return seen
    shown: Array = given == 0 if mask.kind == "padding" else given != (mask.hidden_id or 0)
    return shown


def _refused(added: str, reason: str) -> Refused:
    return Refused(reason, added)


def _four(array: Array, heads: int) -> Array:
    """As `[batch, heads, queries, keys]`, each of which may be 1."""
    if heads == 1 and array.ndim == 3:
        return array[:, None]
    return array.reshape((1,) * (4 - array.ndim) + array.shape) if array.ndim < 4 else array


def _hides(array: Array, seen: Array | None) -> bool:
    """Whether exactly the positions are hidden that are not to be seen."""
    if seen is None or seen.ndim != 2 or array.ndim != 4:
        return False
    batch, length = seen.shape
    if array.shape[0] not in (1, batch) or array.shape[3] != length:
        return False
    want = np.broadcast_to(seen[:, None, None, :], (batch, *array.shape[1:3], length))
    have = np.broadcast_to(array, want.shape)
    shown = have[want]  # a number that is added everywhere changes nothing
    same = bool((np.abs(shown) <= 1).all()) and (shown.size == 0 or np.ptp(shown) == 0)
    return same and bool((have[~want] <= HIDDEN).all())


def _named(arrays: list[Array]) -> str:
    """What it is that is added to the scores, and is not a mask of positions."""
    if all(map(_causal, arrays)):
        return "attention is causal: a token does not see those after it"
    if all(map(_by_distance, arrays)):
        return "relative positions: a number that depends on the distance of query and key is added to the scores"
    if any((hidden != hidden[:, :, :1]).any() for hidden in (array <= HIDDEN for array in arrays)):
        return "what is hidden differs from query to query"
    return "numbers are added to the scores that are not a mask of zeros and large negative numbers"


def _by_distance(array: Array) -> bool:
    """Whether what is not hidden is a number for every distance of query and key, and not the same one for all."""
    queries, keys = array.shape[2:]
    shown = array > HIDDEN
    if queries != keys or queries < 2 or not shown.any() or np.ptp(array[shown]) == 0:
        return False
    low, high = np.where(shown, array, np.inf), np.where(shown, array, -np.inf)
    for far in range(1 - keys, keys):
        least, most = (np.diagonal(part, far, 2, 3) for part in (low, high))
        if (most.max((0, 2)) - least.min((0, 2)) > 1e-5).any():
            return False
    return True


def _causal(array: Array) -> bool:
    queries, keys = array.shape[2:]
    if queries != keys or queries < 2:
        return False
    later = np.triu(np.ones((queries, keys), bool), 1)
    return bool((array[..., later] <= HIDDEN).all())
