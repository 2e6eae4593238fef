"""Form: an encoder as a graph carries it, in words: the fields of a model's config, and the names of its weights.

Tables of formats/families say what these mean, as for checkpoints; so whoever can read a family's checkpoint can run
its module, and a saved graph says by name what each of its weights is."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from fusebert.formats import huggingface
from fusebert.ops.graph import Array
from fusebert.values.blocks import Attention, Disentangled, Encoder, FeedForward, Norm, Rotary
from fusebert.values.traverse import layers, parts

_WITHOUT_MEANING = (
    "architectures", "id2label", "label2id", "_name_or_path", "transformers_version", "dtype", "torch_dtype",
    "_attn_implementation_autoset", "task_specific_params", "auto_map",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """What is known of a form's encoder without its numbers."""

    names: tuple[str, ...]  # of the weights it is made of
    layers: int
    heads: int
    blocks: int
    order: tuple[int, ...]
    scales: frozenset[float]
    windows: frozenset[int | None]
    epsilons: frozenset[float]
    activations: frozenset[str]
    rotary: bool  # positions are in the scores alone, and count from the beginning of a row
    disentangled: bool


def words(config: Mapping[str, Any]) -> str:
    """A config's fields as a form keeps them."""
    kept = {name: value for name, value in config.items() if name not in _WITHOUT_MEANING}
    return json.dumps(kept, sort_keys=True)


def form(config: str, shape: Shape) -> str:
    """What goes with the weights of that shape."""
    return json.dumps({"config": json.loads(config), "layers": shape.layers, "weights": shape.names})


def encoder_of_form(given: str, weights: Sequence[Array]) -> Encoder:
    """The encoder that a form and its weights stand for, sharing their memory."""
    described = json.loads(given)
    tensors = dict(zip(described["weights"], weights, strict=True))
    return huggingface.read_encoder("the module", described["config"], tensors)[0]


@lru_cache(32)
def form_layers(given: str) -> int:
    """How many layers a form has."""
    return int(json.loads(given)["layers"])


@lru_cache(32)
def shape_of(config: str, sizes: tuple[tuple[str, tuple[int, ...]], ...]) -> Shape:
    """The shape of the encoder that these fields say, with tensors of these names and sizes; UnsupportedError if they
    say none."""
    zero = np.zeros((), np.float32)
    tensors = {name: np.broadcast_to(zero, size) for name, size in sizes}
    encoder, names = huggingface.read_encoder("the module", json.loads(config), tensors)
    bodies = [block.body for block in encoder.blocks]
    attentions = [body for body in bodies if isinstance(body, Attention)]
    return Shape(
        names=names,
        layers=len(layers(encoder)),
        heads=max(attention.heads for attention in attentions),
        blocks=len(encoder.blocks),
        order=encoder.order,
        scales=frozenset(attention.scale for attention in attentions),
        windows=frozenset(attention.window for attention in attentions),
        epsilons=frozenset(part.epsilon for _, part in parts(encoder) if isinstance(part, Norm)),
        activations=frozenset(body.activation for body in bodies if isinstance(body, FeedForward)),
        rotary=any(isinstance(attention.position, Rotary) for attention in attentions),
        disentangled=any(isinstance(attention.position, Disentangled) for attention in attentions),
    )
