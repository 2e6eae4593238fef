"""The routes of text-embeddings-inference, with /tag and /answer beside them, health, facts and metrics."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from functools import partial
from importlib.metadata import version
from typing import Any, Literal, TypedDict

import msgspec
from starlette.responses import Response

from fusebert.errors import FusebertError
from fusebert.serve import calls
from fusebert.serve.front import Asked, StatusError
from fusebert.serve.http import Call, decode_json
from fusebert.serve.protocols.inputs import Ids, Inputs, Pairs, Texts, read_inputs, read_pairs, read_texts


class Embed(msgspec.Struct):
    inputs: Inputs
    truncate: bool = True
    truncation_direction: Literal["right", "Right"] = "Right"
    normalize: bool = True
    dimensions: int | None = None
    prompt_name: str | None = None
    model: str | None = None


class Predict(msgspec.Struct):
    inputs: Pairs
    truncate: bool = True
    truncation_direction: Literal["right", "Right"] = "Right"
    raw_scores: bool = False
    model: str | None = None


class Sentences(msgspec.Struct):
    source_sentence: str
    sentences: list[str]


class Similarity(msgspec.Struct):
    inputs: Sentences
    model: str | None = None


class Tokenize(msgspec.Struct):
    inputs: Texts
    add_special_tokens: bool = True
    model: str | None = None


class Decode(msgspec.Struct):
    ids: Ids
    skip_special_tokens: bool = True
    model: str | None = None


class Tag(msgspec.Struct):
    inputs: Texts
    grouped: bool = True
    model: str | None = None


class Question(msgspec.Struct):
    question: str
    context: str


class Answer(msgspec.Struct):
    inputs: Question | list[Question]
    model: str | None = None


class Invoke(msgspec.Struct):
    inputs: Any
    truncate: bool = True
    raw_scores: bool = False
    model: str | None = None


class Weight(TypedDict):
    index: int
    value: float


class Score(TypedDict):
    label: str
    score: float


class Place(TypedDict):
    text: str
    start: int
    end: int
    label: str
    score: float


class Found(TypedDict):
    answer: str
    start: int
    end: int
    score: float


class Token(TypedDict):
    id: int
    text: str
    special: bool
    start: int
    stop: int


async def embed(asked: Asked, body: Embed) -> Any:
    """Vectors of texts."""
    inputs, _ = read_inputs(body.inputs, asked.server.bounds)
    service = asked.server.service(body.model)
    vectors = await calls.embed(
        service, inputs, asked.request, body.normalize, body.dimensions, body.truncate, body.prompt_name
    )
    return vectors.tolist()


async def embed_all(asked: Asked, body: Embed) -> Any:
    """Vectors of every token."""
    inputs, _ = read_inputs(body.inputs, asked.server.bounds)
    found = await calls.embed_tokens(asked.server.service(body.model), inputs, asked.request, body.truncate)
    return [rows.tolist() for rows in found]


async def embed_sparse(asked: Asked, body: Embed) -> Any:
    """Weights of the vocabulary."""
    inputs, _ = read_inputs(body.inputs, asked.server.bounds)
    found = await calls.embed_sparse(asked.server.service(body.model), inputs, asked.request, body.truncate)
    return [[{"index": index, "value": value} for index, value in weights] for weights in found]


async def predict(asked: Asked, body: Predict) -> Any:
    """Labels of texts or pairs."""
    inputs, single = read_pairs(body.inputs, asked.server.bounds)
    service = asked.server.service(body.model)
    found = await calls.classify(service, inputs, asked.request, body.raw_scores, body.truncate)
    scores = [[{"score": score, "label": label} for label, score in labels] for labels in found]
    return scores[0] if single else scores


async def similarity(asked: Asked, body: Similarity) -> Any:
    """Cosines of sentences to one."""
    sentences = read_texts(body.inputs.sentences, asked.server.bounds, "sentences")
    (source,) = read_texts([body.inputs.source_sentence], asked.server.bounds, "source_sentence")
    return await calls.similarity(asked.server.service(body.model), source, sentences, asked.request)


async def tag(asked: Asked, body: Tag) -> Any:
    """Entities in texts."""
    texts, single = _texts(asked, body.inputs)
    found = await calls.tag(asked.server.service(body.model), texts, asked.request, body.grouped)
    spans = [[asdict(span) for span in own] for own in found]
    return spans[0] if single else spans


async def answer(asked: Asked, body: Answer) -> Any:
    """Answers to questions in their contexts."""
    questions = body.inputs if isinstance(body.inputs, list) else [body.inputs]
    read_texts([q.question for q in questions], asked.server.bounds, "question")
    read_texts([q.context for q in questions], asked.server.bounds, "context")
    pairs = [(q.question, q.context) for q in questions]
    found = await calls.answer(asked.server.service(body.model), pairs, asked.request)
    spans = [{"answer": s.text, "start": s.start, "end": s.end, "score": s.score} for s in found]
    return spans if isinstance(body.inputs, list) else spans[0]


async def tokenize(asked: Asked, body: Tokenize) -> Any:
    """Tokens of texts."""
    texts, _ = _texts(asked, body.inputs)
    service = asked.server.service(body.model)
    found = await asyncio.to_thread(calls.tokenize, service, texts, body.add_special_tokens)
    return [
        [
            {"id": i, "text": word, "special": source is None, "start": span[0], "stop": span[1]}
            for i, word, source, span in zip(t.ids, service.tokenizer.words(t.ids), t.sources, t.spans, strict=True)
        ]
        for t in found
    ]


async def decode(asked: Asked, body: Decode) -> Any:
    """Texts of token ids."""
    inputs, _ = read_inputs(body.ids, asked.server.bounds, "ids")
    if any(isinstance(own, (str, tuple)) for own in inputs):
        raise FusebertError("ids: token ids are expected")
    ids = [[int(token) for token in own] for own in inputs]
    return calls.decode(asked.server.service(body.model), ids, body.skip_special_tokens)


async def invoke(asked: Asked, body: Invoke) -> Any:
    """What the model is for, in the shapes of Hugging Face's own endpoints: labels, entities, an answer, or vectors."""
    kind = asked.server.service(body.model).model.network.head.kind
    if kind == "sequence":
        return await predict(asked, Predict(body.inputs, body.truncate, raw_scores=body.raw_scores, model=body.model))
    if kind == "token":
        return [_entity(span) for span in await tag(asked, Tag(body.inputs, model=body.model))]
    if kind == "question":
        questions = decode_json(partial(msgspec.convert, type=Question | list[Question]), body.inputs)
        return await answer(asked, Answer(questions, model=body.model))
    if isinstance(body.inputs, dict):
        sentences = decode_json(partial(msgspec.convert, type=Sentences), body.inputs)
        return await similarity(asked, Similarity(sentences, model=body.model))
    return await embed(asked, Embed(body.inputs, truncate=body.truncate, model=body.model))


