"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose positions count from the padding id. XLM-RoBERTa-XL norms before its
products instead of after them."""

from dataclasses import replace

from fusebert.formats.families import bert
from fusebert.formats.families.family import Family, Step

HEADS = {
    "none": (bert.POOLER,),
    "sequence": (Step("classifier.dense", "tanh"), Step("classifier.out_proj")),
    "masked": (Step("lm_head.dense", "gelu_erf", "lm_head.layer_norm"), Step("lm_head.decoder")),
    **bert.ROW_HEADS,
}
FAMILY = Family(
    prefix="roberta.",
    layers="encoder.layer",
    layer=bert.LAYER,
    embeddings=bert.EMBEDDINGS,
    fields=bert.FIELDS,
    heads=HEADS,
    counts_from="pad_token_id",
    expects=bert.FAMILY.expects,
    defaults=bert.FAMILY.defaults,
)

_NORMS = {"attention.after": "attention.before", "feed_forward.after": "feed_forward.before"}
_LAYER = {_NORMS.get(path, path): name for path, name in bert.LAYER.items()}
PRE_NORM = replace(
    FAMILY,
    layer={**_LAYER, "attention.before": "attention.self_attn_layer_norm", "feed_forward.before": "LayerNorm"},
    embeddings={name: table for name, table in bert.EMBEDDINGS.items() if name != "norm"},
    final="encoder.LayerNorm",
)
