"""Packed weights of the operator: made at first use, made again when a parameter changed, dropped with the model.

A graph hands the operator plain tensors, so the tensors themselves are the key: where they lie in memory and their
versions, which a change in place raises. The originals are read where they are; the packed form is the only copy."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided
from torch import get_num_threads

from fusebert.engine.native import EncoderEngine, cores, pool
from fusebert.engine.quantize import smooth_encoder
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.torch.form import encoder_of_form
from fusebert.values.blocks import Block, Encoder, Linear, Norm
from fusebert.values.plan import make_plan
from fusebert.values.traverse import POST_NORM_PARTS, is_norm, post_norm_layer

PER_LAYER = 2 * len(POST_NORM_PARTS)  # tensors: weight and bias of each
_MOST = 4  # packed forms of the same memory: a module, what was traced from it, and so on


class Recipe(NamedTuple):
    """How the weights are used."""

    heads: tuple[int, ...]
    activation: str
    epsilon: float
    precision: str = "fp32"
    ranges: tuple[float, ...] = ()

    def encoder(self, weights: Sequence[torch.Tensor]) -> Encoder:
        """What they stand for."""
        return encoder_of(weights, self)


class FormRecipe(NamedTuple):
    """The same of weights that a form names."""

    form: str
    precision: str = "fp32"
    ranges: tuple[float, ...] = ()

    def encoder(self, weights: Sequence[torch.Tensor]) -> Encoder:
        """What they stand for."""
        return encoder_of_form(self.form, list(map(_array, weights)))


class Packed:
    """An engine with what must still hold for it to be the right one."""

    def __init__(self, weights: list[torch.Tensor], recipe: Recipe | FormRecipe, sample: torch.Tensor | None) -> None:
        self._places, self._versions = _places(weights), _versions(weights)
        self.engine = _pack(weights, recipe, sample)
        self.first = id(weights[0])
        # Kept, so that no other tensor can come to lie in the same place unseen. The first one's memory is not: with it
        # the entry goes.
        first = weights[0].untyped_storage().data_ptr()
        self._kept = [w.detach() for w in weights if w.untyped_storage().data_ptr() != first]
        self._memory, self._probes = _probes([w for w in self._kept if w.dim() == 2])
        self._seen = self._probe()

    def fits(self, weights: list[torch.Tensor]) -> bool:
        """Whether these are still the weights it was packed from. Merging an adapter writes past torch's versions
        (`weight.data += delta`), so a number of every matrix is looked at as well."""
        return _places(weights) == self._places and _versions(weights) == self._versions and self._probe() == self._seen

    def fits_no_more(self) -> None:
        """Tells whoever keeps it that it is of no use."""
        self._places = []

    def _probe(self) -> bytes:
        return self._memory.take(self._probes).tobytes()


def _probes(matrices: list[torch.Tensor]) -> tuple[Array, Array]:
    """The memory in which all of these lie, as bytes, and where in it a number of each is. Reading one array is quicker
    than reading one per matrix; what lies between them is not touched."""
    if not matrices:
        return np.empty(0, np.uint8), np.empty(0, np.intp)
    numbers = [matrix[len(matrix) // 2, matrix.shape[1] // 2] for matrix in matrices]
    addresses = np.array([number.data_ptr() + byte for number in numbers for byte in range(number.element_size())])
    low, high = int(addresses.min()), int(addresses.max())
    first = np.ctypeslib.as_array((ctypes.c_uint8 * 1).from_address(low))
    return as_strided(first, (high - low + 1,), (1,)), addresses - low


_Key = tuple[int, Recipe | FormRecipe]
_cache: dict[_Key, list[Packed]] = {}
_watched: set[_Key] = set()  # whose memory will tell when it goes
_lock = threading.RLock()
_HOME = _process = os.getpid()  # a forked child has none of the threads that OpenMP started here
_version = attrgetter("_version")


def packed_engine(
    weights: list[torch.Tensor], recipe: Recipe | FormRecipe, sample: torch.Tensor | None = None
) -> EncoderEngine:
    """The engine for these weights; `sample` is embedded rows `[sequences, length, hidden]` to smooth int8 with."""
    return packed_form(weights, recipe, sample).engine


def packed_form(weights: list[torch.Tensor], recipe: Recipe | FormRecipe, sample: torch.Tensor | None) -> Packed:
    """The same, to be kept by who will ask again whether it `fits`."""
    key = (weights[0].data_ptr() if weights else 0, recipe)
    for packed in _cache.get(key, ()):
        if packed.fits(weights):
            return packed
    with _lock:
        entries = _cache.setdefault(key, [])
        for packed in entries:
            if packed.fits(weights):
                return packed
        entries[:] = [packed for packed in entries if packed.first != id(weights[0])][-_MOST + 1 :]
        made = Packed(weights, recipe, sample)
        if key not in _watched:
            _watched.add(key)
            weakref.finalize(weights[0].untyped_storage(), _drop, key).atexit = False
        entries.append(made)
        return made


def forget(weights: list[torch.Tensor]) -> None:
    """Drops every packed form of these weights; they are packed again when they are next used."""
    with _lock:
        for key in [key for key in _cache if key[0] == weights[0].data_ptr()]:
            for packed in _cache[key]:
                packed.fits_no_more()
            _cache[key].clear()


def packed_bytes() -> int:
    """Memory of all packed weights that are alive."""
    return sum(packed.engine.bytes for entries in list(_cache.values()) for packed in entries)


def thread_pool(threads: int) -> Any:
    """The pool of that many threads; of 0, as many as torch uses and this process may. Where these are as many as
    torch's own they are torch's own, for those spin after each operator and would be in the way of others."""
    return _pool_beside(threads, get_num_threads(), _process)


@cache
def _pool_beside(threads: int, torchs: int, process: int) -> Any:
    count = threads or _usable()
    return _pool(count, process, count == torchs)


@cache
def _pool(threads: int, process: int, as_torch: bool) -> Any:
    return pool(threads, _gomp_parallel() if as_torch and process == _HOME else None)


def _note_process() -> None:
    global _process
    _process = os.getpid()


os.register_at_fork(after_in_child=_note_process)


def _gomp_parallel() -> int | None:
    """Where torch's OpenMP begins parallel work; None if torch has none."""
    if "parallel backend: OpenMP" not in torch.__config__.parallel_info():
        return None
    try:
        return ctypes.cast(ctypes.CDLL(None).GOMP_parallel, ctypes.c_void_p).value
    except AttributeError:
        return None


