"""EuroBERT: RMSNorms before products, rotary positions, groups of heads that share keys, gated feed-forward."""

from dataclasses import replace

from fusebert.formats.config import Config
from fusebert.formats.families import bert
from fusebert.formats.families.family import Complete, Family, Part, Sizes, Spelling, Step
from fusebert.formats.families.rotary import rotary
from fusebert.formats.tensors import Weights
from fusebert.values.blocks import Attention

LAYER: dict[str, Spelling] = {
    "attention.before": "input_layernorm", "feed_forward.before": "post_attention_layernorm",
    **{f"attention.{name}": Part(f"self_attn.{name[0]}_proj", bias="attention_bias")
       for name in ("query", "key", "value", "out")},
    **{f"feed_forward.{name}": Part(f"mlp.{name}_proj", bias="mlp_bias") for name in ("gate", "up", "down")},
}  # fmt: skip
FIELDS = {
    **bert.FIELDS, "key_heads": "num_key_value_heads", "head_size": "head_dim", "epsilon": "rms_norm_eps",
}  # fmt: skip


def _attention(config: Config, _: Weights, sizes: Sizes) -> Complete:
    turn = rotary(config, sizes.head_size)

    def complete(_: int, attention: Attention) -> Attention:
        return replace(attention, position=turn)

    return complete


FAMILY = Family(
    prefix="model.",
    layers="layers",
    layer=LAYER,
    embeddings={"word": "embed_tokens"},
    final="norm",
    fields=FIELDS,
    heads={
        "none": (),
        "sequence": (Step("dense", "gelu_erf"), Step("classifier")),
        "token": (Step("classifier"),),
        "masked": (Step(Part("lm_head", bias="mlp_bias")),),
    },
    norm="rms",
    pools=lambda config: config.choice("classifier_pooling", {"bos": "first", "mean": "mean", "late": "each"}),
    attention=_attention,
    expects={"use_sliding_window": (False, None), "layer_types": (None,)},
    defaults={
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "classifier_pooling": "late", "tie_word_embeddings": False,
    },
)  # fmt: skip
