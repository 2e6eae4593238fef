"""BERT with rotary positions: NomicBERT, GTE (`new` in its first files) and Jina's third embeddings. Files on the Hub
and those that transformers writes name their parts differently; both stand here."""

from dataclasses import replace

from fusebert.formats.config import Config
from fusebert.formats.families import bert
from fusebert.formats.families.family import Complete, Family, Part, Sizes, Spelling, Step
from fusebert.formats.families.rotary import frequencies, rotary
from fusebert.formats.tensors import Weights
from fusebert.values.blocks import Attention


def _attention(config: Config, _: Weights, sizes: Sizes) -> Complete:
    if config.has("rotary_emb_base"):
        turn = frequencies(config, sizes.head_size, config.number("rotary_emb_base", 1, 1e12))
    else:
        turn = rotary(config, sizes.head_size)

    def complete(_: int, attention: Attention) -> Attention:
        return replace(attention, position=turn)

    return complete


def _trained_positions(config: Config, longest: int) -> int:
    """Beyond these, frequencies would depend on the longest text of a batch."""
    return min(longest, config.size("max_trained_positions")) if config.has("rotary_scaling_factor") else longest


def _projections(fused: str, out: str, bias: bool | str) -> dict[str, Spelling]:
    """Query, key, value and out, apart or with the first three in one tensor."""
    thirds = {"query": (0, 3), "key": (1, 3), "value": (2, 3)}
    apart: dict[str, Spelling] = {
        f"attention.{name}": (Part(f"self_attn.{name[0]}_proj", bias=bias), Part(fused, share, bias))
        for name, share in thirds.items()
    }
    return {**apart, "attention.out": (Part("self_attn.o_proj", bias=bias), Part(out, bias=bias))}


_FLASH = {  # the places of Nomic's and Jina's files
    "attention.after": ("post_attention_layernorm", "norm1"), "feed_forward.after": ("post_mlp_layernorm", "norm2"),
}  # fmt: skip
_FIELDS: dict[str, str | tuple[str, ...]] = {
    **bert.FIELDS, "hidden": ("hidden_size", "n_embd"), "layers": ("num_hidden_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_head"), "inner": ("intermediate_size", "n_inner"),
    "activation": ("hidden_act", "activation_function"), "epsilon": ("layer_norm_eps", "layer_norm_epsilon"),
    "positions": ("max_position_embeddings", "n_positions"),
}  # fmt: skip
_EMBEDDINGS: dict[str, Spelling] = {
    "word": "embeddings.word_embeddings",
    "token_type": Part("embeddings.token_type_embeddings", given="type_vocab_size"),
    "norm": ("embeddings.LayerNorm", "emb_ln"),
}
_MASKED = Step("lm_head.dense", "gelu_erf", ("lm_head.layer_norm", "lm_head.norm")), Step("lm_head.decoder")

NOMIC = Family(
    prefix="nomic_bert.",
    layers=("layers", "encoder.layers"),
    layer={
        **_projections("attn.Wqkv", "attn.out_proj", "qkv_proj_bias"), **_FLASH,
        "feed_forward.gate": (Part("mlp.gate_proj", bias=False), Part("mlp.fc12", bias="mlp_fc1_bias")),
        "feed_forward.up": (Part("mlp.up_proj", bias=False), Part("mlp.fc11", bias="mlp_fc1_bias")),
        "feed_forward.down": (Part("mlp.down_proj", bias=False), Part("mlp.fc2", bias="mlp_fc2_bias")),
    },
    embeddings=_EMBEDDINGS,
    fields=_FIELDS,
    heads={
        "none": (bert.POOLER,),
        "sequence": (bert.POOLER, Step("classifier")),
        "token": (Step("classifier"),),
        "masked": (
            Step(f"{bert.TRANSFORM}.dense", "hidden_act", f"{bert.TRANSFORM}.layer_norm"),
            Step("cls.predictions.decoder"),
        ),
    },
    activations={"swiglu": "silu", "geglu": "gelu_erf"},
    attention=_attention,
    max_positions=_trained_positions,
    expects={
        "prenorm": (False, None), "rotary_emb_fraction": (1, None), "rotary_emb_interleaved": (False, None),
        "rotary_emb_scale_base": (None,), "num_experts": (None, 0),
        "moe_every_n_layers": (None, 0), "use_rms_norm": (False, None),
    },
    defaults={"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "silu"},
)  # fmt: skip

GTE = Family(
    prefix="gte.",
    layers=("layers", "encoder.layer"),
    layer={
        **_projections("attention.qkv_proj", "attention.o_proj", True),
        "attention.after": ("post_attention_layernorm", "attn_ln"),
        "feed_forward.gate": (Part("mlp.gate_proj", bias=False), Part("mlp.up_gate_proj", (1, 2), bias=False)),
        "feed_forward.up": (Part("mlp.up_proj", bias=False), Part("mlp.up_gate_proj", (0, 2), bias=False)),
        "feed_forward.down": "mlp.down_proj",
        "feed_forward.after": ("post_mlp_layernorm", "mlp_ln"),
    },
    embeddings=_EMBEDDINGS,
    fields=bert.FIELDS,
    heads={
        "none": (bert.POOLER,),
        "sequence": (bert.POOLER, Step("classifier")),
        "token": (Step("classifier"),),
        "masked": _MASKED,
    },
    attention=_attention,
    expects={
        "position_embedding_type": ("rope", None), "layer_norm_type": ("layer_norm", None),
        "logn_attention_scale": (False, None),
    },
    defaults={"layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 1},
)  # fmt: skip

NEW = replace(GTE, prefix="new.")

JINA = Family(
    prefix="roberta.",
    layers=("layers", "encoder.layers"),
    layer={
        **_projections("mixer.Wqkv", "mixer.out_proj", True), **_FLASH,
        "feed_forward.up": "mlp.fc1", "feed_forward.down": "mlp.fc2",
    },
    embeddings=_EMBEDDINGS,
    fields=_FIELDS,
    heads={
        "none": (bert.POOLER,),
        "sequence": (Step("classifier.dense", "tanh"), Step("classifier.out_proj")),
        "masked": _MASKED,
        **bert.ROW_HEADS,
    },
    attention=_attention,
    defaults={"layer_norm_eps": 1e-5, "hidden_act": "gelu", "type_vocab_size": 1},
)  # fmt: skip
