"""ELECTRA: BERT whose word table may be narrower than its encoder."""

from dataclasses import replace

from fusebert.formats.families import bert
from fusebert.formats.families.family import Step

FAMILY = replace(
    bert.FAMILY,
    prefix="electra.",
    embeddings={**bert.EMBEDDINGS, "project": "embeddings_project"},
    heads={
        "none": (),
        "sequence": (Step("classifier.dense", "gelu_erf"), Step("classifier.out_proj")),
        "masked": (
            Step("generator_predictions.dense", "gelu_erf", "generator_predictions.LayerNorm"),
            Step("generator_lm_head"),
        ),
        **bert.ROW_HEADS,
    },
)
