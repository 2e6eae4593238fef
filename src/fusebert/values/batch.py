"""Batch: which rows are computed and which of them are visible, without padding; and every form of mask as one.

A padded batch with its mask in, ragged rows out, and back (docs/masks.md has the forms)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusebert.errors import FusebertError
from fusebert.ops.graph import Array

LOWEST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Batch:
    """Rows without padding: sequence i is rows `offsets[i]` to `offsets[i + 1]`.

    `index` says where each row stands in the padded batch `shape` (sequences, length), flattened. Rows that are not
    `visible` are computed, but no row attends to them. `bias` is an additive mask for batches that keep every row."""

    offsets: NDArray[np.int64]
    index: NDArray[np.int64]
    shape: tuple[int, int]
    visible: NDArray[np.uint8] | None = None
    bias: NDArray[np.float32] | None = None

    @staticmethod
    def ragged(lengths: list[int]) -> Batch:
        """Sequences of these lengths, one after the other."""
        offsets = np.cumsum([0, *lengths], dtype=np.int64)
        length = max(lengths, default=0)
        index = [np.arange(n, dtype=np.int64) + i * length for i, n in enumerate(lengths)]
        return Batch(offsets, np.concatenate([np.empty(0, np.int64), *index]), (len(lengths), length))

    @staticmethod
    def masked(mask: Array | None, shape: tuple[int, int], hidden_rows: str = "skip", heads: int = 1) -> Batch:
        """From a padded batch and its mask (see docs/masks.md for the forms).

        `hidden_rows` says what becomes of the rows that a 0/1 mask hides: "skip" drops them, "first" keeps each
        sequence's first row (and a sequence that is hidden altogether), "compute" keeps them all."""
        sequences, length = shape
        full = np.arange(sequences * length, dtype=np.int64)
        offsets = np.arange(sequences + 1, dtype=np.int64) * length
        if mask is None:
            return Batch(offsets, full, shape)
        mask = as_array("attention_mask", mask)
        if mask.shape == shape and (mask == 1).all():
            return Batch(offsets, full, shape)
        if mask.ndim in (1, 2):
            return _compacted(_rows_mask(mask, shape), shape, hidden_rows)
        bias = np.broadcast_to(_additive(mask, shape, heads), (sequences, heads, length, length))
        return Batch(offsets, full, shape, bias=bias)

    def positions(self) -> NDArray[np.int32] | None:
        """Where each row stands in its padded row; None if row after row, from the first."""
        sequences, length = self.shape
        return None if len(self.index) == sequences * length else (self.index % length).astype(np.int32)

    def spread(self, rows: Array, drop_hidden: bool) -> Array:
        """Rows back at their places in the padded batch; zeros everywhere else."""
        sequences, length = self.shape
        if self.visible is None and len(rows) == sequences * length:
            return rows.reshape(sequences, length, *rows.shape[1:])
        padded = np.zeros((sequences * length, *rows.shape[1:]), rows.dtype)
        if drop_hidden and self.visible is not None:
            padded[self.index[self.visible != 0]] = rows[self.visible != 0]
        else:
            padded[self.index] = rows
        return padded.reshape(sequences, length, *rows.shape[1:])

    def visible_rows(self, rows: Array) -> tuple[Array, Array]:
        """The rows that others may attend to, and where each sequence's begin and end among them."""
        if self.visible is None:
            return rows, self.offsets
        seen = self.visible != 0
        return rows[seen], np.concatenate([[0], np.cumsum(seen)])[self.offsets]

    def first_rows(self, rows: Array) -> Array:
        """The row at each sequence's first position; zeros where that was skipped."""
        if len(rows) == self.shape[0] * self.shape[1] > 0:
            return rows[self.offsets[:-1]]
        firsts = np.zeros((self.shape[0], *rows.shape[1:]), rows.dtype)
        begins, length = self.offsets[:-1], self.shape[1]
        kept = np.flatnonzero(begins < self.offsets[1:])
        kept = kept[self.index[begins[kept]] == kept * length]
        firsts[kept] = rows[begins[kept]]
        return firsts


def hidden_rows(padding: str, may_skip: bool, reads_first: bool) -> str:
    """What becomes of the rows that a mask hides, as `Batch.masked` takes it: what the user wants, or with "auto" what
    those who read the encoder's rows need. `may_skip`: they read a hidden row at most to answer for that same row.
    `reads_first`: they read each sequence's first row even if it is hidden."""
    if padding != "auto":
        return padding
    if not may_skip:
        return "compute"
    return "first" if reads_first else "skip"


def as_array(name: str, values: Any) -> Array:
    """What a caller gave for an array, as one; rows of different lengths are refused."""
    try:
        return np.asarray(values)
    except ValueError:
        raise FusebertError(f"{name}: its rows have different lengths; pad them") from None


def _rows_mask(mask: Array, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Lengths or 0/1 rows as booleans."""
    sequences, length = shape
    if mask.ndim == 1:
        if mask.shape != (sequences,) or mask.dtype.kind not in "iu" or ((mask < 0) | (mask > length)).any():
            raise FusebertError(f"attention_mask: {sequences} whole lengths from 0 to {length} are expected")
        return np.arange(length) < mask[:, None]
    if mask.shape != shape:
        raise FusebertError(f"attention_mask has shape {mask.shape}, but input_ids {shape}")
    visible = mask.astype(bool)
    if not (mask == visible).all():
        raise FusebertError(
            "attention_mask: a two-dimensional mask holds only 0 and 1; an additive mask has four dimensions"
        )
    return visible


def _additive(mask: Array, shape: tuple[int, int], heads: int) -> NDArray[np.float32]:
    """A (B, S, S) 0/1 mask or a four-dimensional one (boolean, or floats to be added) as something to add."""
    sequences, length = shape
    if mask.ndim == 3 and mask.shape == (sequences, length, length):
        if not np.isin(mask, (0, 1)).all():
            raise FusebertError("attention_mask: a three-dimensional mask holds only 0 and 1")
        mask = mask.astype(bool)[:, None]
    elif mask.ndim != 4 or any(
        have not in allowed
        for have, allowed in zip(mask.shape, ((1, sequences), (1, heads), (1, length), (length,)), strict=True)
    ):
        raise FusebertError(
            f"attention_mask has shape {mask.shape}; for input_ids {shape} it is (B), (B, S), (B, S, S) or "
            f"(B, {heads}, S, S), where all but the last may be 1"
        )
    if mask.dtype == bool:
        return np.where(mask, np.float32(0), np.float32(LOWEST))
    if mask.dtype.kind != "f" and mask.dtype.name != "bfloat16":
        raise FusebertError(
            "attention_mask: a four-dimensional mask is boolean, or floats that are added to the scores"
        )
    bias = mask.astype(np.float32)
    if np.isnan(bias).any():
        raise FusebertError("attention_mask holds NaN")
    return bias


def _compacted(visible: NDArray[np.bool_], shape: tuple[int, int], hidden_rows: str) -> Batch:
    keep = visible.copy()
    if hidden_rows == "compute":
        keep[:] = True
    elif hidden_rows == "first" and shape[1]:
        keep[:, 0] = True
        keep[~visible.any(1)] = True
    flat = keep.ravel()
    offsets = np.zeros(shape[0] + 1, np.int64)
    keep.sum(1).cumsum(out=offsets[1:])
    flags = None if (keep == visible).all() else visible.ravel()[flat].astype(np.uint8)
    return Batch(offsets, flat.nonzero()[0], shape, flags)
