"""Network + Plan -> the artifact's header and weights. Of the encoder, what values/traverse.py walks is stored."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.formats.artifact.header import HEADER, VERSION, WEIGHTS
from fusebert.formats.files import release
from fusebert.ops.graph import Array
from fusebert.values.blocks import Attention, Block, Norm, Position
from fusebert.values.network import Dense, Embeddings, Network, Sentence
from fusebert.values.plan import BlockPlan, Plan, Product
from fusebert.values.traverse import block_parts


def write(folder: Path, network: Network, plan: Plan, max_length: int) -> None:
    """Writes header and weights into an existing folder."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    kept: dict[str, Array] = {}
    tied: dict[str, str] = {}
    for name, array in network.weights():
        twin = next((other for other, seen in kept.items() if seen is array), None)
        if twin:
            tied[name] = twin
        else:
            kept[name] = array
    encoder = network.encoder
    header = {
        "format": "fusebert",
        "version": VERSION,
        "family": network.family,
        "max_length": max_length,
        "labels": list(network.labels),
        "problem": network.problem,
        "precision": plan.precision,
        "embeddings": _embeddings(network.embeddings),
        "blocks": [_block(block, own) for block, own in zip(encoder.blocks, plan.blocks, strict=True)],
        "order": list(encoder.order),
        "final": _norm(encoder.final),
        "head": {
            "kind": network.head.kind,
            "pooling": network.head.pooling,
            "steps": [_step(step) for step in network.head.steps],
        },
        "sentence": _sentence(network.sentence),
        "scores": network.scores,
        "decoder": plan.decoder,
        "tied": tied,
    }
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in kept.items()}, folder / WEIGHTS)
    except SafetensorError as error:  # such as a full disk
        raise OSError(f"{WEIGHTS}: {error}") from None
    for array in kept.values():
        release(array)
    (folder / HEADER).write_text(json.dumps(header, indent=1) + "\n")


def _embeddings(embeddings: Embeddings) -> dict[str, Any]:
    return {
        "norm": _norm(embeddings.norm),
        "projected_norm": _norm(embeddings.projected_norm),
        "padding_id": embeddings.padding_id,
        "scale": embeddings.scale,
        "max_positions": embeddings.max_positions,
    }


def _block(block: Block, plan: BlockPlan) -> dict[str, Any]:
    body = block.body
    if isinstance(body, Attention):
        own = {"body": "attention", "heads": body.heads, "key_heads": body.key_heads, "scale": body.scale,
               "window": body.window, "position": _position(body.position)}  # fmt: skip
    else:
        own = {"body": "feed_forward", "activation": body.activation}
    norms = {name: _norm(part) for name, part in block_parts(block) if isinstance(part, Norm)}
    products = {"first": _product(plan.first), "second": _product(plan.second)}
    more = {"adds_twice": True} if block.adds_twice else {}
    return {**own, "norms": norms, **more, "products": products, "scores": plan.scores, "bytes": plan.bytes}


def _sentence(sentence: Sentence | None) -> dict[str, Any] | None:
    if sentence is None:
        return None
    own = {field.name: getattr(sentence, field.name) for field in fields(sentence)}
    return {**own, "prompts": dict(sentence.prompts), "steps": [_step(step) for step in sentence.steps]}


def _position(position: Position | None) -> dict[str, Any] | None:
    if position is None:
        return None
    values = {field.name: getattr(position, field.name) for field in fields(position)}
    numbers = {name: value for name, value in values.items() if isinstance(value, int)}
    return {"kind": type(position).__name__.lower(), **numbers}


def _norm(norm: Norm | None) -> dict[str, Any] | None:
    if norm is None:
        return None
    return {"kind": norm.kind, "epsilon": norm.epsilon, "has": [name for name, _ in norm.arrays()]}


def _product(product: Product) -> dict[str, Any]:
    return {"type": product.type, "low": product.low, "high": product.high}


def _step(step: Dense) -> dict[str, Any]:
    return {"activation": step.activation, "norm": _norm(step.norm)}
