"""Run: a model on texts or token ids, as a Report (labels, entities, answers, masked words, or similarities of
embeddings) or as one JSON object for each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from fusebert.engine.fingerprint import fingerprint
from fusebert.engine.load import load
from fusebert.engine.model import Model
from fusebert.engine.sentence import prompted
from fusebert.engine.tokenizer import Text, Tokens
from fusebert.errors import FusebertError
from fusebert.formats import dataset
from fusebert.report import Report, Table
from fusebert.values.network import Sentence

_WINDOW = 256  # texts that are answered together where all of them may be many
_MOST_SIMILAR = 16  # texts whose similarities fit into a table

Input = Text | Tokens


@dataclass(frozen=True)
class Settings:
    """How a model is loaded, and how its rows become vectors."""

    precision: str | None = None
    pooling: str | None = None
    head: str | None = None
    threads: int | None = None
    tokenizer: str | Path | None = None
    attention: str | None = None
    memory: int | None = None

    def load(self, path: str | Path) -> Model:
        """The model."""
        model = load(path, self.precision, self.threads, head=self.head, attention=self.attention, memory=self.memory)
        if self.tokenizer is not None:
            model.take_tokenizer(self.tokenizer)
        return model


DEFAULTS = Settings()


def run(path: str | Path, texts: Iterable[Input], settings: Settings = DEFAULTS, vectors: bool = False) -> Report:
    """Loads a model and runs it on texts, pairs or tokens; `vectors` adds the embeddings themselves."""
    runner = Runner(settings.load(path), settings.pooling)
    inputs = list(texts)
    if not inputs:
        raise FusebertError("there are no texts to run the model on; give at least one")
    found = runner.answer(inputs)
    facts: dict[str, Any] = {
        "family": runner.model.network.family,
        "precision": runner.model.plan.precision,
        "threads": runner.model.threads,
    }
    names = [_name(text) for text in inputs]
    if runner.kind != "none":
        return Report(str(path), facts, (_predictions(runner.kind, names, found),), runner.notes())
    if vectors:
        facts["embeddings"] = [vector.tolist() for vector in found]
    if len(names) > _MOST_SIMILAR:
        more = f"Similarities are shown of at most {_MOST_SIMILAR} texts; --jsonl or --json gives the vectors."
        return Report(str(path), {**facts, "texts": len(names)}, (), (*runner.notes(), more))
    rows = [(name, *(round(float(one @ other), 4) for other in found)) for name, one in zip(names, found, strict=True)]
    table = Table("similarity", ("text", *(str(i + 1) for i in range(len(names)))), tuple(rows))
    return Report(str(path), facts, (table,), runner.notes())


def tell_space(path: str | Path, settings: Settings = DEFAULTS) -> Report:
    """The fingerprint of a model's vector space, as a server of it tells it, and what it was made of."""
    model = settings.load(path)
    sentence = model.network.sentence or Sentence()
    facts = {
        "fingerprint": fingerprint(model, settings.pooling),
        "precision": model.plan.precision,
        "pooling": settings.pooling or sentence.pooling,
        "prompts": dict(sentence.prompts),
    }
    return Report(str(path), facts)


class Runner:
    """A model with the number of texts that it had to cut."""

    def __init__(self, model: Model, pooling: str | None = None) -> None:
        self.model, self._pooling, self.kind = model, pooling, model.network.head.kind
        self._seen = self._cut = 0

    def answer(self, inputs: list[Any]) -> list[Any]:
        """What the model says of each: a vector where it has no head, else as `Model.predict`."""
        tokens = self._tokenise(inputs)
        self._seen += len(tokens)
        self._cut += sum(one.cut for one in tokens)
        if self.kind == "none":
            return list(self.model.encode(tokens, self._pooling))
        given = tokens if self.kind == "sequence" else inputs
        return list(self.model.predict(given))

    def objects(self, inputs: Iterable[Input]) -> Iterator[dict[str, Any]]:
        """An object for each input, in order; however many there are, few are held at once."""
        rest = iter(inputs)
        while window := list(islice(rest, _WINDOW)):
            for text, found in zip(window, self.answer(window), strict=True):
                own = {"input_ids": text.ids} if isinstance(text, Tokens) else {"text": text}
                yield own | _object(self.kind, found)

    def notes(self) -> tuple[str, ...]:
        """What to know of the texts."""
        if not self._cut or self.model.tokenizer is None:
            return ()
        verb = "is" if self._cut == 1 else "are"
        longest = self.model.tokenizer.max_length
        return (f"{self._cut} of {self._seen} texts {verb} longer than {longest} tokens; the rest was cut off.",)

    def _tokenise(self, inputs: list[Any]) -> list[Tokens]:
        if all(isinstance(text, Tokens) for text in inputs):
            return inputs
        if self.model.tokenizer is None:
            raise FusebertError("the model's folder has no tokenizer.json or vocab.txt; give --tokenizer or --ids")
        texts = prompted(self.model.network.sentence, inputs) if self.kind == "none" else inputs
        return self.model.tokenizer(texts)


