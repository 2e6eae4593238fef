"""The front door for scikit-learn: texts to embeddings as a step of a Pipeline.

`Encoder("./my-bert")` clones, takes part in grid searches, and pickles by the path of its model and its settings."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

import fusebert
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array


class Encoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Embeddings of texts or pairs of texts, `[texts, width]`; parameters are those of `fusebert.load` and `encode`."""

    def __init__(
        self,
        model: str | Path,
        *,
        precision: str | None = None,
        pooling: str | None = None,
        normalize: bool | None = None,
        prompt_name: str | None = None,
        batch_tokens: int = 8192,
        threads: int | None = None,
    ) -> None:
        self.model = model
        self.precision = precision
        self.pooling = pooling
        self.normalize = normalize
        self.prompt_name = prompt_name
        self.batch_tokens = batch_tokens
        self.threads = threads

    def fit(self, X: Any = None, y: Any = None) -> Encoder:  # noqa: N803, ARG002
        """Loads the model; nothing is learned."""
        self.model_ = fusebert.load(self.model, precision=self.precision, threads=self.threads)
        return self

    def transform(self, X: Iterable[Any]) -> Array:  # noqa: N803
        """Embeddings of the texts, in their order."""
        check_is_fitted(self)
        if isinstance(X, str):
            raise FusebertError("a list of texts is expected, not one text")
        vectors: Array = self.model_.encode(
            list(X),
            pooling=self.pooling,
            normalize=self.normalize,
            prompt_name=self.prompt_name,
            batch_tokens=self.batch_tokens,
        )
        return vectors

    def get_feature_names_out(self, input_features: Any = None) -> Array:  # noqa: ARG002
        """encoder0, encoder1, ..."""
        check_is_fitted(self)
        return np.array([f"encoder{i}" for i in range(self.transform([""]).shape[1])], object)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        tags.requires_fit = True
        return tags
