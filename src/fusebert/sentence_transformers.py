"""The front door for sentence-transformers: its own models, whose encoders run as one fused operator.

In comes what its classes take, a folder or a name of the hub; out comes the class itself, so that everything that
library does with a model (prompts, similarity, ranking, evaluators, retrieval) stays as it is."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any, TypeVar

from sentence_transformers import SentenceTransformer
from torch import nn

import fusebert.torch

Kind = TypeVar("Kind", bound=nn.Module)


def load(
    path: str | PathLike[str],
    kind: type[Kind] = SentenceTransformer,  # type: ignore[assignment]
    precision: str = "fp32",
    threads: int | None = None,
    **options: Any,
) -> Kind:
    """A SentenceTransformer that runs on fusebert, or a model of another of its classes: CrossEncoder, SparseEncoder.

    `precision` and `threads` are those of `fusebert.torch.optimize`; options are that class's. What cannot be fused is
    refused, for whoever asks for this door wants it."""
    with fusebert.torch.disabled():
        model = kind(fspath(path), **{"device": "cpu", **options})
    return fusebert.torch.optimize(model.eval(), precision, threads=threads)
