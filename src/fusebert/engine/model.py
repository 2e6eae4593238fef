"""Model: a Network packed in the types of a Plan: arrays or texts in, answers out. engine/load.py makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine import answers
from fusebert.engine.keywords import understand_encode, understand_predict
from fusebert.engine.memory import Room, longest_of
from fusebert.engine.native import Engine, Observer, steps
from fusebert.engine.pooling import pool
from fusebert.engine.quantize import convert
from fusebert.engine.sentence import Embedder, prompted
from fusebert.engine.tokenizer import Text, Tokenizer, Tokens, group_tokens, list_texts
from fusebert.engine.vectors import Sparse, chunk_means, own_words, relevance, sparse, unit_rows
from fusebert.errors import FusebertError, unknown
from fusebert.formats import artifact, write
from fusebert.ops.graph import Array
from fusebert.progress import progress as progress_bar
from fusebert.report import Report
from fusebert.values.batch import Batch, as_array, hidden_rows
from fusebert.values.blocks import Attention
from fusebert.values.network import Network, check_ids, positions, ragged_positions
from fusebert.values.plan import PRODUCTS, Plan
from fusebert.values.traverse import layers

PADDING = ("auto", "skip", "compute")


class Model:
    """A network packed for one plan. Safe to call from several threads at once. It pickles by what it was loaded from,
    which whoever unpickles it must have too; copies share the packed weights."""

    def __init__(
        self,
        network: Network,
        plan: Plan,
        tokenizer: Tokenizer | None = None,
        threads: int | None = None,
        padding: str = "auto",
    ) -> None:
        self.network, self.plan, self.padding = network, plan, _choice("padding", padding, PADDING)
        self.memory: int | None = None  # bytes that a call may take beside the weights
        self.left_out: tuple[str, ...] = ()  # of the graph the model comes from
        self.bytes_read = network.bytes  # of the weights, as the file has them
        self.tokenizer = tokenizer  # what texts are tokenised with, if the model's folder has it
        self.origin: Callable[[], Model] | None = None  # loads it once more
        self._tokenizer_folder: Path | None = None  # if it is not the model's own
        bodies = (block.body for block in network.encoder.blocks)
        self._heads = max((body.heads for body in bodies if isinstance(body, Attention)), default=1)
        self.engine = Engine(network, plan, threads)

    def __repr__(self) -> str:
        network, encoder = self.network, self.network.encoder
        head = "no head" if network.head.kind == "none" else f"{network.head.kind} head"
        sizes = f"{len(layers(encoder))} layers of {encoder.hidden_size}"
        return f"<Model {network.family}, {sizes}, {head}, {self.plan.precision}, threads={self.threads}>"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        network, encoder = self.network, self.network.encoder
        facts = {
            "family": network.family, "head": network.head.kind, "layers": len(layers(encoder)),
            "hidden": encoder.hidden_size, "precision": self.plan.precision, "threads": self.threads,
        }  # fmt: skip
        return Report("fusebert model", facts)._repr_html_()

    def __reduce__(self) -> Any:
        if self.origin is None:
            raise FusebertError("this model was not made by fusebert.load, so it cannot be pickled; save and load it")
        return _load_again, (self.origin, self._tokenizer_folder)

    def __copy__(self) -> Model:
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def __deepcopy__(self, memo: Any) -> Model:
        return self.__copy__()  # what both have is never written to

    @property
    def threads(self) -> int:
        """Threads a call may use."""
        return self.engine.threads

    def with_threads(self, threads: int) -> Model:
        """The same packed weights, run on so many threads of its own."""
        other = copy(self)
        other.engine = self.engine.with_threads(threads)
        return other

    @property
    def bytes(self) -> int:
        """Memory of the packed weights."""
        return self.engine.bytes

    def run(
        self,
        input_ids: Any,
        attention_mask: Any = None,
        token_type_ids: Any = None,
        output_hidden_states: bool = False,
        padding: str | None = None,
    ) -> dict[str, Any]:
        """Runs a padded batch `[sequences, length]` and returns what the architecture returns, as NumPy arrays.

        The mask is lengths (B), 0/1 rows (B, S) with padding anywhere, 0/1 (B, S, S), or additive (B, heads, S, S).
        padding: "skip" leaves zeros at hidden positions, "compute" computes them as frameworks do. "auto" skips them,
        but for a first token, behind a head that reads no others; a model without a head, whose rows go who knows
        where, and one for question answering compute them."""
        ids = check_ids("input_ids", input_ids)
        if len(ids) > (fitting := self._fitting(*ids.shape)):
            return self._run_in_parts(fitting, ids, attention_mask, token_type_ids, output_hidden_states, padding)
        mode = self._hidden_rows(padding)
        batch = self._batch(ids, attention_mask, mode)
        rows, states = self._encode_rows(ids, token_type_ids, batch, output_hidden_states)
        drop = mode != "compute"
        outputs = self._outputs(rows, batch, drop)
        if output_hidden_states:
            outputs["hidden_states"] = tuple(batch.spread(state, drop) for state in states)
        return outputs

    def _run_in_parts(
        self, fitting: int, ids: Array, mask: Any, types: Any, states: bool, padding: str | None
    ) -> dict[str, Any]:
        """What `run` gives, a part of the sequences at a time."""
        mask = None if mask is None else as_array("attention_mask", mask)
        types = None if types is None else check_ids("token_type_ids", types, ids.shape)
        outputs = []
        for first in range(0, len(ids), fitting):
            own = slice(first, first + fitting)
            part = mask if mask is None or mask.ndim == 0 or len(mask) != len(ids) else mask[own]
            outputs.append(self.run(ids[own], part, None if types is None else types[own], states, padding))
        joined: dict[str, Any] = {}
        for name, first_part in outputs[0].items():
            if isinstance(first_part, tuple):
                joined[name] = tuple(map(np.concatenate, zip(*(part[name] for part in outputs), strict=True)))
            else:
                joined[name] = np.concatenate([part[name] for part in outputs])
        return joined

    def _fitting(self, sequences: int, longest: int) -> int:
        """How many sequences of that length may run together."""
        if self.memory is None or not sequences or not longest:
            return sequences
        return self._room.tokens(self.memory, longest) // longest

    @property
    def _room(self) -> Room:
        return Room.of(self.network, self.threads)

    def _groups(self, tokens: list[Tokens], batch_tokens: int, batch_size: int | None = None) -> list[list[int]]:
        """Texts that run together, so that they stay within the model's bound of memory."""
        if self.memory is not None and isinstance(batch_tokens, int):
            batch_tokens = min(batch_tokens, self._room.tokens(self.memory, longest_of(tokens)))
        return group_tokens(tokens, batch_tokens, batch_size)

    def rows(self, input_ids: Any, offsets: Any, token_type_ids: Any = None) -> Array:
        """The encoder's output for ragged sequences, `[tokens, hidden]`: nothing is padded and nothing computed twice.

        Sequence i is `input_ids[offsets[i] : offsets[i + 1]]`; offsets begin with 0 and end with the number of tokens.
        Its rows are the bits that any other batch gives."""
        ids = _flat("input_ids", input_ids)
        ends = _flat("offsets", offsets)
        if not len(ends) or ends[0] != 0 or ends[-1] != len(ids) or (np.diff(ends) < 0).any():
            raise FusebertError(f"offsets: they must rise from 0 to {len(ids)}, the number of input_ids")
        longest = int(np.diff(ends).max(initial=0))
        if longest > self.network.embeddings.longest:
            raise FusebertError(
                f"input_ids: {longest} tokens, but the model has positions for {self.network.embeddings.longest}"
            )
        types = None if token_type_ids is None else _flat("token_type_ids", token_type_ids)
        if types is not None and len(types) != len(ids):
            raise FusebertError(f"token_type_ids: {len(types)} numbers for {len(ids)} input_ids")
        lengths = [int(n) for n in np.diff(ends)]
        most = len(ids) if self.memory is None else self._room.tokens(self.memory, max(longest, 1))
        if len(ids) > most:
            return self._rows_in_parts(most, ids, ends, types)
        return self.engine.encoder.run(self._embed(ids, ends, types), Batch.ragged(lengths))[0]

    def _rows_in_parts(self, most: int, ids: Array, ends: Array, types: Array | None) -> Array:
        """What `rows` gives, at most so many tokens at a time."""
        found = np.empty((len(ids), self.network.encoder.hidden_size), np.float32)
        first = 0
        while first < len(ends) - 1:
            last = max(first + 1, int(np.searchsorted(ends, ends[first] + most, "right")) - 1)
            own = slice(int(ends[first]), int(ends[last]))
            found[own] = self.rows(
                ids[own], ends[first : last + 1] - ends[first], None if types is None else types[own]
            )
            first = last
        return found

    def head(self, rows: Array, offsets: Any) -> Array:
        """What the head makes of ragged rows, as `rows` returns them: `[sequences, outputs]` where it answers for whole
        sequences (a classifier, or the pooler of a model without one), else `[tokens, outputs]`."""
        if not self.network.head.pools:
            return self.engine.head(rows)
        ends = _flat("offsets", offsets)
        if (np.diff(ends) < 1).any():
            raise FusebertError("offsets: the head reads rows of each sequence, and one has none")
        return self._pooled(rows, Batch.ragged([int(n) for n in np.diff(ends)]))

    def encode(
        self,
        texts: str | Tokens | Iterable[Text | Tokens],
        pooling: str | None = None,
        normalize: bool | None = None,
        batch_tokens: int = 8192,
        progress: bool = False,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int | None = None,
        **theirs: Any,
    ) -> Array:
        """One embedding per text or pair, `[texts, width]`, in the order given, or `[width]` for a single text; texts
        may be tokenised already.

        A folder of sentence-transformers says how: its pooling, dense layers and normalising, and its default prompt.
        Elsewhere rows are averaged and normalised. `pooling` overrides the folder's, without its dense layers.
        `prompt_name` names one of the folder's prompts; `prompt` is one. Texts run sorted by length, about
        `batch_tokens` tokens and at most `batch_size` texts at a time; nothing is padded. The keywords of
        sentence-transformers are understood (docs/python.md)."""
        meant = understand_encode(theirs, progress, normalize, self.network.sentence is not None)
        listed, single = list_texts(texts)
        embed = Embedder(self.engine, self.network.sentence, pooling, meant.normalize)
        tokens = self._tokenize(prompted(self.network.sentence, listed, prompt_name, prompt))
        embeddings: dict[int, Array] = {}

        def keep(numbers: list[int], rows: Array, batch: Batch) -> None:
            embeddings.update(zip(numbers, embed(rows, batch.offsets), strict=True))

        self._each_batch(self._groups(tokens, batch_tokens, batch_size), tokens, keep, "encoding", meant.progress)
        width = embed.width(self.network.encoder.hidden_size)
        vectors = np.array([embeddings[i] for i in range(len(tokens))], np.float32).reshape(-1, width)
        answer: Array = meant.convert(vectors[0] if single else vectors)
        return answer

    def encode_tokens(
        self, texts: Iterable[Text | Tokens], batch_tokens: int = 8192, progress: bool = False
    ) -> list[Array]:
        """The encoder's rows of each text or pair, `[tokens, hidden]`, special tokens included, in the order given."""
        tokens = self._tokenize(list_texts(texts)[0])
        found: list[Array] = [np.zeros((0, self.network.encoder.hidden_size), np.float32)] * len(tokens)

        def keep(numbers: list[int], rows: Array, batch: Batch) -> None:
            for place, number in enumerate(numbers):
                found[number] = rows[batch.offsets[place] : batch.offsets[place + 1]].copy()

        self._each_batch(self._groups(tokens, batch_tokens), tokens, keep, "encoding", progress)
        return found

    def encode_sparse(self, texts: Iterable[Text | Tokens], batch_tokens: int = 8192) -> list[Sparse]:
        """The words that each text is about, with weights: SPLADE by a masked-LM head, as a folder of
        sentence-transformers says, or the text's own words by bge-m3's head for them."""
        sentence = self.network.sentence
        own = self.network.token_heads is not None
        if not own and self.network.head.kind != "masked":
            raise FusebertError(
                'weights of words are made by a masked-LM head (load the model with head="masked") or by bge-m3\'s '
                "sparse_linear.pt, which torch reads"
            )
        tokens = self._tokenize(prompted(sentence, list_texts(texts)[0]))
        rows = self.encode_tokens(tokens, batch_tokens)
        if not own:
            splade = (sentence.splade if sentence else "") or "max"
            return [sparse(self.engine.head(of_text), splade) for of_text in rows]
        unknown = self.tokenizer.unknown_id() if self.tokenizer else None
        weights = (self.engine.token_head("weight", of_text)[:, 0] for of_text in rows)
        return [own_words(*pair, unknown) for pair in zip(tokens, weights, strict=True)]

    def encode_vectors(self, texts: Iterable[Text | Tokens], batch_tokens: int = 8192) -> list[Array]:
        """A vector of unit length for each token of a text but the first, `[tokens - 1, width]`, by bge-m3's head for
        late interaction (ColBERT): a text is as near to another as the sum of the largest products of its vectors."""
        if self.network.token_heads is None:
            raise FusebertError("this model has no colbert_linear.pt, which makes vectors of tokens; use encode_tokens")
        rows = self.encode_tokens(texts, batch_tokens)
        return [unit_rows(self.engine.token_head("vector", of_text[1:])) for of_text in rows]

    def encode_chunks(
        self,
        texts: Iterable[str],
        chunks: Iterable[Sequence[tuple[int, int]]],
        normalize: bool = True,
        batch_tokens: int = 8192,
    ) -> list[Array]:
        """Embeddings of pieces of texts that have seen all of their text (late chunking), `[chunks, hidden]` a text.

        A chunk is characters from first to before last; its embedding is the mean of the rows of its tokens."""
        listed, wanted = list_texts(texts)[0], list(chunks)
        if len(listed) != len(wanted):
            raise FusebertError(f"chunks: {len(wanted)} lists for {len(listed)} texts")
        tokens = self._tokenize(listed)
        rows = self.encode_tokens(tokens, batch_tokens)
        return [chunk_means(*given, normalize) for given in zip(rows, tokens, wanted, strict=True)]

    def score(self, pairs: Iterable[tuple[str, str]], raw: bool | None = None, batch_tokens: int = 8192) -> Array:
        """How relevant the second text of each pair is to the first, by a cross-encoder: from 0 to 1, or its logit
        where `raw` is true, or where sentence-transformers wrote into the files that its scores are that."""
        if self.network.head.kind != "sequence":
            raise FusebertError("pairs are scored by a sequence classifier; this model has none")
        tokens = self._tokenize(list_texts(pairs)[0])
        logits = np.zeros((len(tokens), len(self.network.labels)), np.float32)

        def keep(numbers: list[int], rows: Array, batch: Batch) -> None:
            logits[numbers] = self._pooled(rows, batch)

        self._each_batch(self._groups(tokens, batch_tokens), tokens, keep, "scoring", False)
        as_is = self.network.scores == "identity" and logits.shape[1] == 1
        return relevance(logits, as_is if raw is None else raw)

    def predict(
        self,
        texts: str | Tokens | Iterable[Text | Tokens],
        batch_tokens: int = 8192,
        progress: bool = False,
        batch_size: int | None = None,
        **theirs: Any,
    ) -> Any:
        """What the head says of each text or pair, as a list in the order given, or of a single text.

        A Label (sequence classifier), a list of Spans (token classifier), a Span (question answering, for pairs of
        question and context), or likely words for every mask token."""
        kind = self.network.head.kind
        if kind == "none":
            raise FusebertError("this model has no head to predict with; use encode")
        meant = understand_predict(theirs, progress)
        listed, single = list_texts(texts)
        tokens = self._tokenize(listed)
        results: list[Any] = [None] * len(tokens)

        def judge(numbers: list[int], rows: Array, batch: Batch) -> None:
            logits = self._pooled(rows, batch) if kind == "sequence" else self.engine.head(rows)
            for place, number in enumerate(numbers):
                own = logits[place] if kind == "sequence" else logits[batch.offsets[place] : batch.offsets[place + 1]]
                results[number] = self._answer(listed[number], tokens[number], own)

        self._each_batch(self._groups(tokens, batch_tokens, batch_size), tokens, judge, "predicting", meant.progress)
        return results[0] if single else results

    def observe(self, texts: Iterable[Text], batch_tokens: int = 8192, progress: bool = False) -> Array:
        """The lowest and highest input of every product over these texts, `[layers, 4, 2]`, for static int8."""
        ranges = np.zeros((len(layers(self.network.encoder)), len(PRODUCTS), 2), np.float32)

        def widen(layer: int, product: int, rows: Array) -> None:
            if rows.size:
                low, high = ranges[layer, product]
                ranges[layer, product] = min(low, rows.min()), max(high, rows.max())

        self.watch(texts, widen, batch_tokens, progress)
        return ranges

    def watch(
        self, texts: Iterable[Text], observer: Observer, batch_tokens: int = 8192, progress: bool = False
    ) -> None:
        """Runs these texts and shows `observer(layer, product, rows)` the input rows of every product; products are
        numbered as in PRODUCTS."""
        tokens = self._tokenize(list_texts(texts)[0])
        places = layers(self.network.encoder)
        layer_of = {place: (i, place - own.start) for i, own in enumerate(places) for place in own}

        def watch(place: int, product: int, rows: Array) -> None:
            layer, block = layer_of[place]
            observer(layer, 2 * block + product, rows)

        with progress_bar("watching", len(tokens), progress) as advance:
            for numbers in self._groups(tokens, batch_tokens):
                rows, batch = self._embed_tokens([tokens[i] for i in numbers])
                self.engine.encoder.run(rows, batch, observer=watch)
                advance(len(numbers))

    def take_tokenizer(self, folder: str | Path) -> None:
        """Uses the tokenizer.json or vocab.txt of another folder from now on."""
        tokenizer = Tokenizer.read(Path(folder), self.network.embeddings.longest)
        if tokenizer is None:
            raise FusebertError(f"{folder} has no tokenizer.json or vocab.txt")
        self.tokenizer, self._tokenizer_folder = tokenizer, Path(folder).absolute()

    def profile(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> dict[str, float]:
        """Seconds that each step of the encoder took on this batch, over all layers."""
        ids = check_ids("input_ids", input_ids)
        seconds = np.zeros(len(steps()))
        batch = self._batch(ids, attention_mask, self._hidden_rows(None))
        self._encode_rows(ids, token_type_ids, batch, False, seconds)
        return dict(zip(steps(), map(float, seconds), strict=True))

    def save(self, path: str | Path, overwrite: bool = False, check: Callable[[Path], None] | None = None) -> None:
        """Writes the artifact folder: whole, or not at all. Only an artifact or an empty folder is ever replaced.

        `check` sees the folder before it is put in place, and may raise to keep it from being."""
        with write.folder(Path(path), artifact.is_artifact if overwrite else None) as folder:
            longest = self.tokenizer.max_length if self.tokenizer else self.network.embeddings.longest
            artifact.write(folder, convert(self.network, self.plan), self.plan, longest)
            if self.tokenizer:
                self.tokenizer.save(folder / "tokenizer.json")
            if check:
                check(folder)

    @property
    def skips_hidden(self) -> bool:
        """Whether `run` leaves zeros at hidden positions unless it is told otherwise."""
        return self._hidden_rows(None) != "compute"

    def _hidden_rows(self, padding: str | None) -> str:
        """What Batch.masked is to do with hidden rows."""
        padding = self.padding if padding is None else _choice("padding", padding, PADDING)
        head = self.network.head
        return hidden_rows(padding, may_skip=head.kind not in ("none", "question"), reads_first=head.reads_first)

    def _batch(self, ids: Array, attention_mask: Any, hidden_rows: str) -> Batch:
        return Batch.masked(attention_mask, ids.shape, hidden_rows, self._heads)

    def _encode_rows(
        self, ids: Array, token_type_ids: Any, batch: Batch, hidden_states: bool, profile: Array | None = None
    ) -> tuple[Array, list[Array]]:
        embeddings = self.network.embeddings
        kinds = None if token_type_ids is None else check_ids("token_type_ids", token_type_ids, ids.shape)
        if embeddings.kind is None:
            if kinds is not None and kinds.any():
                raise FusebertError(f"token_type_ids: a {self.network.family} model has no token types")
            kinds = None
        elif kinds is None:
            kinds = np.zeros(ids.shape, np.int64)
        places = positions(embeddings, ids).ravel()[batch.index]
        entries = embeddings.longest if embeddings.position is None else len(embeddings.position)
        if ids.shape[1] > embeddings.longest and places.max(initial=0) >= entries:
            raise FusebertError(
                f"input_ids: {ids.shape[1]} tokens, but the model has positions for {embeddings.longest}"
            )
        flat_kinds = None if kinds is None else kinds.ravel()[batch.index]
        rows = self.engine.embed(ids.ravel()[batch.index], places, flat_kinds)
        output, states = self.engine.encoder.run(rows, batch, hidden_states, profile)
        return output, [rows, *states]

    def _outputs(self, rows: Array, batch: Batch, drop_hidden: bool) -> dict[str, Any]:
        kind = self.network.head.kind
        if kind == "none":
            outputs = {"last_hidden_state": batch.spread(rows, drop_hidden)}
            if self.network.head.steps:
                outputs["pooler_output"] = self._pooled(rows, batch)
            return outputs
        if kind == "sequence":
            return {"logits": self._pooled(rows, batch)}
        logits = batch.spread(self.engine.head(rows), drop_hidden)
        if kind == "question":
            return {"start_logits": logits[..., 0].copy(), "end_logits": logits[..., 1].copy()}
        return {"logits": logits}

    def _pooled(self, rows: Array, batch: Batch) -> Array:
        """What a head that answers for whole sequences says of each."""
        if self.network.head.reads_first:
            return self.engine.head(batch.first_rows(rows))
        seen, offsets = batch.visible_rows(rows)
        if self.network.head.pooling == "each":
            return pool(self.engine.head(seen), offsets, "mean")
        return self.engine.head(pool(seen, offsets, "mean"))

    def _answer(self, text: Text | Tokens, tokens: Tokens, logits: Array) -> Any:
        if self.network.head.kind == "sequence":
            return answers.label(self.network, logits)
        if isinstance(text, Tokens):
            raise FusebertError("this model's answers are pieces of the text; give texts, not tokens")
        if self.network.head.kind == "token":
            return answers.entities(self.network, text, tokens, logits)
        if self.network.head.kind == "question":
            return answers.answer(text, tokens, logits)
        assert self.tokenizer is not None  # there are tokens
        return answers.fills(self.tokenizer, tokens, logits)

    def _tokenize(self, texts: list[Any]) -> list[Tokens]:
        if texts and all(isinstance(text, Tokens) for text in texts):
            return [self._checked(text) for text in texts]
        if self.tokenizer is None:
            raise FusebertError("the model's folder has no tokenizer.json or vocab.txt; name one, or give token ids")
        return self.tokenizer([text for text in texts if not isinstance(text, Tokens)])

    def _checked(self, tokens: Tokens) -> Tokens:
        if len(tokens.ids) > self.network.embeddings.longest:
            longest = self.network.embeddings.longest
            raise FusebertError(f"{len(tokens.ids)} token ids, but the model has positions for {longest}")
        return tokens

    def _embed(self, ids: Array, offsets: Array, token_types: Array | None) -> Array:
        """The embeddings of ragged sequences."""
        embeddings = self.network.embeddings
        if embeddings.kind is None or token_types is None:
            token_types = None if embeddings.kind is None else np.zeros(len(ids), np.int64)
        elif len(embeddings.kind) == 1:
            token_types = np.zeros(len(ids), np.int64)  # RoBERTa has one type, whatever the tokenizer says
        return self.engine.embed(ids, ragged_positions(embeddings, ids, offsets), token_types)

    def _embed_tokens(self, tokens: list[Tokens]) -> tuple[Array, Batch]:
        batch = Batch.ragged([len(t.ids) for t in tokens])
        ids = np.array([i for t in tokens for i in t.ids], np.int64)
        kinds = np.array([k for t in tokens for k in t.kinds], np.int64)
        return self._embed(ids, batch.offsets, kinds), batch

    def _each_batch(
        self,
        groups: list[list[int]],
        tokens: list[Tokens],
        use: Callable[[list[int], Array, Batch], None],
        label: str,
        show: bool,
    ) -> None:
        with progress_bar(label, len(tokens), show) as advance:
            for numbers in groups:
                rows, batch = self._embed_tokens([tokens[i] for i in numbers])
                use(numbers, self.engine.encoder.run(rows, batch)[0], batch)
                advance(len(numbers))


def _load_again(origin: Callable[[], Model], tokenizer: Path | None) -> Model:
    """What a pickled model becomes."""
    model = origin()
    if tokenizer:
        model.take_tokenizer(tokenizer)
    return model


def _flat(name: str, values: Any) -> Array:
    array = as_array(name, values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise FusebertError(f"{name}: a one-dimensional array of integers is expected, not {array.dtype} {array.shape}")
    return array.astype(np.int64)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise unknown(name, value, choices)
    return value
