"""Family: how one model_type of Hugging Face names the parts of a model. A family is a table; nothing else knows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """Names in the weights, after `prefix`, and fields of config.json. `layer` maps the paths of POST_NORM_PARTS to
    names inside a layer, `fields` our word for a size to its field. `classifier` is two linear maps and the activation
    between them; `decoder` is transform, norm, decoder and its bias of a masked-language head."""

    prefix: str
    layers: str
    layer: Mapping[str, str]
    fields: Mapping[str, str]
    classifier: tuple[str, str, str]
    decoder: tuple[str, str, str, str]
    decoder_activation: str | None = None  # None: the encoder's
    counts_from_padding: bool = False  # positions, see Embeddings
    token_types: bool = True
    narrow_words: bool = False  # the word table may be narrower than the encoder
    epsilon: float | None = None  # fixed, whatever config.json says
