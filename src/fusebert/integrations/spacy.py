"""spaCy: the pipe `fusebert`, which writes what a model says of a text into the Doc.

A token classifier sets `doc.ents`, a sequence classifier `doc.cats`, and a model without a head `doc.vector`. spaCy
knows the name from this package, so that `nlp.add_pipe("fusebert", config={"model": PATH})` needs no import."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from spacy.language import Language
from spacy.tokens import Doc, Span
from spacy.util import filter_spans

import fusebert
from fusebert.engine.answers import Span as Found
from fusebert.errors import FusebertError


class Pipe:
    """One component; the model is loaded when the pipe is made."""

    def __init__(self, name: str, model: str, precision: str | None, threads: int | None) -> None:
        self.name, self.model = name, fusebert.load(model, precision=precision, threads=threads)
        writers = {"none": self._set_vectors, "sequence": self._set_categories, "token": self._set_entities}
        kind = self.model.network.head.kind
        if kind not in writers:
            raise FusebertError(
                f"{model}: a pipe is made of a classifier of texts or tokens, or of an encoder, not {kind}"
            )
        self._write = writers[kind]

    def __call__(self, doc: Doc) -> Doc:
        """One text."""
        self._write([doc])
        return doc

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Many texts, `batch_size` at a time."""
        given = iter(stream)
        while docs := list(islice(given, batch_size)):
            self._write(docs)
            yield from docs

    def _set_vectors(self, docs: list[Doc]) -> None:
        for doc, vector in zip(docs, self.model.encode([doc.text for doc in docs]), strict=True):
            doc.vector = vector

    def _set_categories(self, docs: list[Doc]) -> None:
        for doc, label in zip(docs, self.model.predict([doc.text for doc in docs]), strict=True):
            doc.cats = dict(label.scores)

    def _set_entities(self, docs: list[Doc]) -> None:
        for doc, found in zip(docs, self.model.predict([doc.text for doc in docs]), strict=True):
            doc.set_ents(filter_spans(list(entities(doc, found))))


def entities(doc: Doc, found: Iterable[Found]) -> Iterator[Span]:
    """Neighbouring pieces of one kind as one span of whole tokens. B- begins another; O is none."""
    first, last, kind = 0, 0, ""
    for piece in [*found, Found("", len(doc.text), len(doc.text), "O", 0.0)]:
        mark, _, rest = piece.label.partition("-")
        label = "" if piece.label == "O" else rest if mark in ("B", "I", "E", "S", "L", "U") and rest else piece.label
        inside = first < last and doc.text[last : piece.start].strip() == ""
        begins = mark in ("B", "S", "U") and bool(rest) and piece.start > last
        if kind and (label != kind or not inside or begins):
            span = doc.char_span(first, last, kind, alignment_mode="expand")
            yield from [span] if span is not None else []
            kind = ""
        if label:
            first, last, kind = (first if kind else piece.start), piece.end, label


@Language.factory("fusebert", default_config={"precision": None, "threads": None})  # type: ignore[untyped-decorator, unused-ignore]
def make(nlp: Any, name: str, model: str, precision: str | None, threads: int | None) -> Pipe:  # noqa: ARG001
    """The factory that spaCy calls."""
    return Pipe(name, model, precision, threads)
