"""What transformers hands an encoder as its mask -> Batch.

Versions and attention implementations differ: nothing, 0/1 rows, booleans, or floats to add, with or without a row per
query. Where all of that only says which positions are visible, hidden rows need not be computed; anything else is
honoured as it is."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray

from fusebert.ops.graph import Array
from fusebert.values.batch import Batch

HIDES = -1e4  # what is added to a score to hide it: this or less, the least that any framework uses
HIDES_EVERYTHING = -1e30  # added to a whole row, it leaves no trace of the scores
_USUAL = (torch.float32, torch.bool)


def masked_batch(mask: torch.Tensor | None, shape: tuple[int, int], heads: int, hidden_rows: str) -> Batch:
    """The rows to compute of a padded batch `shape`; `hidden_rows` as for Batch.masked."""
    if mask is None:
        return _full(shape)
    array = _array(mask)
    rows = _rows(array, shape)
    if rows is None:
        return Batch.masked(array, shape, hidden_rows, heads)
    if rows.tobytes() == (b"\1" * rows.size if rows.dtype.kind == "b" else bytes(rows.nbytes)):  # the quickest look
        return _full(shape)
    visible = rows if rows.dtype.kind == "b" else _visible(rows)
    if visible is None:
        return Batch.masked(array, shape, hidden_rows, heads)
    visible = np.broadcast_to(visible, shape)
    if hidden_rows == "compute":
        return replace(_full(shape), visible=visible.view(np.uint8).ravel())
    return Batch.masked(visible, shape, hidden_rows)


def _array(mask: torch.Tensor) -> Array:
    if mask.dtype not in _USUAL and (mask.dim() == 4 or mask.is_floating_point()):
        mask = mask.float()
    array: Array = (mask.detach() if mask.requires_grad else mask).numpy()
    return array


@lru_cache(256)
def _full(shape: tuple[int, int]) -> Batch:
    return Batch.masked(None, shape)


def _rows(mask: Array, shape: tuple[int, int]) -> Array | None:
    """The rows of a mask, one for all sequences or one for each, if it is boolean or to be added and has no others."""
    if mask.ndim == 2:
        return mask if mask.dtype.kind == "b" and mask.shape == shape else None
    if mask.ndim != 4:
        return None
    sequences, heads, queries, length = mask.shape
    if sequences not in (1, shape[0]) or heads != 1 or not queries or length != shape[1]:
        return None
    if queries > 1 and mask.strides[2] and not np.array_equal(mask, np.broadcast_to(mask[:, :, :1], mask.shape)):
        return None
    rows: Array = mask[:, 0, 0]
    return rows


def _visible(rows: Array) -> NDArray[np.bool_] | None:
    """The 0/1 rows that say the same as rows to be added, if there are such."""
    visible: NDArray[np.bool_] = rows == 0
    blind = ~visible.any(1)
    if not (visible | (rows <= HIDES)).all() or not (rows[blind] <= HIDES_EVERYTHING).all():
        return None
    return visible
