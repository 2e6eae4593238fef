"""Hugging Face checkpoint folder -> Network. Reads config.json and the weights; runs nothing that came with the model.

Families differ in names and in a few rules; each is a table in families/. Whatever changes the mathematics and is not
known here is refused by the name of its field or tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, UnsupportedError, unknown
from fusebert.formats.config import Config
from fusebert.formats.families import FAMILIES, Family, Part, Sizes
from fusebert.formats.families.family import Spelling, Step
from fusebert.formats.files import read_json
from fusebert.formats.tensors import Weights, open_pickle
from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import ACTIVATIONS
from fusebert.values.blocks import Attention, Block, Encoder, FeedForward, Linear, Norm, default_scale
from fusebert.values.network import HEADS, Dense, Embeddings, Head, Network, TokenHeads

_ORDINARY = {
    "is_decoder": (False, None),
    "add_cross_attention": (False, None),
    "is_encoder_decoder": (False, None),
    "quantization_config": (None,),
}
_BUFFERS = ("position_ids", "token_type_ids", "inv_freq")  # what older files hold beside weights


def is_checkpoint(path: Path) -> bool:
    """Whether a folder looks like a checkpoint."""
    return (path / "config.json").is_file()


def read(path: Path, head: str | None = None) -> Network:
    """The Network in a checkpoint folder; `head` overrides the one that config.json names ("none" drops it)."""
    values = read_json(path / "config.json")
    config, family, weights = _family(path / "config.json", values, partial(Weights, path))
    kind = head or config.head()
    if kind not in HEADS:
        raise unknown("head", kind, HEADS)
    reader = _Reader(config, family, weights)
    return Network(
        family=str(config.values["model_type"]),
        embeddings=reader.embeddings(),
        encoder=reader.encoder(),
        head=reader.head(kind),
        labels=config.labels() if kind in ("sequence", "token") else (),
        problem=config.problem() if kind == "sequence" else "single_label",
        token_heads=token_heads(path, reader.hidden),
    )


def token_heads(path: Path, hidden: int) -> TokenHeads | None:
    """Those of bge-m3, which are files of their own beside its weights; torch reads them."""
    files = path / "sparse_linear.pt", path / "colbert_linear.pt"
    if not all(file.is_file() for file in files) or find_spec("torch") is None:
        return None
    linears = []
    for file, outputs in zip(files, (1, None), strict=True):
        weights = Weights(file, "", open_pickle(file))
        weight = weights.get("weight", shape=(outputs, hidden))
        linears.append(Linear(weight, weights.get("bias", shape=weight.shape[:1])))
    return TokenHeads(*linears)


def read_encoder(name: str, values: Mapping[str, Any], tensors: Mapping[str, Array]) -> tuple[Encoder, tuple[str, ...]]:
    """The Encoder that a config's fields and tensors say, with the names of the tensors it is made of; errors call the
    model by this name."""
    config, family, weights = _family(Path(name), values, partial(Weights, Path(name), tensors=tensors))
    encoder = _Reader(config, family, weights).encoder()
    return encoder, weights.names_read()


def _family(path: Path, values: Mapping[str, Any], weights: Callable[[str], Weights]) -> tuple[Config, Family, Weights]:
    """The config with its family, the first of its model_type whose mathematics config.json and the names of the
    weights mean; and the weights, which are found by the family's prefix."""
    name = values.get("model_type")
    if not isinstance(name, str) or name not in FAMILIES:
        raise UnsupportedError(f"{path}: model_type {name!r} is not supported; these are: {', '.join(FAMILIES)}")
    refused: UnsupportedError | None = None
    for family in FAMILIES[name]:
        config = Config(path, values, family.defaults)
        try:
            config.expect({**_ORDINARY, **family.expects})
        except UnsupportedError as error:
            refused = refused or error
            continue
        found = weights(family.prefix)
        if family.told_by is None or found.find(family.told_by):
            return config, family, found
    assert refused is not None  # a model_type has at least one family
    raise refused


