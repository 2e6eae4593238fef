"""LangChain: embeddings, and a compressor that reranks documents by a cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.embeddings import Embeddings

from fusebert.engine.model import Model


class FusebertEmbeddings(Embeddings):  # type: ignore[misc, unused-ignore]
    """Vectors by a loaded model; the prompts are names in the model's own folder."""

    def __init__(self, model: Model, query_prompt: str | None = None, document_prompt: str | None = None) -> None:
        self.model, self.query_prompt, self.document_prompt = model, query_prompt, document_prompt

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """One vector for each text."""
        vectors: list[list[float]] = self.model.encode(texts, prompt_name=self.document_prompt).tolist()
        return vectors

    def embed_query(self, text: str) -> list[float]:
        """The vector of a question."""
        vector: list[float] = self.model.encode(text, prompt_name=self.query_prompt).tolist()
        return vector


class FusebertRerank(BaseDocumentCompressor):  # type: ignore[misc, unused-ignore]
    """The most relevant documents first, with their scores as metadata."""

    model: Any
    top_n: int = 3

    def compress_documents(self, documents: Sequence[Document], query: str, callbacks: Any = None) -> list[Document]:  # noqa: ARG002
        """The best `top_n` of them."""
        scores = self.model.score([(query, document.page_content) for document in documents])
        best = scores.argsort(kind="stable")[::-1][: self.top_n]
        return [
            Document(page_content=d.page_content, metadata={**d.metadata, "relevance_score": float(scores[i])})
            for i, d in ((i, documents[i]) for i in best)
        ]