def _usable() -> int:
    return max(1, min(get_num_threads(), _cores()))


@cache
def _cores() -> int:
    return cores()


def _drop(key: _Key) -> None:
    _watched.discard(key)
    for packed in _cache.pop(key, ()):
        packed.fits_no_more()


def _places(weights: list[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, weights))


def _versions(weights: list[torch.Tensor]) -> list[int]:
    try:
        return list(map(_version, weights))
    except RuntimeError:  # a tensor that was made under inference_mode counts no changes
        return [0 if w.is_inference() else w._version for w in weights]


def _pack(weights: list[torch.Tensor], recipe: Recipe | FormRecipe, sample: torch.Tensor | None) -> EncoderEngine:
    encoder = recipe.encoder(weights)
    plan = make_plan(recipe.precision, len(encoder.blocks), recipe.ranges or None)
    threads = _pool(_usable(), _process, as_torch=False)
    if plan.decoder == "s8" and not recipe.ranges:
        encoder = smooth_encoder(encoder, _sample_rows(sample, encoder.hidden_size), threads)
    return EncoderEngine(encoder, plan, threads)


def _sample_rows(sample: torch.Tensor | None, hidden: int) -> Array:
    if sample is None or sample.shape[-1] != hidden:
        return np.random.default_rng(0).standard_normal((4, 64, hidden)).astype(np.float32)
    return sample.detach().float().contiguous().numpy()


def encoder_of(weights: Sequence[torch.Tensor], recipe: Recipe) -> Encoder:
    """The value that 16 tensors per layer stand for, sharing their memory."""
    if not weights or len(weights) != PER_LAYER * len(recipe.heads):
        raise FusebertError(f"{len(weights)} weights, but {len(recipe.heads)} layers need {PER_LAYER} each")
    arrays = iter(map(_array, weights))
    tensors = [(next(arrays), next(arrays)) for _ in weights[::2]]
    blocks: list[Block] = []
    for i, heads in enumerate(recipe.heads):
        pairs = dict(zip(POST_NORM_PARTS, tensors[i * len(POST_NORM_PARTS) :], strict=False))
        blocks += post_norm_layer(partial(_part, pairs, recipe.epsilon), heads, recipe.activation)
    return Encoder.of(len(weights[1 + 2 * POST_NORM_PARTS.index("attention.out")]), tuple(blocks))


def _part(pairs: Mapping[str, tuple[Array, Array]], epsilon: float, path: str) -> Linear | Norm:
    return Norm(*pairs[path], epsilon) if is_norm(path) else Linear(*pairs[path])


def _array(tensor: torch.Tensor) -> Array:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    array: Array = tensor.numpy()
    return array
