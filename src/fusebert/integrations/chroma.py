"""Chroma: an embedding function whose collections know again how they were embedded."""

from __future__ import annotations

from typing import Any

from chromadb.api.types import Documents, EmbeddingFunction, Embeddings
from chromadb.utils.embedding_functions import register_embedding_function

import fusebert


@register_embedding_function  # type: ignore[misc, unused-ignore]
class FusebertEmbeddingFunction(EmbeddingFunction[Documents]):  # type: ignore[misc, unused-ignore]
    """Vectors by the model at a path; a collection stores path and precision, not the model."""

    def __init__(self, path: str, precision: str | None = None, threads: int | None = None) -> None:
        self._config = {"path": path, "precision": precision, "threads": threads}
        self._model = fusebert.load(path, precision=precision, threads=threads)

    def __call__(self, input: Documents) -> Embeddings:
        """One vector for each text."""
        return list(self._model.encode(list(input)))

    @staticmethod
    def name() -> str:
        """What a collection calls it."""
        return "fusebert"

    def get_config(self) -> dict[str, Any]:
        """What a collection stores."""
        return dict(self._config)

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> FusebertEmbeddingFunction:
        """The same function, from what a collection stored."""
        return FusebertEmbeddingFunction(**config)
