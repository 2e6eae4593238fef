"""Family: how one model_type of Hugging Face names the parts of a model. A family is a table; nothing else knows it.

Wherever a name stands, a tuple of names says that files spell it in several ways: the first that a file has counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fusebert.formats.config import Config
from fusebert.formats.tensors import Weights
from fusebert.values.blocks import Attention


@dataclass(frozen=True)
class Part:
    """A linear map, norm or table by its name in the weights.

    `share` (1, 3) is the second of three equal shares of the rows. `bias` may be a field of config.json that says
    whether there is one; `given` is a field without which the part is absent; layers before `since` lack it too."""

    name: str
    share: tuple[int, int] = (0, 1)
    bias: bool | str = True
    given: str | None = None
    since: int = 0


Spelling = str | Part | tuple[str | Part, ...]


@dataclass(frozen=True)
class Step:
    """One step of a head. `activation` is one of ours, or the field of config.json that names one."""

    linear: Spelling
    activation: str = "identity"
    norm: Spelling | None = None


@dataclass(frozen=True)
class Sizes:
    """What config.json says of an encoder, checked."""

    hidden: int
    heads: int
    key_heads: int
    head_size: int
    inner: int
    vocabulary: int
    activation: str
    epsilon: float


Complete = Callable[[int, Attention], Attention]


@dataclass(frozen=True)
class Family:
    """Names in the weights, after `prefix`, and fields of config.json.

    `layers` is what a layer's name begins with, before its number, or gives the names of all layers in the order they
    run. `layer` maps parts such as "attention.query" and "feed_forward.after" to names inside a layer; what is not
    named is absent. `embeddings` and `heads` name the parts before and after the encoder, `fields` the field for our
    word of a size, `defaults` what a field is that is not there, `expects` the fields of which other values mean other
    mathematics. `attention` prepares what completes every layer's attention: positions, windows, scales."""

    prefix: str
    layers: str | tuple[str, ...] | Callable[[Config], tuple[str, ...]]
    layer: Mapping[str, Spelling]
    embeddings: Mapping[str, Spelling]
    fields: Mapping[str, str | tuple[str, ...]]
    heads: Mapping[str, tuple[Step, ...]]
    final: Spelling | None = None
    activations: Mapping[str, str] = field(default_factory=dict)  # config.json's words that only this family has
    norm: str = "layer"  # the kind of every norm
    gain_offset: float = 0.0  # added to every gain
    heads_normed: str = "each"  # by norms of queries and keys: each by itself, or "together"
    adds_twice: bool = False  # attention blocks do: see Block
    told_by: str | None = None  # a weight without which files of this model_type are of another family
    counts_from: int | str | None = None  # the padding id that positions count from, or its field; see Embeddings
    word_scale: Callable[[Sizes], float] = lambda _: 1.0
    max_positions: Callable[[Config, int], int] = lambda _, longest: longest  # where no table of positions ends
    pools: Callable[[Config], str] = lambda _: "first"  # the rows that a sequence classifier reads; see Head
    attention: Callable[[Config, Weights, Sizes], Complete] = lambda *_: lambda _, attention: attention
    expects: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
