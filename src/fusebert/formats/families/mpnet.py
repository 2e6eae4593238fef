"""MPNet: BERT without token types whose scores have a bias by head and distance, the same in all layers."""

from dataclasses import replace

import numpy as np

from fusebert.formats.config import Config
from fusebert.formats.families import bert, roberta
from fusebert.formats.families.family import Complete, Sizes
from fusebert.formats.tensors import Weights
from fusebert.values.blocks import Attention, Relative

_BUCKETS = 32  # half of them for keys after the query
_BEGINNINGS = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91)  # the first distance of every bucket but 0


def _attention(_: Config, weights: Weights, sizes: Sizes) -> Complete:
    buckets = weights.get("encoder.relative_attention_bias.weight", shape=(_BUCKETS, sizes.heads))
    distances = np.arange(-_BEGINNINGS[-1], _BEGINNINGS[-1] + 1)  # key minus query; all farther ones share a bucket
    places = np.searchsorted(_BEGINNINGS, np.abs(distances), side="right") + (distances > 0) * (_BUCKETS // 2)
    relative = Relative(np.ascontiguousarray(buckets.astype(np.float32)[places].T))

    def complete(_: int, attention: Attention) -> Attention:
        return replace(attention, position=relative)

    return complete


FAMILY = replace(
    roberta.FAMILY,
    prefix="mpnet.",
    layer={
        **bert.LAYER, "attention.query": "attention.attn.q", "attention.key": "attention.attn.k",
        "attention.value": "attention.attn.v", "attention.out": "attention.attn.o",
        "attention.after": "attention.LayerNorm",
    },
    embeddings={name: table for name, table in bert.EMBEDDINGS.items() if name != "token_type"},
    counts_from=1,
    attention=_attention,
    expects={"relative_attention_num_buckets": (_BUCKETS, None)},
)  # fmt: skip
