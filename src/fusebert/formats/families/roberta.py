"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT whose positions count from the padding id."""

from fusebert.formats.families import bert
from fusebert.formats.families.family import Family

FAMILY = Family(
    prefix="roberta.",
    layers="encoder.layer",
    layer=bert.LAYER,
    fields=bert.FIELDS,
    classifier=("classifier.dense", "classifier.out_proj", "tanh"),
    decoder=("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias"),
    decoder_activation="gelu_erf",
    counts_from_padding=True,
)
