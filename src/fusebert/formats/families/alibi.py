"""JinaBERT v2: BERT with a gated feed-forward whose scores fall with the distance, by a slope a head (ALiBi). That for
code norms queries and keys, and has a second norm behind attention, which reads the first one's rows with x again."""

from dataclasses import replace

import numpy as np

from fusebert.formats.config import Config
from fusebert.formats.families import bert
from fusebert.formats.families.family import Complete, Part, Sizes
from fusebert.formats.tensors import Weights
from fusebert.values.blocks import Attention, Relative

_LONGEST = 1 << 15  # positions; the table grows with them
_GATED = Part("mlp.gated_layers", bias=False)
_UP_GATED = Part("mlp.up_gated_layer", bias=False)


def slopes(heads: int) -> list[float]:
    """2 ** (-8n / heads); for a number of heads that is no power of two, those of the next lower one, then every second
    one of the next higher."""
    power = 1 << (heads.bit_length() - 1)
    own = [2 ** (-8 * n / power) for n in range(1, power + 1)]
    return own + [2 ** (-4 * n / power) for n in range(1, 2 * power, 2)][: heads - power]


def _attention(config: Config, _: Weights, sizes: Sizes) -> Complete:
    reach = config.size("max_position_embeddings", _LONGEST) - 1
    table = -np.outer(np.array(slopes(sizes.heads), np.float32), np.abs(np.arange(-reach, reach + 1, dtype=np.float32)))
    relative = Relative(table.astype(np.float32))

    def complete(_: int, attention: Attention) -> Attention:
        return replace(attention, position=relative)

    return complete


FAMILY = replace(
    bert.FAMILY,
    layer={
        **bert.LAYER, "feed_forward.gate": replace(_GATED, share=(0, 2)),
        "feed_forward.up": replace(_GATED, share=(1, 2)), "feed_forward.down": "mlp.wo",
        "feed_forward.after": "mlp.layernorm",
    },
    embeddings={name: table for name, table in bert.EMBEDDINGS.items() if name != "position"},
    fields={**bert.FIELDS, "activation": "feed_forward_type"},
    activations={"geglu": "gelu_erf", "reglu": "relu"},
    attention=_attention,
    expects={"position_embedding_type": ("alibi",)},
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12},
)  # fmt: skip
CODE = replace(
    FAMILY,
    layer={
        **FAMILY.layer, "attention.query_norm": "attention.self.layer_norm_q",
        "attention.key_norm": "attention.self.layer_norm_k", "attention.branch": "attention.output.LayerNorm",
        "attention.after": "layer_norm_1", "feed_forward.up": replace(_UP_GATED, share=(0, 2)),
        "feed_forward.gate": replace(_UP_GATED, share=(1, 2)), "feed_forward.down": "mlp.down_layer",
        "feed_forward.after": "layer_norm_2",
    },
    heads_normed="together",
    adds_twice=True,
    told_by="encoder.layer.0.layer_norm_1.weight",
)  # fmt: skip
