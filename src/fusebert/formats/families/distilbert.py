"""DistilBERT: BERT without token types, under names of its own."""

from fusebert.formats.families.family import Family

LAYER = {
    "attention.query": "attention.q_lin", "attention.key": "attention.k_lin", "attention.value": "attention.v_lin",
    "attention.out": "attention.out_lin", "attention.after": "sa_layer_norm",
    "feed_forward.up": "ffn.lin1", "feed_forward.down": "ffn.lin2", "feed_forward.after": "output_layer_norm",
}  # fmt: skip
FAMILY = Family(
    prefix="distilbert.",
    layers="transformer.layer",
    layer=LAYER,
    fields={"hidden": "dim", "layers": "n_layers", "heads": "n_heads", "inner": "hidden_dim",
            "activation": "activation"},
    classifier=("pre_classifier", "classifier", "relu"),
    decoder=("vocab_transform", "vocab_layer_norm", "vocab_projector", "vocab_projector.bias"),
    token_types=False,
    epsilon=1e-12,
)  # fmt: skip
