"""The verbs of the server, one function each over plain values: every protocol translates to these and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fusebert.engine import answers
from fusebert.engine.answers import Span
from fusebert.engine.sentence import prompted
from fusebert.engine.tokenizer import Text, Tokens
from fusebert.engine.vectors import relevance
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.serve.service import Request, Service, Task

Input = Text | Array


async def embed(
    service: Service,
    inputs: Sequence[Input],
    request: Request,
    normalize: bool = True,
    dimensions: int | None = None,
    truncate: bool = True,
    prompt_name: str | None = None,
) -> Array:
    """One vector for each input, `[inputs, dimensions]`; fewer dimensions are the first ones, of unit length again.
    Texts stand behind the model's prompt of that name, or its default one, as in `Model.encode`."""
    width = service.embed.width(service.model.network.encoder.hidden_size)
    if dimensions is not None and not 1 <= dimensions <= width:
        raise FusebertError(f"dimensions: a number from 1 to {width} is expected, not {dimensions}")
    inputs = prompted(service.model.network.sentence, list(inputs), prompt_name)
    task = await service.run(Task(0, 0, inputs=inputs, want="pooled", cut=truncate), request)
    vectors: Array = np.stack(task.outputs)[:, :dimensions]
    return unit(vectors) if normalize else vectors


async def embed_tokens(
    service: Service, inputs: Sequence[Input], request: Request, truncate: bool = True
) -> list[Array]:
    """One vector for each token of each input, `[tokens, hidden]`."""
    return (await service.run(Task(0, 0, inputs=inputs, want="rows", cut=truncate), request)).outputs


async def embed_sparse(
    service: Service, inputs: Sequence[Input], request: Request, truncate: bool = True
) -> list[list[tuple[int, float]]]:
    """The weights that a masked-language head gives the words of its vocabulary (SPLADE), those above zero."""
    _need(service, "masked", "sparse embeddings")
    task = await service.run(Task(0, 0, inputs=inputs, want="sparse", cut=truncate), request)
    return [[(int(i), float(weights[i])) for i in np.flatnonzero(weights)] for weights in task.outputs]


async def classify(
    service: Service, inputs: Sequence[Input], request: Request, raw: bool = False, truncate: bool = True
) -> list[list[tuple[str, float]]]:
    """Every label of a sequence classifier with its score, the best first; `raw` scores are logits."""
    _need(service, "sequence", "classification")
    network = service.model.network
    task = await service.run(Task(0, 0, inputs=inputs, want="head", cut=truncate), request)
    found = []
    for logits in task.outputs:
        if raw:
            scores = list(zip(network.labels, map(float, logits), strict=True))
        else:
            scores = list(answers.label(network, logits).scores.items())
        found.append(sorted(scores, key=lambda pair: -pair[1]))
    return found


async def rerank(
    service: Service, query: str, texts: Sequence[str], request: Request, raw: bool = False, truncate: bool = True
) -> list[float]:
    """How relevant each text is to the query, by a classifier of pairs with one output, or with two of which the second
    says yes."""
    _need(service, "sequence", "reranking")
    if service.outputs > 2:
        raise FusebertError(f"the model has {service.outputs} labels; reranking needs one output, or no and yes")
    inputs = [(query, text) for text in texts]
    task = await service.run(Task(0, 0, inputs=inputs, want="head", cut=truncate), request)
    return [float(score) for score in relevance(np.stack(task.outputs), raw)]


async def similarity(service: Service, source: str, sentences: Sequence[str], request: Request) -> list[float]:
    """The cosine of each sentence to the source."""
    vectors = await embed(service, [source, *sentences], request)
    return [float(cosine) for cosine in vectors[1:] @ vectors[0]]


async def tag(service: Service, texts: Sequence[Text], request: Request, grouped: bool = True) -> list[list[Span]]:
    """The entities in each text by a token classifier; not `grouped`: a label for every token."""
    _need(service, "token", "tagging")
    task = await service.run(Task(0, 0, inputs=texts, want="head"), request)
    network = service.model.network
    found = []
    for text, tokens, logits in zip(texts, task.encodings, task.outputs, strict=True):
        spans = answers.entities(network, text, tokens, logits)
        found.append(group(text, spans) if grouped else spans)
    return found


async def answer(service: Service, pairs: Sequence[tuple[str, str]], request: Request) -> list[Span]:
    """The answer to each question in its context."""
    _need(service, "question", "question answering")
    task = await service.run(Task(0, 0, inputs=pairs, want="head"), request)
    return [
        answers.answer(pair, tokens, logits)
        for pair, tokens, logits in zip(pairs, task.encodings, task.outputs, strict=True)
    ]


def unit(vectors: Array) -> Array:
    """Vectors of length one."""
    lengths = np.sqrt(
        np.add.reduce(vectors * vectors, axis=1, keepdims=True)
    )  # as np.linalg.norm does, in half the time
    normed: Array = vectors / np.maximum(lengths, 1e-12)
    return normed


def tokenize(service: Service, texts: Sequence[Text], special: bool = True) -> list[Tokens]:
    """The tokens of each text, with special ones or without."""
    return service.tokenizer(texts, special)


def decode(service: Service, ids: Sequence[Sequence[int]], skip_special: bool) -> list[str]:
    """Each list of ids as text."""
    for own in ids:
        if any(not 0 <= token < service.vocabulary for token in own):
            raise FusebertError(f"ids: a token id is outside 0 to {service.vocabulary - 1}")
    return [service.tokenizer.decode(list(own), skip_special) for own in ids]


def group(text: Text, spans: Sequence[Span]) -> list[Span]:
    """Tokens of one entity as one span: neighbours with the same label, up to the next that begins with `B-`."""
    groups: list[list[Span]] = []
    for span in spans:
        if span.label in ("O", ""):
            groups.append([])
        elif groups and groups[-1] and _continues(groups[-1][-1], span):
            groups[-1].append(span)
        else:
            groups.append([span])
    return [_joined(text, spans) for spans in groups if spans]


def _continues(before: Span, span: Span) -> bool:
    same = _entity(before.label) == _entity(span.label) and before.end <= span.start
    return same and (not span.label.startswith("B-") or before.end == span.start)


def _joined(text: Text, spans: list[Span]) -> Span:
    start, end = spans[0].start, spans[-1].end
    words = text[start:end] if isinstance(text, str) else " ".join(span.text for span in spans)
    return Span(words, start, end, _entity(spans[0].label), sum(span.score for span in spans) / len(spans))


def _entity(label: str) -> str:
    return label[2:] if label[:2] in ("B-", "I-") else label


def _need(service: Service, kind: str, verb: str) -> None:
    have = service.model.network.head.kind
    if have != kind:
        words: dict[str, Any] = {"sequence": "a sequence classifier", "token": "a token classifier"}
        words |= {"question": "a question-answering head", "masked": "a masked-language head"}
        raise FusebertError(f"{verb} needs a model with {words[kind]}; {service.name} has {words.get(have, 'no head')}")