class _Reader:
    """One checkpoint: its weights in the places that its family's table says, sizes checked before anything is made."""

    def __init__(self, config: Config, family: Family, weights: Weights) -> None:
        self._config, self._family, self._weights = config, family, weights
        self._sizes = sizes = self._read_sizes()
        rows, keys = sizes.heads * sizes.head_size, sizes.key_heads * sizes.head_size
        self._shapes = {
            "query": (rows, sizes.hidden), "key": (keys, sizes.hidden), "value": (keys, sizes.hidden),
            "out": (sizes.hidden, rows), "up": (sizes.inner, sizes.hidden), "gate": (sizes.inner, sizes.hidden),
            "down": (sizes.hidden, sizes.inner),
        }  # fmt: skip
        self._layers = self._layer_names()

    @property
    def hidden(self) -> int:
        """The width of a row."""
        return self._sizes.hidden

    def _field(self, word: str) -> str:
        return self._config.field(self._family.fields[word])

    def _read_sizes(self) -> Sizes:
        config, named = self._config, self._family.fields
        hidden, heads = config.size(self._field("hidden")), config.size(self._field("heads"))
        own_size = "head_size" in named and config.has(self._field("head_size"))
        if not own_size and hidden % heads:
            raise FusebertError(f"{config.path}: {self._field('hidden')} {hidden} cannot be shared by {heads} heads")
        grouped = "key_heads" in named and config.has(self._field("key_heads"))
        key_heads = config.size(self._field("key_heads")) if grouped else heads
        if heads % key_heads:
            raise FusebertError(f"{config.path}: {heads} heads cannot share {self._field('key_heads')} {key_heads}")
        return Sizes(
            hidden=hidden,
            heads=heads,
            key_heads=key_heads,
            head_size=config.size(self._field("head_size")) if own_size else hidden // heads,
            inner=config.size(self._field("inner")),
            vocabulary=config.size(self._field("vocabulary")),
            activation=config.activation(self._field("activation"), self._family.activations),
            epsilon=config.number(self._field("epsilon"), 0, 1) if "epsilon" in named else 1e-12,
        )

    def _layer_names(self) -> tuple[str, ...]:
        """The name of every layer in the order they run; the last one's weights are there."""
        layers, count = self._family.layers, self._config.size(self._field("layers"))
        query = self._family.layer["attention.query"]
        if callable(layers):
            names = layers(self._config)
            last = names[-1]
        else:
            spellings = (layers,) if isinstance(layers, str) else layers
            found = [s for s in spellings if self._find(query, f"{s}.{count - 1}.", exact=True)]
            first = (found or spellings)[0]
            names, last = (), f"{first}.{count - 1}"
        if not self._find(query, f"{last}.", exact=True):
            name = _spelled(query)[0].name
            raise FusebertError(
                f"{self._config.path}: {self._field('layers')} is {count}, but the weights have no tensor "
                f"{last}.{name}.weight"
            )
        return names or tuple(f"{first}.{i}" for i in range(count))

    def _find(self, spelling: Spelling, place: str = "", exact: bool = False) -> Part | None:
        """The spelling that the weights have, placed; without any the first one, unless it must be there."""
        parts = [replace(part, name=place + part.name) for part in _spelled(spelling)]
        for part in parts:
            if self._weights.find(f"{part.name}.weight", f"{part.name}.gamma"):
                return part
        return None if exact else parts[0]

    def _present(self, spelling: Spelling | None, place: str = "", number: int = 0) -> Part | None:
        """The part, unless config.json or the layer's number says that there is none."""
        if spelling is None:
            return None
        part = self._find(spelling, place)
        assert part is not None
        absent = part.given is not None and not self._config.values.get(part.given)
        return None if absent or number < part.since else part

    def _biased(self, part: Part) -> bool:
        return self._config.flag(part.bias) if isinstance(part.bias, str) else part.bias

    def _linear(self, part: Part, outputs: int, inputs: int) -> Linear:
        return self._weights.linear(part.name, outputs, inputs, part.share, self._biased(part))

    def _norm(self, part: Part, width: int) -> Norm:
        family = self._family
        norm = self._weights.norm(part.name, width, self._sizes.epsilon, family.norm, self._biased(part))
        if family.gain_offset and norm.gain is not None:
            return replace(norm, gain=norm.gain.astype("float32") + family.gain_offset)
        return norm

    def embeddings(self) -> Embeddings:
        """The tables, with the norms and the projection around them."""
        sizes, named = self._sizes, self._family.embeddings
        projects = "project" in named
        word = self._table("word", sizes.vocabulary, None if projects else sizes.hidden)
        assert word is not None
        width = word.shape[1]
        project = self._present(named["project"]) if projects else None
        if project is not None and width == sizes.hidden and not self._weights.find(f"{project.name}.weight"):
            project = None
        norm, projected_norm = self._present(named.get("norm")), self._present(named.get("projected_norm"))
        if project is None:  # then both norm the same rows
            norm, projected_norm = norm or projected_norm, None
        position = self._table("position", None, width)
        made = Embeddings(
            word=word,
            position=position,
            kind=self._table("token_type", None, width),
            norm=None if norm is None else self._norm(norm, width),
            project=None if project is None else self._linear(project, sizes.hidden, width),
            projected_norm=None if projected_norm is None else self._norm(projected_norm, sizes.hidden),
            scale=self._family.word_scale(sizes),
            padding_id=self._padding_id(),
            max_positions=None if position is not None else self._max_positions(),
        )
        if made.longest < 1:
            raise FusebertError(f"{self._weights.path}: the position table has too few rows for any token")
        return made

    def _max_positions(self) -> int:
        return self._family.max_positions(self._config, self._config.size(self._field("positions")))

    def _table(self, name: str, rows: int | None, width: int | None) -> Any:
        part = self._present(self._family.embeddings.get(name))
        return None if part is None else self._weights.get(f"{part.name}.weight", shape=(rows, width))

    def _padding_id(self) -> int | None:
        named = self._family.counts_from
        if not isinstance(named, str):
            return named
        padding = self._config.values.get(named, 1)
        if not isinstance(padding, int) or isinstance(padding, bool) or not 0 <= padding < self._sizes.vocabulary:
            raise FusebertError(f"{self._config.path}: {named} is {padding!r}, but must be a token id")
        return padding

    def encoder(self) -> Encoder:
        """Every layer's two blocks; layers of the same name are the same blocks."""
        complete = self._family.attention(self._config, self._weights, self._sizes)
        names = list(dict.fromkeys(self._layers))
        blocks: list[Block] = []
        for number, name in enumerate(names):
            blocks += self._layer(number, f"{name}.", complete)
        self._refuse_unread(frozenset(names))
        numbers = {name: number for number, name in enumerate(names)}
        order = [2 * numbers[name] + half for name in self._layers for half in (0, 1)]
        final = self._present(self._family.final)
        last = None if final is None else self._norm(final, self._sizes.hidden)
        return Encoder(self._sizes.hidden, tuple(blocks), tuple(order), last)

    def _layer(self, number: int, place: str, complete: Callable[[int, Attention], Attention]) -> tuple[Block, Block]:
        sizes, family = self._sizes, self._family
        normed = {"query_norm": sizes.heads, "key_norm": sizes.key_heads} if family.heads_normed == "together" else {}

        def parts(body: str, kind: type[Attention | FeedForward | Block]) -> dict[str, Any]:
            """What the table names of the fields of a body or block."""
            made: dict[str, Any] = {}
            for field in fields(kind):
                spelling = family.layer.get(f"{body}.{field.name}")
                part = self._present(spelling, place, number)
                if part is not None and field.name in self._shapes:
                    made[field.name] = self._linear(part, *self._shapes[field.name])
                elif part is not None:
                    width = sizes.hidden if kind is Block else normed.get(field.name, 1) * sizes.head_size
                    made[field.name] = self._norm(part, width)
            return made

        given = parts("attention", Attention)
        attention = Attention(
            **given, heads=sizes.heads, key_heads=sizes.key_heads, scale=default_scale(given["query"], sizes.heads)
        )
        feed_forward = FeedForward(**{"gate": None, **parts("feed_forward", FeedForward)}, activation=sizes.activation)
        absent: dict[str, Any] = {"before": None, "branch": None, "after": None}
        attending = {**absent, **parts("attention", Block), "adds_twice": family.adds_twice}
        return (
            Block(body=complete(number, attention), **attending),
            Block(body=feed_forward, **{**absent, **parts("feed_forward", Block)}),
        )

    def _refuse_unread(self, layers: frozenset[str]) -> None:
        name = self._weights.unread(layers, _BUFFERS)
        if name is not None:
            raise UnsupportedError(
                f"{self._weights.path}: a {self._config.values['model_type']} model with a tensor {name} is not "
                "supported: this version does not know what it computes"
            )

    def head(self, kind: str) -> Head:
        """The head's steps; the last has as many outputs as the kind asks for, the others as wide rows as they get."""
        steps = self._family.heads.get(kind)
        if steps is None:
            raise UnsupportedError(
                f"{self._config.path}: a head of kind {kind!r} is not supported for model_type "
                f"{self._config.values['model_type']!r}; these are: {', '.join(self._family.heads)}"
            )
        if kind == "none":  # a pooler is read where there is one
            steps = tuple(step for step in steps if self._find(step.linear, exact=True))
            return Head(kind, tuple(self._step(step, self._sizes.hidden, self._sizes.hidden) for step in steps))
        if kind == "masked":
            return Head(kind, self._masked(steps))
        pooling = self._family.pools(self._config) if kind == "sequence" else "first"
        outputs = 2 if kind == "question" else len(self._config.labels())
        hidden = self._sizes.hidden
        made = [self._step(step, hidden, hidden) for step in steps[:-1]]
        return Head(kind, (*made, self._step(steps[-1], outputs, hidden)), pooling)

    def _step(self, step: Step, outputs: int, inputs: int) -> Dense:
        part, norm = self._find(step.linear), self._present(step.norm)
        assert part is not None
        own = step.activation
        activation = own if own in ACTIVATIONS else self._config.activation(own, self._family.activations)
        linear = self._linear(part, outputs, inputs)
        return Dense(linear, activation, None if norm is None else self._norm(norm, outputs))

    def _masked(self, steps: tuple[Step, ...]) -> tuple[Dense, ...]:
        """Transform, then the product with the word table (tied unless a decoder is stored), plus a bias per word."""
        table = f"{_spelled(self._family.embeddings['word'])[0].name}.weight"
        width = self._weights.get(table, shape=(self._sizes.vocabulary, None)).shape[1]
        first = [self._step(step, width, self._sizes.hidden) for step in steps[:-1]]
        part = self._find(steps[-1].linear)
        assert part is not None
        stored = f"{part.name}.weight"
        names = (stored, table) if self._config.values.get("tie_word_embeddings", True) else (stored,)
        weight = self._weights.get(*names, shape=(self._sizes.vocabulary, width))
        decoders = [one.name for one in _spelled(steps[-1].linear)]
        places = [place for name in decoders for place in (name.rpartition(".")[0], name)]  # many keep it one level up
        biases = [f"{place}.bias" for place in places if place]
        bias = self._weights.get(*biases, shape=(self._sizes.vocabulary,)) if self._biased(part) else None
        return (*first, Dense(Linear(weight, bias)))


def _spelled(spelling: Spelling) -> tuple[Part, ...]:
    spellings = spelling if isinstance(spelling, tuple) else (spelling,)
    return tuple(Part(one) if isinstance(one, str) else one for one in spellings)
