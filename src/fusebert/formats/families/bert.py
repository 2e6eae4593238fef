"""BERT, and MiniLM, which is one."""

from fusebert.formats.families.family import Family, Step

LAYER = {
    "attention.query": "attention.self.query", "attention.key": "attention.self.key",
    "attention.value": "attention.self.value", "attention.out": "attention.output.dense",
    "attention.after": "attention.output.LayerNorm", "feed_forward.up": "intermediate.dense",
    "feed_forward.down": "output.dense", "feed_forward.after": "output.LayerNorm",
}  # fmt: skip
EMBEDDINGS = {
    "word": "embeddings.word_embeddings", "position": "embeddings.position_embeddings",
    "token_type": "embeddings.token_type_embeddings", "norm": "embeddings.LayerNorm",
}  # fmt: skip
FIELDS = {
    "hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads",
    "inner": "intermediate_size", "activation": "hidden_act", "vocabulary": "vocab_size", "epsilon": "layer_norm_eps",
    "positions": "max_position_embeddings",
}  # fmt: skip
POOLER = Step("pooler.dense", "tanh")
ROW_HEADS = {"token": (Step("classifier"),), "question": (Step("qa_outputs"),)}
TRANSFORM = "cls.predictions.transform"
FAMILY = Family(
    prefix="bert.",
    layers="encoder.layer",
    layer=LAYER,
    embeddings=EMBEDDINGS,
    fields=FIELDS,
    heads={
        "none": (POOLER,),
        "sequence": (POOLER, Step("classifier")),
        "masked": (
            Step(f"{TRANSFORM}.dense", "hidden_act", f"{TRANSFORM}.LayerNorm"),
            Step("cls.predictions.decoder"),
        ),
        **ROW_HEADS,
    },
    expects={"position_embedding_type": ("absolute", None)},
    defaults={"hidden_act": "gelu", "layer_norm_eps": 1e-12},
)
