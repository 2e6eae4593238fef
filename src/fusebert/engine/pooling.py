"""Ragged rows -> one row a sequence: the one place where rows of tokens become an embedding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusebert.errors import unknown
from fusebert.ops.graph import Array


def _mean(rows: Array, begins: Array, lengths: Array) -> Array:
    sums: Array = np.add.reduceat(rows, begins) / lengths[:, None]
    return sums


def _weighted_mean(rows: Array, begins: Array, lengths: Array) -> Array:
    """Every row weighs as much as its number, counted from 1."""
    numbers = np.concatenate([np.arange(1, n + 1, dtype=np.float32) for n in lengths])
    sums: Array = np.add.reduceat(rows * numbers[:, None], begins) / np.add.reduceat(numbers, begins)[:, None]
    return sums


# name -> (rows of all sequences, where each begins, how long it is) -> a row each; no sequence is empty
_POOLING: dict[str, Callable[[Array, Array, Array], Array]] = {
    "mean": _mean,
    "cls": lambda rows, begins, _: rows[begins],
    "max": lambda rows, begins, _: np.maximum.reduceat(rows, begins),
    "mean_sqrt_len_tokens": lambda rows, begins, lengths: np.add.reduceat(rows, begins) / np.sqrt(lengths)[:, None],
    "weightedmean": _weighted_mean,
    "lasttoken": lambda rows, begins, lengths: rows[begins + lengths - 1],
}
POOLING = tuple(_POOLING)


def check_pooling(pooling: str) -> str:
    """The name of a pooling, or of several joined by "+", if it is one."""
    if not set(pooling.split("+")) <= set(_POOLING):
        raise unknown("pooling", pooling, POOLING)
    return pooling


def pool(rows: Array, offsets: Array, pooling: str) -> Array:
    """One row for each sequence `rows[offsets[i] : offsets[i + 1]]`; zeros for one without tokens. Poolings joined by
    "+" stand side by side."""
    lengths = np.diff(offsets)
    filled = np.flatnonzero(lengths)
    names = check_pooling(pooling).split("+")
    pooled = np.zeros((len(lengths), rows.shape[1] * len(names)), np.float32)
    if len(filled):
        own = rows, offsets[:-1][filled], lengths[filled]
        pooled[filled] = np.concatenate([_POOLING[name](*own) for name in names], 1)
    return pooled
