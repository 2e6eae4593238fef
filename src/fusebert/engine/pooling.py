"""Ragged rows -> one row a sequence: the one place where rows of tokens become an embedding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fusebert.errors import FusebertError
from fusebert.ops.graph import Array


def _mean(rows: Array, begins: Array, lengths: Array) -> Array:
    sums: Array = np.add.reduceat(rows, begins) / lengths[:, None]
    return sums


# name -> (rows of all sequences, where each begins, how long it is) -> a row each; no sequence is empty
_POOLING: dict[str, Callable[[Array, Array, Array], Array]] = {
    "mean": _mean,
    "cls": lambda rows, begins, _: rows[begins],
    "max": lambda rows, begins, _: np.maximum.reduceat(rows, begins),
}
POOLING = tuple(_POOLING)


def check_pooling(pooling: str) -> str:
    """The name of a pooling, if it is one."""
    if pooling not in _POOLING:
        raise FusebertError(f"pooling {pooling!r} is unknown; use one of {', '.join(POOLING)}")
    return pooling


def pool(rows: Array, offsets: Array, pooling: str) -> Array:
    """One row for each sequence `rows[offsets[i] : offsets[i + 1]]`; zeros for one without tokens."""
    lengths = np.diff(offsets)
    filled = np.flatnonzero(lengths)
    pooled = np.zeros((len(lengths), *rows.shape[1:]), np.float32)
    if len(filled):
        pooled[filled] = _POOLING[check_pooling(pooling)](rows, offsets[:-1][filled], lengths[filled])
    return pooled
