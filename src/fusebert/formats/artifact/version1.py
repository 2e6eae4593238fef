"""Version 1 of the artifact, which listed layers: its header and tensor names in those of version 2."""

from __future__ import annotations

from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.artifact.header import Fields

_NAMES = {  # of a layer's parts, for an attention block and for a feed-forward block
    0: {"query": "query", "key": "key", "value": "value", "out": "attention_out", "after": "attention_norm"},
    1: {"up": "ffn_in", "down": "ffn_out", "after": "output_norm"},
}


def tensor_name(name: str) -> str:
    """What version 1 called a tensor: `block.7.up.weight` was `layer.3.ffn_in.weight`."""
    if not name.startswith("block."):
        return name
    _, number, part, field = name.split(".")
    layer, block = divmod(int(number), 2)
    return f"layer.{layer}.{_NAMES[block].get(part, part)}.{field}"


def upgrade(header: Fields) -> Fields:
    """The header as version 2 would say it."""
    layers, plan = header.sections("layers"), header.section("plan")
    plans = plan.sections("layers")
    if len(plans) != len(layers):
        raise FusebertError(f"{header.path}: plan.layers has {len(plans)} entries for {len(layers)} layers")
    blocks = [block for pair in zip(layers, plans, strict=True) for block in _blocks(*pair)]
    embeddings, head = header.section("embeddings"), header.section("head")
    steps = [{**step.values, "norm": _norm(step)} for step in head.sections("steps")]
    values = {
        **header.values, "embeddings": {**embeddings.values, "norm": _norm(embeddings)},
        "head": {**head.values, "steps": steps}, "blocks": blocks, "order": list(range(len(blocks))), "final": None,
        "precision": plan.values.get("precision"), "decoder": plan.values.get("decoder"),
    }  # fmt: skip
    return Fields(header.path, values)


def _norm(fields: Fields, name: str = "epsilon") -> dict[str, Any] | None:
    if not fields.optional(name):
        return None
    return {"kind": "layer", "epsilon": fields.number(name, 0, 1), "has": ["gain", "bias"]}


def _blocks(layer: Fields, plan: Fields) -> tuple[dict[str, Any], dict[str, Any]]:
    first, second = (
        {"after": {"kind": "layer", "epsilon": e, "has": ["gain", "bias"]}} for e in layer.numbers("epsilons", 2, 0, 1)
    )
    heads = layer.values.get("heads")
    products = {name: plan.section(name).values for name in ("qkv", "attention_out", "ffn_in", "ffn_out")}
    return (
        {
            "body": "attention", "heads": heads, "key_heads": heads, "scale": layer.values.get("scale"),
            "norms": first, "scores": plan.values.get("attention"),
            "products": {"first": products["qkv"], "second": products["attention_out"]},
        },
        {
            "body": "feed_forward", "activation": layer.values.get("activation"), "norms": second,
            "scores": plan.values.get("attention"),
            "products": {"first": products["ffn_in"], "second": products["ffn_out"]},
        },
    )  # fmt: skip
