"""How texts become requests of a protocol, and where a label is in its answer: one entry each. The server's own /info,
where it has one, tells which protocol fits and what its labels are called."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fusebert.engine.tokenizer import Text
from fusebert.errors import FusebertError


@dataclass(frozen=True)
class Protocol:
    """`body` makes the JSON of a request from texts; `labels` finds one in an answer for each text, where there are
    any. `named`: its body must name the model."""

    path: str
    body: Callable[[Sequence[Text]], dict[str, Any]]
    labels: Callable[[Any], list[str]] | None = None
    named: bool = False


@dataclass(frozen=True)
class Facts:
    """What a server tells of itself: the model's name, whether it classifies, and its labels in order."""

    model: str = "model"
    classifies: bool = False
    labels: tuple[str, ...] = ()

    @staticmethod
    def read(info: Any) -> Facts:
        """From the JSON of /info: fusebert's, or that of text-embeddings-inference."""
        if not isinstance(info, Mapping):
            return Facts()
        name, kind, labels = info.get("model_id"), info.get("model_type"), info.get("labels")
        kind = kind if isinstance(kind, Mapping) else {}
        if isinstance(classifier := kind.get("classifier"), Mapping):
            names = classifier.get("id2label")
            labels = [names[key] for key in sorted(names, key=int)] if isinstance(names, Mapping) else []
        classifies = kind.get("head") == "sequence" or "classifier" in kind
        return Facts(str(name or "model"), classifies, tuple(map(str, labels or ())))

    def number(self, label: str) -> str:
        """A label as the number of its class, where it is known; else as it is."""
        return str(self.labels.index(label)) if label in self.labels else label


def _joined(text: Text) -> str:
    """For models that take one text: a pair's texts after each other."""
    return text if isinstance(text, str) else " ".join(text)


def _embed(texts: Sequence[Text]) -> dict[str, Any]:
    return {"inputs": [_joined(text) for text in texts] if len(texts) > 1 else _joined(texts[0])}


def _predict(texts: Sequence[Text]) -> dict[str, Any]:
    return {"inputs": [[text] if isinstance(text, str) else list(text) for text in texts]}


def _predicted(answer: Any) -> list[str]:
    return [scores[0]["label"] for scores in answer]


def _openai(texts: Sequence[Text]) -> dict[str, Any]:
    return {"input": _embed(texts)["inputs"]}


def _rerank(texts: Sequence[Text]) -> dict[str, Any]:
    first = texts[0]
    query = first if isinstance(first, str) else first[0]
    return {"query": query, "texts": [text if isinstance(text, str) else text[1] for text in texts]}


def _oip(texts: Sequence[Text]) -> dict[str, Any]:
    data = [_joined(text) for text in texts]
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(data)], "data": data}]}


PROTOCOLS = {
    "embed": Protocol("/embed", _embed),
    "predict": Protocol("/predict", _predict, _predicted),
    "rerank": Protocol("/rerank", _rerank),
    "openai": Protocol("/v1/embeddings", _openai, named=True),
    "oip": Protocol("/v2/models/{model}/infer", _oip),
}


def find_protocol(name: str | None, facts: Facts) -> tuple[str, Protocol]:
    """The protocol of that name, or the one that suits the model."""
    name = name or ("predict" if facts.classifies else "embed")
    if name not in PROTOCOLS:
        raise FusebertError(f"there is no protocol {name!r:.40}; use one of {', '.join(PROTOCOLS)}")
    return name, PROTOCOLS[name]


def requests(
    protocol: Protocol, texts: Sequence[Text], batch: int, model: str | None, facts: Facts
) -> tuple[str, list[bytes]]:
    """The path, and the body of every request with `batch` texts in it; what does not fill one is left out, unless it
    is all. The model is named where that is needed, or asked for."""
    named = {"model": model or facts.model} if model or protocol.named else {}
    groups = [texts[i : i + batch] for i in range(0, max(1, len(texts) - batch + 1), batch)]
    made = [json.dumps({**protocol.body(group), **named}, ensure_ascii=False).encode() for group in groups]
    return protocol.path.replace("{model}", model or facts.model), made
