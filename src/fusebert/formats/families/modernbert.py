"""ModernBERT: norms before products, rotary positions, gated feed-forward, and windows in most layers."""

from dataclasses import replace

from fusebert.formats.config import Config
from fusebert.formats.families import bert
from fusebert.formats.families.family import Complete, Family, Part, Sizes, Step
from fusebert.formats.families.rotary import frequencies, rotary
from fusebert.formats.tensors import Weights
from fusebert.values.blocks import Attention

FULL, SLIDING = "full_attention", "sliding_attention"
_HEAD = Step(Part("head.dense", bias="classifier_bias"), "classifier_activation", Part("head.norm", bias="norm_bias"))
_WQKV = Part("attn.Wqkv", bias="attention_bias")
_WI = Part("mlp.Wi", bias="mlp_bias")


def _attention(config: Config, _: Weights, sizes: Sizes) -> Complete:
    count = config.size("num_hidden_layers")
    if config.has("layer_types"):
        types = config.words("layer_types", count, (FULL, SLIDING))
    else:
        every = config.size("global_attn_every_n_layers")
        types = [SLIDING if i % every else FULL for i in range(count)]
    if config.has("rope_parameters"):
        turns = {kind: rotary(config, sizes.head_size, kind) for kind in set(types)}
    else:
        config.expect({"rope_scaling": (None,)})
        local = "local_rope_theta" if config.has("local_rope_theta") else "global_rope_theta"
        fields = {FULL: "global_rope_theta", SLIDING: local}
        turns = {
            kind: frequencies(config, sizes.head_size, config.number(fields[kind], 1, 1e12)) for kind in set(types)
        }
    window = config.size("local_attention") // 2

    def complete(number: int, attention: Attention) -> Attention:
        kind = types[number]
        return replace(attention, position=turns[kind], window=window if kind == SLIDING else None)

    return complete


FAMILY = Family(
    prefix="model.",
    layers="layers",
    layer={
        "attention.before": Part("attn_norm", bias="norm_bias", since=1),
        "attention.query": replace(_WQKV, share=(0, 3)), "attention.key": replace(_WQKV, share=(1, 3)),
        "attention.value": replace(_WQKV, share=(2, 3)), "attention.out": Part("attn.Wo", bias="attention_bias"),
        "feed_forward.before": Part("mlp_norm", bias="norm_bias"), "feed_forward.gate": replace(_WI, share=(0, 2)),
        "feed_forward.up": replace(_WI, share=(1, 2)), "feed_forward.down": Part("mlp.Wo", bias="mlp_bias"),
    },
    final=Part("final_norm", bias="norm_bias"),
    embeddings={"word": "embeddings.tok_embeddings", "norm": Part("embeddings.norm", bias="norm_bias")},
    fields={**bert.FIELDS, "activation": "hidden_activation", "epsilon": "norm_eps"},
    heads={
        "none": (),
        "sequence": (_HEAD, Step("classifier")),
        "token": (_HEAD, Step("classifier")),
        "question": (_HEAD, Step("classifier")),
        "masked": (_HEAD, Step(Part("decoder", bias="decoder_bias"))),
    },
    pools=lambda config: config.choice("classifier_pooling", {"cls": "first", "mean": "mean"}),
    attention=_attention,
    defaults={
        "hidden_activation": "gelu", "norm_eps": 1e-5, "local_attention": 128, "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0, "classifier_pooling": "cls", "classifier_activation": "gelu",
        "decoder_bias": True,
    },
)  # fmt: skip
