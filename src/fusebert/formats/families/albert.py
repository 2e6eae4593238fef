"""ALBERT: BERT with narrow embeddings whose layers share their weights, in groups."""

from dataclasses import replace

from fusebert.errors import FusebertError
from fusebert.formats.config import Config
from fusebert.formats.families import bert
from fusebert.formats.families.family import Step


def _layers(config: Config) -> tuple[str, ...]:
    """The layers of the group that each of the model's layers belongs to, one after the other."""
    count, groups = config.size("num_hidden_layers", 1 << 12), config.size("num_hidden_groups", 1 << 12)
    inner = config.size("inner_group_num", 1 << 4)
    if groups > count:
        raise FusebertError(f"{config.path}: num_hidden_groups {groups} is more than num_hidden_layers {count}")
    places = (int(i / (count / groups)) for i in range(count))
    return tuple(f"encoder.albert_layer_groups.{g}.albert_layers.{j}" for g in places for j in range(inner))


_POOLER = Step("pooler", "tanh")
FAMILY = replace(
    bert.FAMILY,
    prefix="albert.",
    layers=_layers,
    layer={
        "attention.query": "attention.query", "attention.key": "attention.key", "attention.value": "attention.value",
        "attention.out": "attention.dense", "attention.after": "attention.LayerNorm", "feed_forward.up": "ffn",
        "feed_forward.down": "ffn_output", "feed_forward.after": "full_layer_layer_norm",
    },
    embeddings={**bert.EMBEDDINGS, "project": "encoder.embedding_hidden_mapping_in"},
    heads={
        "none": (_POOLER,),
        "sequence": (_POOLER, Step("classifier")),
        "masked": (
            Step("predictions.dense", "hidden_act", "predictions.LayerNorm"),
            Step("predictions.decoder"),
        ),
        **bert.ROW_HEADS,
    },
    defaults={"hidden_act": "gelu_new", "layer_norm_eps": 1e-12, "num_hidden_groups": 1, "inner_group_num": 1},
)  # fmt: skip
