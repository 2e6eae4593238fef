"""The calls of hosted services that clients know: OpenAI's embeddings, Cohere's and Jina's rerank (and the one of
text-embeddings-inference, which has the same path), Weaviate's vectors."""

from __future__ import annotations

import base64
import time
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import numpy as np
from starlette.responses import Response

from fusebert.errors import FusebertError
from fusebert.serve import calls
from fusebert.serve.front import Asked, Failure
from fusebert.serve.http import Call
from fusebert.serve.protocols.inputs import Inputs, read_inputs, read_texts
from fusebert.serve.protocols.tei import facts, health


class Embeddings(msgspec.Struct):
    input: Inputs
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class Document(msgspec.Struct):
    text: str


class Rerank(msgspec.Struct):
    query: str
    texts: list[str] | None = None
    documents: list[str | Document] | None = None
    top_n: int | None = None
    return_documents: bool = False
    return_text: bool = False
    raw_scores: bool = False
    truncate: bool = True
    model: str | None = None


class Vector(msgspec.Struct):
    text: str


class Usage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    object: str
    index: int
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    object: str
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(TypedDict):
    id: str
    object: str
    created: int
    owned_by: str


class ModelList(TypedDict):
    object: str
    data: list[ModelCard]


class Ranked(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[Document]


class Ranking(TypedDict):
    id: str
    model: str
    results: list[Ranked]
    usage: dict[str, int]
    meta: dict[str, Any]


class Rank(TypedDict):
    index: int
    score: float
    text: NotRequired[str]


class TextVector(TypedDict):
    text: str
    vector: list[float]
    dim: int


async def embeddings(asked: Asked, body: Embeddings) -> Any:
    """OpenAI's embeddings."""
    inputs, _ = read_inputs(body.input, asked.server.bounds, "input")
    service = asked.server.service(body.model)
    vectors = await calls.embed(service, inputs, asked.request, dimensions=body.dimensions)
    if body.encoding_format == "base64":
        shown: list[Any] = [base64.b64encode(v.astype("<f4").tobytes()).decode() for v in vectors]
    else:
        shown = vectors.tolist()
    tokens = _tokens(asked)
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(shown)],
        "model": body.model or service.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


async def models(asked: Asked) -> Any:
    """OpenAI's list of models."""
    asked.server.service()
    now = int(time.time())
    data = [{"id": name, "object": "model", "created": now, "owned_by": "fusebert"} for name in asked.server.services]
    return {"object": "list", "data": data}


async def rerank(asked: Asked, body: Rerank) -> Any:
    """Texts by their relevance to a query: `texts` answers as text-embeddings-inference does, `documents` as Cohere."""
    if (body.texts is None) == (body.documents is None):
        raise FusebertError("either texts or documents are expected")
    given: list[Any] = body.texts or [d.text if isinstance(d, Document) else d for d in body.documents or []]
    texts = read_texts(given, asked.server.bounds, "texts" if body.texts is not None else "documents")
    read_texts([body.query], asked.server.bounds, "query")
    service = asked.server.service(body.model)
    scores = await calls.rerank(service, body.query, texts, asked.request, body.raw_scores, body.truncate)
    order = np.argsort(-np.array(scores), kind="stable").tolist()
    if body.texts is not None:
        return [{"index": i, "score": scores[i]} | ({"text": texts[i]} if body.return_text else {}) for i in order]
    if body.top_n is not None and body.top_n < 1:
        raise FusebertError("top_n: a number from 1 on is expected")
    results = [
        {"index": i, "relevance_score": scores[i]} | ({"document": {"text": texts[i]}} if body.return_documents else {})
        for i in order[: body.top_n]
    ]
    usage = {"total_tokens": _tokens(asked)}
    meta = {"api_version": {"version": "1"}, "billed_units": {"search_units": 1}}
    return {"id": service.fingerprint, "model": body.model or service.name, "results": results} | {
        "usage": usage, "meta": meta
    }  # fmt: skip


async def vectors(asked: Asked, body: Vector) -> Any:
    """Weaviate's vector of a text."""
    (text,) = read_texts([body.text], asked.server.bounds, "text")
    vector = (await calls.embed(asked.server.service(), [text], asked.request))[0].tolist()
    return {"text": text, "vector": vector, "dim": len(vector)}


async def meta(asked: Asked) -> Any:
    """What Weaviate asks for at its start."""
    return facts(asked)


async def live(asked: Asked) -> Response:  # noqa: ARG001
    """204: the process answers."""
    return Response(status_code=204)


async def ready(asked: Asked) -> Response:
    """204 when requests are answered."""
    await health(asked)
    return Response(status_code=204)


def tell(failure: Failure) -> Any:
    """An error as OpenAI's clients read it."""
    kind = "invalid_request_error" if failure.status < 500 else "server_error"
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": failure.status}}


def _tokens(asked: Asked) -> int:
    return sum(sum(task.tokens) for _, task in asked.request.tasks)


CALLS = [
    *(
        Call("POST", path, embeddings, Embeddings, EmbeddingList, tell=tell)
        for path in ("/v1/embeddings", "/embeddings")
    ),
    Call("GET", "/v1/models", models, None, ModelList, tell=tell),
    *(Call("POST", path, rerank, Rerank, list[Rank] | Ranking) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    *(Call("POST", path, vectors, Vector, TextVector) for path in ("/vectors", "/vectors/")),
    Call("GET", "/meta", meta, None, dict[str, Any]),
    Call("GET", "/.well-known/ready", ready, public=True),
    Call("GET", "/.well-known/live", live, public=True),
]
