"""DeBERTa v1, v2 and v3: BERT whose scores have two more terms, of a query or a key with the relative embedding of
their distance. The products of these embeddings with the weights are constants; they are computed here."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.formats.config import Config
from fusebert.formats.families import bert
from fusebert.formats.families.family import Complete, Part, Sizes, Step
from fusebert.formats.tensors import Weights
from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import Numpy
from fusebert.values.blocks import Attention, Disentangled, Linear

_TERMS = ("c2p", "p2c")
_OWN = {"c2p": Part("pos_key_proj"), "p2c": Part("pos_query_proj")}  # what relative embeddings are multiplied with
_OWN_V1 = {"c2p": Part("pos_proj", bias=False), "p2c": Part("pos_q_proj")}


def _attention(config: Config, weights: Weights, sizes: Sizes, products: Mapping[str, Part] = _OWN) -> Complete:
    if not config.flag("relative_attention"):
        return lambda _, attention: attention
    terms = _words(config, "pos_att_type")
    if set(terms) - set(_TERMS):
        raise UnsupportedError(f"{config.path}: pos_att_type {terms!r} is not supported; these are: c2p, p2c")
    buckets = 0 if _is_absent(config, "position_buckets") else config.size("position_buckets", 1 << 16)
    reach_field = (
        "max_position_embeddings" if _is_absent(config, "max_relative_positions") else "max_relative_positions"
    )
    reach = config.size(reach_field, 1 << 16)
    if buckets and reach <= buckets // 2 + 1:
        raise UnsupportedError(f"{config.path}: position_buckets {buckets} reach beyond {reach_field} {reach}")
    rows = _relative_rows(config, weights, sizes, buckets or reach)
    shared = config.flag("share_att_key")

    def table(term: str, attention: Attention, number: int) -> Array | None:
        """The rows that a query or a key is multiplied with, `[rows, heads * head size]`."""
        if term not in terms:
            return None
        own = attention.key if term == "c2p" else attention.query
        if not shared:
            part = products[term]
            name = f"encoder.layer.{number}.attention.self.{part.name}"
            outputs, inputs = own.weight.shape
            own = weights.linear(name, outputs, inputs, bias=bool(part.bias))
        return _product(rows, own)

    def complete(number: int, attention: Attention) -> Attention:
        content, key = (table(term, attention, number) for term in _TERMS)
        position = Disentangled(content, key, buckets, reach)
        return replace(attention, position=position, scale=float((sizes.head_size * (1 + len(terms))) ** -0.5))

    return complete


def _attention_v1(config: Config, weights: Weights, sizes: Sizes) -> Complete:
    """One product of a layer has query, key and value of one head after the other; keys have no bias."""
    place = _attention(config, weights, sizes, _OWN_V1)
    rows = sizes.heads * sizes.head_size

    def complete(number: int, attention: Attention) -> Attention:
        name = f"encoder.layer.{number}.attention.self"
        together = weights.get(f"{name}.in_proj.weight", shape=(3 * rows, sizes.hidden))
        by_head = together.reshape(sizes.heads, 3, sizes.head_size, sizes.hidden)
        query, key, value = (np.ascontiguousarray(by_head[:, i]).reshape(rows, sizes.hidden) for i in range(3))
        biases = (weights.get(f"{name}.{letter}_bias", shape=(rows,)) for letter in "qv")
        return place(
            number,
            replace(attention, query=Linear(query, next(biases)), key=Linear(key), value=Linear(value, next(biases))),
        )

    return complete


def _words(config: Config, name: str) -> list[str]:
    """A list of words, or one string with bars between them."""
    value = config.values.get(name) or []
    return [str(word).strip() for word in (value.split("|") if isinstance(value, str) else value)]


def _is_absent(config: Config, name: str) -> bool:
    """Whether a number is not there, or -1, which means the same."""
    return config.values.get(name) in (None, -1, 0)


def _relative_rows(config: Config, weights: Weights, sizes: Sizes, span: int) -> Array:
    """The relative embeddings for distances from -span to span - 1."""
    rows = weights.get("encoder.rel_embeddings.weight", shape=(None, sizes.hidden))[: 2 * span].astype(np.float32)
    if len(rows) < 2 * span:
        raise UnsupportedError(f"{weights.path}: encoder.rel_embeddings has {len(rows)} rows, but needs {2 * span}")
    words = _words(config, "norm_rel_ebd")
    if set(words) - {"layer_norm", "none"}:
        raise UnsupportedError(f"{config.path}: norm_rel_ebd {words!r} is not supported; these are: layer_norm, none")
    if "layer_norm" not in words:
        return rows
    norm = weights.norm("encoder.LayerNorm", sizes.hidden, sizes.epsilon)
    return Numpy().layer_norm(rows, norm.gain, norm.bias, norm.epsilon).astype(np.float32)


def _product(rows: Array, linear: Linear) -> Array:
    bias = None if linear.bias is None else linear.bias.astype(np.float32)
    return Numpy().linear(rows, linear.floats(), bias)


_PROJ = {name: f"attention.self.{name}_proj" for name in ("query", "key", "value")}
_TRANSFORMS = ("cls.predictions.transform", "lm_predictions.lm_head")
FAMILY = replace(
    bert.FAMILY,
    prefix="deberta.",
    layer={**bert.LAYER, **{f"attention.{name}": stored for name, stored in _PROJ.items()}},
    embeddings={
        "word": "embeddings.word_embeddings",
        "position": Part("embeddings.position_embeddings", given="position_biased_input"),
        "token_type": Part("embeddings.token_type_embeddings", given="type_vocab_size"),
        "project": Part("embeddings.embed_proj", bias=False),
        "projected_norm": "embeddings.LayerNorm",
    },
    heads={
        "none": (),
        "sequence": (Step("pooler.dense", "pooler_hidden_act"), Step("classifier")),
        "masked": (
            Step(
                tuple(f"{place}.dense" for place in _TRANSFORMS), "hidden_act",
                tuple(f"{place}.LayerNorm" for place in _TRANSFORMS),
            ),
            Step(("cls.predictions.decoder", "lm_predictions.lm_head.decoder")),
        ),
        **bert.ROW_HEADS,
    },
    attention=_attention,
    expects={"conv_kernel_size": (0, None), "talking_head": (False, None)},
    defaults={
        "hidden_act": "gelu", "layer_norm_eps": 1e-7, "pooler_hidden_act": "gelu", "position_biased_input": True,
    },
)  # fmt: skip
_TOGETHER = Part("attention.self.in_proj", bias=False)
V1 = replace(
    FAMILY,
    layer={
        **bert.LAYER,
        **{f"attention.{name}": replace(_TOGETHER, share=(i, 3)) for i, name in enumerate(("query", "key", "value"))},
    },
    attention=_attention_v1,
    expects={
        **FAMILY.expects, "position_buckets": (-1, None), "norm_rel_ebd": ("none", None),
        "share_att_key": (False, None),
    },
)  # fmt: skip
