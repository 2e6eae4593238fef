"""The families of checkpoints that are read, one table each, by the model_type of config.json. Where a model_type has
several, the first counts whose mathematics config.json means."""

from fusebert.formats.families import (
    albert,
    alibi,
    bert,
    deberta,
    distilbert,
    electra,
    eurobert,
    gemma,
    modernbert,
    mpnet,
    roberta,
    rotary_bert,
)
from fusebert.formats.families.family import Family, Part, Sizes

FAMILIES: dict[str, tuple[Family, ...]] = {
    "bert": (bert.FAMILY, alibi.CODE, alibi.FAMILY),
    "roberta": (roberta.FAMILY,),
    "xlm-roberta": (roberta.FAMILY,),
    "camembert": (roberta.FAMILY,),
    "xlm-roberta-xl": (roberta.PRE_NORM,),
    "electra": (electra.FAMILY,),
    "distilbert": (distilbert.FAMILY,),
    "albert": (albert.FAMILY,),
    "mpnet": (mpnet.FAMILY,),
    "modernbert": (modernbert.FAMILY,),
    "deberta": (deberta.V1,),
    "deberta-v2": (deberta.FAMILY,),
    "nomic_bert": (rotary_bert.NOMIC,),
    "gte": (rotary_bert.GTE,),
    "new": (rotary_bert.NEW,),
    "jina_embeddings_v3": (rotary_bert.JINA,),
    "eurobert": (eurobert.FAMILY,),
    "gemma3_text": (gemma.FAMILY,),
}

__all__ = ["FAMILIES", "Family", "Part", "Sizes"]
