"""Probe: two small batches of different, telling sizes to look at a graph with. Sizes that a model declares are kept;
the others become prime numbers that no weight has as a factor, so that an axis can be told by its length."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from fusebert.ops.graph import Array, Graph, TensorType

_PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
_LARGEST = 1 << 22  # elements of an input

Probe = dict[str, Array]


def make_probes(
    graph: Graph, fixed_sizes: Mapping[int, int] | None = None, longest: int | None = None
) -> tuple[Probe, Probe]:
    """Two sets of inputs: each input that can be ids, a mask or token types, filled with zeros and ones; others are
    omitted. `fixed_sizes` are sizes, by dimension, that the graph requires although it does not declare them, and
    `longest` is how many tokens it takes at most."""
    taken = {n for weight in graph.weights.values() for n in weight.shape if n > 1}
    free = [p for p in _PRIMES if not any(n % p == 0 for n in taken)] + list(_PRIMES)
    small, large = _sizes(list(dict.fromkeys(free)), longest)
    fixed_sizes = fixed_sizes or {}
    first, second = ((fixed_sizes.get(0, b), fixed_sizes.get(1, s)) for b, s in (small, large))
    few, many = _fill(graph, first, 0), _fill(graph, second, 1)
    return {name: few[name] for name in few if name in many}, {name: many[name] for name in many if name in few}


def _sizes(primes: list[int], longest: int | None) -> tuple[tuple[int, int], tuple[int, int]]:
    """Batch and length of both probes, of the primes that come first."""
    if longest is None:
        a, b, c, d = sorted(primes[:4])
        return (a, b), (c, d)
    fitting = [*(p for p in primes if p <= longest), *range(longest, 0, -1)]
    s, t = sorted([*dict.fromkeys(fitting), 1][:2])
    b, c, *_ = (p for p in primes if p not in (s, t))
    return (b, s), (c, t)


def _fill(graph: Graph, sizes: tuple[int, int], seed: int) -> Probe:
    random = np.random.default_rng(seed)
    declared = [_shape(graph.types.get(name)) for name in graph.inputs]
    usual = list(sizes)
    read = {tensor for node in graph.nodes for tensor in node.inputs}
    telling = [s for name, s in zip(graph.inputs, declared, strict=True) if s is not None and name in read]
    telling = [s for s in telling if len(s) == 2] or [s for s in telling if len(s) == 1]
    for place in (0, 1):  # of ids and masks; what has more dimensions has them in some other order
        said = [s[place] for s in telling if place < len(s)]
        known = [n for n in said if isinstance(n, int) and (n != 1 or set(said) == {1})]  # else 1 fits any size
        usual[place] = max(known[0], 0) if known else usual[place]
    named = {
        n: usual[i] for s in declared if s is not None and len(s) < 3 for i, n in enumerate(s) if isinstance(n, str)
    }
    probe: Probe = {}
    for name, shape in zip(graph.inputs, declared, strict=True):
        kind = graph.types[name].dtype if name in graph.types else "int64"
        full = full_shape((None, None) if shape is None else shape, usual, named)
        if kind not in _FILLED or not 0 < len(full) < 32 or math.prod(full) > _LARGEST:
            continue
        if len(full) > 2 and "float" in kind:
            continue
        array = random.integers(0, 2, full)
        if len(full) == 1:
            array = random.integers(1, max(usual[1], 1) + 1, full)  # lengths
        elif array.size and full[-1] > 1:  # something visible and something hidden in every row
            array[..., 0], array[..., -1] = random.permutation([0, 1])
        probe[name] = array.astype(kind)
    return probe


def full_shape(shape: Sequence[int | str | None], usual: Sequence[int], named: Mapping[str, int]) -> list[int]:
    """A declared shape with sizes for what is not declared: by name, or by place as ids have them."""
    sizes = enumerate(shape)
    return [n if isinstance(n, int) and n >= 0 else named.get(str(n), usual[min(i, 1)]) for i, n in sizes]


_FILLED = ("int64", "int32", "int16", "int8", "uint8", "bool", "float32", "float16", "float64")


def _shape(declared: TensorType | None) -> tuple[int | str | None, ...] | None:
    return None if declared is None else declared.shape