def _texts(asked: Asked, value: Any) -> tuple[list[str], bool]:
    inputs, single = read_inputs(value, asked.server.bounds)
    texts = [text for text in inputs if isinstance(text, str)]
    if len(texts) != len(inputs):
        raise FusebertError("inputs: texts are expected, not token ids")
    return texts, single


def _entity(span: Any) -> Any:
    """An entity, or those of a text."""
    if isinstance(span, list):
        return [_entity(own) for own in span]
    return {"entity_group": span["label"], "word": span["text"]} | {key: span[key] for key in ("start", "end", "score")}


def facts(asked: Asked, name: str | None = None) -> dict[str, Any]:
    """What a model is."""
    service = asked.server.service(name)
    model, limits, sentence = service.model, service.batcher.limits, service.model.network.sentence
    return {
        "model_id": service.name,
        "model_dtype": model.plan.precision,
        "model_type": {"head": model.network.head.kind, "pooling": service.pooling},
        "family": model.network.family,
        "hidden_size": model.network.encoder.hidden_size,
        "labels": list(model.network.labels),
        "fingerprint": service.fingerprint,
        "prompts": dict(sentence.prompts) if sentence else {},
        "default_prompt": sentence.default_prompt if sentence else None,
        "max_input_length": service.longest,
        "max_batch_tokens": limits.batch_tokens,
        "max_client_batch_size": asked.server.bounds.texts,
        "max_concurrent_requests": limits.sequences,
        "threads": model.threads,
        "models": list(asked.server.services),
        "version": version("fusebert"),
    }


async def info(asked: Asked) -> Any:
    """What is served."""
    return facts(asked)


async def health(asked: Asked) -> Response:
    """200 when requests are answered."""
    if not asked.server.ready:
        raise StatusError(503, "not ready: the model is being loaded, is replaced, or the server is stopping")
    return Response()


async def metrics(asked: Asked) -> Response:
    """Prometheus' text."""
    return Response(asked.server.metrics.text(), media_type="text/plain; version=0.0.4")


CALLS = [
    Call("POST", "/embed", embed, Embed, list[list[float]]),
    Call("POST", "/embed_all", embed_all, Embed, list[list[list[float]]]),
    Call("POST", "/embed_sparse", embed_sparse, Embed, list[list[Weight]]),
    Call("POST", "/predict", predict, Predict, list[Score | list[Score]]),
    Call("POST", "/similarity", similarity, Similarity, list[float]),
    Call("POST", "/tag", tag, Tag, list[Place | list[Place]]),
    Call("POST", "/answer", answer, Answer, Found | list[Found]),
    Call("POST", "/tokenize", tokenize, Tokenize, list[list[Token]]),
    Call("POST", "/decode", decode, Decode, list[str]),
    Call("GET", "/info", info, None, dict[str, Any]),
    Call("GET", "/metrics", metrics, None, str),
    Call("GET", "/health", health, public=True),
    Call("GET", "/", health, public=True),
    Call("POST", "/", invoke, Invoke, Any),
    Call("POST", "/invocations", invoke, Invoke, Any),  # SageMaker's, as is the next
    Call("GET", "/ping", health, public=True),
]
