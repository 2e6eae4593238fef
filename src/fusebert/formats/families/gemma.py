"""Gemma 3 without causality (EmbeddingGemma): EuroBERT with norms of queries, keys and branches, and with windows."""

from dataclasses import replace

from fusebert.formats.config import Config
from fusebert.formats.families import eurobert
from fusebert.formats.families.family import Complete, Family, Sizes
from fusebert.formats.families.modernbert import FULL, SLIDING
from fusebert.formats.families.rotary import frequencies, rotary
from fusebert.formats.tensors import Weights
from fusebert.values.blocks import Attention


def _attention(config: Config, _: Weights, sizes: Sizes) -> Complete:
    types = _layer_types(config)
    if config.has("rope_parameters"):
        turns = {kind: rotary(config, sizes.head_size, kind) for kind in set(types)}
    else:
        local = frequencies(config, sizes.head_size, config.number("rope_local_base_freq", 1, 1e12))
        turns = {FULL: rotary(config, sizes.head_size), SLIDING: local}
    window = config.size("sliding_window") // 2
    scale = config.number("query_pre_attn_scalar", 1e-6, 1e6) ** -0.5

    def complete(number: int, attention: Attention) -> Attention:
        kind = types[number]
        return replace(attention, position=turns[kind], window=window if kind == SLIDING else None, scale=scale)

    return complete


def _layer_types(config: Config) -> list[str]:
    count = config.size("num_hidden_layers")
    if config.has("layer_types"):
        return config.words("layer_types", count, (FULL, SLIDING))
    every = config.size("sliding_window_pattern")
    return [SLIDING if (i + 1) % every else FULL for i in range(count)]


FAMILY = Family(
    prefix="model.",
    layers="layers",
    layer={
        **eurobert.LAYER, "attention.branch": "post_attention_layernorm", "attention.query_norm": "self_attn.q_norm",
        "attention.key_norm": "self_attn.k_norm", "feed_forward.before": "pre_feedforward_layernorm",
        "feed_forward.branch": "post_feedforward_layernorm",
    },
    embeddings={"word": "embed_tokens"},
    final="norm",
    fields={**eurobert.FIELDS, "activation": "hidden_activation"},
    heads={"none": ()},
    norm="rms",
    gain_offset=1.0,
    word_scale=lambda sizes: float(sizes.hidden**0.5),
    attention=_attention,
    expects={
        "use_bidirectional_attention": (True,), "attn_logit_softcapping": (None,), "final_logit_softcapping": (None,),
    },
    defaults={
        "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh", "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
    },
)  # fmt: skip
