"""The families of checkpoints that are read, one table each, by the model_type of config.json."""

from fusebert.formats.families import bert, distilbert, electra, roberta
from fusebert.formats.families.family import Family

FAMILIES = {
    "bert": bert.FAMILY,
    "roberta": roberta.FAMILY,
    "xlm-roberta": roberta.FAMILY,
    "camembert": roberta.FAMILY,
    "electra": electra.FAMILY,
    "distilbert": distilbert.FAMILY,
}

__all__ = ["FAMILIES", "Family"]
