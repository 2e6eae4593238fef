"""Haystack: components that embed texts and documents, and one that ranks documents by a cross-encoder.

They take the path of a model and load it when a pipeline is warmed up, and a pipeline stores that path."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, component, default_from_dict, default_to_dict

import fusebert


class _Loaded:
    """What the three have in common: a path, settings, and the model once it is needed."""

    def __init__(self, model: str, precision: str | None = None, threads: int | None = None) -> None:
        self.model, self.precision, self.threads = model, precision, threads
        self._loaded: fusebert.Model | None = None

    def warm_up(self) -> None:
        """Loads the model."""
        self._loaded = self._loaded or fusebert.load(self.model, precision=self.precision, threads=self.threads)

    @property
    def loaded(self) -> fusebert.Model:
        """The model."""
        self.warm_up()
        assert self._loaded is not None
        return self._loaded

    def to_dict(self) -> dict[str, Any]:
        """What a pipeline's file has."""
        stored: dict[str, Any] = default_to_dict(self, model=self.model, precision=self.precision, threads=self.threads)
        return stored

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """The component of a pipeline's file."""
        return default_from_dict(cls, data)


@component  # type: ignore[misc, unused-ignore]
class FusebertTextEmbedder(_Loaded):
    """The vector of a query."""

    @component.output_types(embedding=list[float])  # type: ignore[untyped-decorator, unused-ignore]
    def run(self, text: str) -> dict[str, Any]:
        """One text."""
        return {"embedding": self.loaded.encode(text).tolist()}


@component  # type: ignore[misc, unused-ignore]
class FusebertDocumentEmbedder(_Loaded):
    """Documents with their vectors."""

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator, unused-ignore]
    def run(self, documents: list[Document]) -> dict[str, Any]:
        """The same documents, in their order; those that were given stay as they are."""
        vectors = self.loaded.encode([document.content or "" for document in documents]).tolist()
        return {"documents": [replace(d, embedding=v) for d, v in zip(documents, vectors, strict=True)]}


@component  # type: ignore[misc, unused-ignore]
class FusebertRanker(_Loaded):
    """The most relevant documents first."""

    @component.output_types(documents=list[Document])  # type: ignore[untyped-decorator, unused-ignore]
    def run(self, query: str, documents: list[Document], top_k: int | None = None) -> dict[str, Any]:
        """Documents with the cross-encoder's scores, the best `top_k` of them."""
        scores = self.loaded.score([(query, document.content or "") for document in documents])
        best = scores.argsort(kind="stable")[::-1][:top_k]
        return {"documents": [replace(documents[i], score=float(scores[i])) for i in best]}
