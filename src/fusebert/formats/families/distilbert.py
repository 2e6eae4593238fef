"""DistilBERT: BERT without token types, under names of its own."""

from fusebert.formats.families import bert
from fusebert.formats.families.family import Family, Step

LAYER = {
    "attention.query": "attention.q_lin", "attention.key": "attention.k_lin", "attention.value": "attention.v_lin",
    "attention.out": "attention.out_lin", "attention.after": "sa_layer_norm",
    "feed_forward.up": "ffn.lin1", "feed_forward.down": "ffn.lin2", "feed_forward.after": "output_layer_norm",
}  # fmt: skip
FAMILY = Family(
    prefix="distilbert.",
    layers="transformer.layer",
    layer=LAYER,
    embeddings={name: table for name, table in bert.EMBEDDINGS.items() if name != "token_type"},
    fields={"hidden": "dim", "layers": "n_layers", "heads": "n_heads", "inner": "hidden_dim",
            "activation": "activation", "vocabulary": "vocab_size"},
    heads={
        "none": (),
        "sequence": (Step("pre_classifier", "relu"), Step("classifier")),
        "masked": (Step("vocab_transform", "activation", "vocab_layer_norm"), Step("vocab_projector")),
        **bert.ROW_HEADS,
    },
    defaults={"activation": "gelu"},
)  # fmt: skip
