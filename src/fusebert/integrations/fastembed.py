"""FastEmbed: models that its TextEmbedding finds by name and that run on fusebert."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from fastembed import TextEmbedding
from fastembed.common.model_description import DenseModelDescription, ModelSource
from fastembed.text.text_embedding_base import TextEmbeddingBase

import fusebert
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array

_added: dict[str, tuple[DenseModelDescription, fusebert.Model]] = {}


def add(name: str, model: fusebert.Model) -> None:
    """From now on, `TextEmbedding(name)` is this model."""
    if any(known["model"].lower() == name.lower() for known in TextEmbedding.list_supported_models()):
        raise FusebertError(f"fastembed has a model named {name} already; choose another name")
    if FusebertTextEmbedding not in TextEmbedding.EMBEDDINGS_REGISTRY:
        TextEmbedding.EMBEDDINGS_REGISTRY.append(FusebertTextEmbedding)
    description = DenseModelDescription(
        model=name, sources=ModelSource(hf=name), model_file="", description="run by fusebert", license="",
        size_in_GB=model.bytes / 1e9, dim=model.encode("a text").shape[-1],
    )  # fmt: skip
    _added[name.lower()] = description, model


class FusebertTextEmbedding(TextEmbeddingBase):  # type: ignore[misc, unused-ignore]
    """What TextEmbedding makes of the names that were added."""

    def __init__(self, model_name: str, cache_dir: str | None = None, threads: int | None = None, **_: Any) -> None:
        super().__init__(model_name, cache_dir, threads)
        _, model = _added[model_name.lower()]
        self._model = model if threads is None else model.with_threads(threads)

    @classmethod
    def _list_supported_models(cls) -> list[DenseModelDescription]:
        return [description for description, _ in _added.values()]

    def embed(self, documents: str | Iterable[str], batch_size: int = 256, *_: Any, **__: Any) -> Iterator[Array]:
        """One vector for each text, as they are asked for; processes side by side are of no use to the model."""
        texts = iter([documents] if isinstance(documents, str) else documents)
        while batch := list(islice(texts, batch_size)):
            yield from self._model.encode(batch)

    def token_count(self, texts: str | Iterable[str], **_: Any) -> int:
        """How many tokens the texts have together."""
        if self._model.tokenizer is None:
            raise FusebertError(f"{self.model_name} has no tokenizer; see Model.take_tokenizer")
        return sum(len(tokens.ids) for tokens in self._model.tokenizer([texts] if isinstance(texts, str) else texts))
