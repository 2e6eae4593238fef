"""Ragged rows -> embeddings of texts: what the files of sentence-transformers say, or what a caller wants instead."""

from __future__ import annotations

from typing import Any

from fusebert.engine.native import Engine
from fusebert.engine.pooling import check_pooling, pool
from fusebert.engine.vectors import unit_rows
from fusebert.errors import UnsupportedError, unknown
from fusebert.ops.graph import Array
from fusebert.values.network import Sentence


class Embedder:
    """One embedding for each sequence of ragged rows. A pooling that is given is used instead of the model's own, and
    without the steps that belong to that one."""

    def __init__(
        self, engine: Engine, own: Sentence | None, pooling: str | None = None, normalize: bool | None = None
    ) -> None:
        sentence = own or Sentence()
        self._refusal = sentence.refusal if pooling is None else ""
        self._engine, self._steps = engine, sentence.steps if pooling is None else ()
        self.pooling = check_pooling(sentence.pooling if pooling is None else pooling)
        self._normalize = sentence.normalize if normalize is None else normalize

    def width(self, hidden_size: int) -> int:
        """Of an embedding."""
        return len(self._steps[-1].linear.weight) if self._steps else hidden_size * len(self.pooling.split("+"))

    def __call__(self, rows: Array, offsets: Array) -> Array:
        """The embeddings of sequences `rows[offsets[i] : offsets[i + 1]]`."""
        if self._refusal:
            raise UnsupportedError(f"{self._refusal}; give a pooling to embed texts without it")
        embeddings = pool(rows, offsets, self.pooling)
        if self._steps:
            embeddings = self._engine.sentence(embeddings)
        return unit_rows(embeddings) if self._normalize else embeddings


def prompted(
    own: Sentence | None, texts: list[Any], prompt_name: str | None = None, prompt: str | None = None
) -> list[Any]:
    """Texts behind a prompt: the one given, the one of that name, or the model's default. A pair has it before its
    first text; what is tokenised already stays as it is."""
    prompts = own.prompts if own else {}
    name = prompt_name if prompt_name is not None or own is None else own.default_prompt
    if prompt is None and name is not None:
        if name not in prompts:
            raise unknown("prompt_name", name, prompts)
        prompt = prompts[name]
    return [_behind(prompt, text) for text in texts] if prompt else texts


def _behind(prompt: str, text: Any) -> Any:
    if isinstance(text, str):
        return prompt + text
    if isinstance(text, (tuple, list)) and len(text) == 2 and isinstance(text[0], str):
        return prompt + text[0], text[1]
    return text  # the tokenizer tells what is wrong with others
