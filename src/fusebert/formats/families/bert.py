"""BERT, and MiniLM, which is one."""

from fusebert.formats.families.family import Family

LAYER = {
    "attention.query": "attention.self.query", "attention.key": "attention.self.key",
    "attention.value": "attention.self.value", "attention.out": "attention.output.dense",
    "attention.after": "attention.output.LayerNorm", "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense", "feed_forward.after": "output.LayerNorm",
}  # fmt: skip
FIELDS = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "inner": "intermediate_size", "activation": "hidden_act",
}  # fmt: skip
FAMILY = Family(
    prefix="bert.",
    layers="encoder.layer",
    layer=LAYER,
    fields=FIELDS,
    classifier=("pooler.dense", "classifier", "tanh"),
    decoder=(
        "cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
)  # fmt: skip
