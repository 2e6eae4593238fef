"""ELECTRA: BERT whose word table may be narrower than its encoder."""

from fusebert.formats.families import bert
from fusebert.formats.families.family import Family

FAMILY = Family(
    prefix="electra.",
    layers="encoder.layer",
    layer=bert.LAYER,
    fields=bert.FIELDS,
    classifier=("classifier.dense", "classifier.out_proj", "gelu_erf"),
    decoder=(
        "generator_predictions.dense", "generator_predictions.LayerNorm", "generator_lm_head",
        "generator_lm_head.bias",
    ),
    decoder_activation="gelu_erf",
    narrow_words=True,
)  # fmt: skip