def read_inputs(path: Path, columns: tuple[str, ...] = (), ids: bool = False, stdin: str = ".txt") -> Iterator[Input]:
    """The texts, pairs or token ids of a file or of standard input (`-`), whose format the suffix `stdin` tells.
    `columns` is one, or two for pairs; by default `text`, or `input_ids`."""
    (file,) = dataset.list_files(path) if path == dataset.STDIN or path.is_file() else _missing(path)
    plain = stdin == ".txt" if path == dataset.STDIN else dataset.is_plain(path)
    columns = columns or ("input_ids" if ids and not plain else "text",)
    for row in dataset.read_rows([file], () if ids else columns, columns if ids else (), stdin):
        if row.reason:
            raise FusebertError(f"{path}, row {row.number + 1}: {row.reason}")
        if ids:
            yield read_ids(row.kept[columns[0]], f"{path}, row {row.number + 1}")
        else:
            yield row.texts[0] if len(row.texts) == 1 else (row.texts[0], row.texts[1])


def read_ids(value: Any, where: str) -> Tokens:
    """Token ids as numbers, or as text with spaces or commas between them."""
    words = value.replace(",", " ").split() if isinstance(value, str) else value
    try:
        numbers = [int(word) for word in words]
    except (TypeError, ValueError):
        numbers = []
    if not numbers or min(numbers) < 0 or max(numbers) >= 1 << 31 or any(isinstance(word, float) for word in words):
        raise FusebertError(f"{where}: token ids are expected, such as 101 7592 102, not {value!r:.60}")
    return Tokens(numbers, [0] * len(numbers), [(0, 0)] * len(numbers), [None] * len(numbers))


def _missing(path: Path) -> Any:
    raise FusebertError(f"{path} does not exist, or is not a file; give a file with texts")


def _name(text: Any) -> str:
    if isinstance(text, Tokens):
        return " ".join(map(str, text.ids))
    return text if isinstance(text, str) else " | ".join(text)


def _object(kind: str, found: Any) -> dict[str, Any]:
    """An answer as JSON values."""
    if kind == "none":
        return {"embedding": found.tolist()}
    if kind == "masked":
        return {"words": [[{"word": word, "score": score} for word, score in words] for words in found]}
    if kind == "token":
        return {"entities": [asdict(span) for span in found]}
    if kind == "question":
        return {"answer": found.text, "start": found.start, "end": found.end, "score": found.score}
    return asdict(found)


def _predictions(kind: str, names: list[str], found: list[Any]) -> Table:
    results = list(zip(names, found, strict=True))
    rows: list[tuple[Any, ...]]
    if kind == "sequence":
        rows = [(name, label.label, round(label.score, 4)) for name, label in results]
        return Table("labels", ("text", "label", "score"), tuple(rows))
    if kind == "masked":
        rows = [
            (name, i + 1, word, round(s, 4))
            for name, masks in results
            for i, words in enumerate(masks)
            for word, s in words
        ]
        return Table("words", ("text", "mask", "word", "score"), tuple(rows))
    spans = [(name, span) for name, found in results for span in (found if kind == "token" else [found])]
    rows = [(name, *asdict(span).values()) for name, span in spans]
    return Table("spans", ("text", "found", "start", "end", "label", "score"), tuple(rows))
