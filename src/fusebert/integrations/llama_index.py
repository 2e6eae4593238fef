"""LlamaIndex: an embedding model, and a postprocessor that reranks nodes by a cross-encoder."""

from __future__ import annotations

from typing import Any

from llama_index.core.bridge.pydantic import PrivateAttr
from llama_index.core.embeddings import BaseEmbedding
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle

from fusebert.engine.model import Model


class FusebertEmbedding(BaseEmbedding):  # type: ignore[misc, unused-ignore]
    """Vectors by a loaded model; the prompts are names in the model's own folder."""

    query_prompt: str | None = None
    text_prompt: str | None = None
    _model: Model = PrivateAttr()

    def __init__(self, model: Model, **settings: Any) -> None:
        super().__init__(model_name=f"fusebert {model.network.family}", **settings)
        self._model = model

    def _get_query_embedding(self, query: str) -> list[float]:
        vector: list[float] = self._model.encode(query, prompt_name=self.query_prompt).tolist()
        return vector

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_query_embedding(query)

    def _get_text_embedding(self, text: str) -> list[float]:
        return self._get_text_embeddings([text])[0]

    def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
        vectors: list[list[float]] = self._model.encode(texts, prompt_name=self.text_prompt).tolist()
        return vectors


class FusebertRerank(BaseNodePostprocessor):  # type: ignore[misc, unused-ignore]
    """The most relevant nodes first, with the cross-encoder's scores."""

    top_n: int = 3
    _model: Model = PrivateAttr()

    def __init__(self, model: Model, **settings: Any) -> None:
        super().__init__(**settings)
        self._model = model

    @classmethod
    def class_name(cls) -> str:
        """What LlamaIndex stores it under."""
        return "FusebertRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError("nodes are reranked for a query; none was given")
        texts = [node.node.get_content(metadata_mode=MetadataMode.EMBED) for node in nodes]
        scores = self._model.score([(query_bundle.query_str, text) for text in texts])
        best = scores.argsort(kind="stable")[::-1][: self.top_n]
        return [NodeWithScore(node=nodes[i].node, score=float(scores[i])) for i in best]
