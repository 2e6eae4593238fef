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

from fusebert.encoder import Batch
from fusebert.graph import Array

HIDES = -1e4  # what is added to a score to hide it: this or less, the least that any framework uses
HIDES_EVERYTHING = -1e30  # added to a whole row, it leaves no trace of the scores


def masked_batch(mask: torch.Tensor | None, shape: tuple[int, int], heads: int, hidden_rows: str) -> Batch:
    """The rows to compute of a padded batch `shape`; `hidden_rows` as for Batch.masked."""
    if mask is None:
        return _full(shape)
    if mask.dtype not in (torch.bool, torch.float32) and (mask.dim() == 4 or mask.is_floating_point()):
        mask = mask.float()
    array = mask.detach().numpy()
    visible = array if array.ndim <= 2 else _visible_rows(array, shape)
    if visible is not None and visible.shape == shape and visible.dtype == np.bool_:
        if visible.all():
            return _full(shape)
        if hidden_rows == "compute":
            return replace(_full(shape), visible=visible.view(np.uint8).ravel())
    return Batch.masked(array if visible is None else visible, shape, hidden_rows, heads)


@lru_cache(256)
def _full(shape: tuple[int, int]) -> Batch:
    return Batch.masked(None, shape)


def _visible_rows(mask: Array, shape: tuple[int, int]) -> NDArray[np.bool_] | None:
    """The 0/1 rows `[sequences, length]` that say the same as a four-dimensional mask, if there are such."""
    sequences, length = shape
    if mask.ndim != 4 or mask.shape[1] != 1 or mask.shape[0] not in (1, sequences) or mask.shape[3] != length:
        return None
    if mask.shape[2] == 0:
        return None
    rows = mask[:, 0, 0]
    if mask.shape[2] > 1 and mask.strides[2] and not np.array_equal(mask, np.broadcast_to(mask[:, :, :1], mask.shape)):
        return None
    if mask.dtype != np.bool_:
        visible = rows == 0
        if not visible.all():
            blind = ~visible.any(1)
            if not (visible | (rows <= HIDES)).all() or not (rows[blind] <= HIDES_EVERYTHING).all():
                return None
        rows = visible
    return rows if rows.shape == shape else np.broadcast_to(rows, shape)
