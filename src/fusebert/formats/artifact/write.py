"""Network + Plan -> the artifact's header and weights. Of the encoder, what values/traverse.py walks is stored."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.formats.artifact.form import describe_block, describe_norm
from fusebert.formats.artifact.header import HEADER, VERSION, WEIGHTS
from fusebert.formats.files import release
from fusebert.ops.graph import Array
from fusebert.values.blocks import Block
from fusebert.values.network import Dense, Embeddings, Network, Sentence
from fusebert.values.plan import BlockPlan, Plan, Product


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
        "final": describe_norm(encoder.final),
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
        "norm": describe_norm(embeddings.norm),
        "projected_norm": describe_norm(embeddings.projected_norm),
        "padding_id": embeddings.padding_id,
        "scale": embeddings.scale,
        "max_positions": embeddings.max_positions,
    }


def _block(block: Block, plan: BlockPlan) -> dict[str, Any]:
    products = {"first": _product(plan.first), "second": _product(plan.second)}
    return {**describe_block(block), "products": products, "scores": plan.scores, "bytes": plan.bytes}


def _sentence(sentence: Sentence | None) -> dict[str, Any] | None:
    if sentence is None:
        return None
    own = {field.name: getattr(sentence, field.name) for field in fields(sentence)}
    return {**own, "prompts": dict(sentence.prompts), "steps": [_step(step) for step in sentence.steps]}


def _product(product: Product) -> dict[str, Any]:
    return {"type": product.type, "low": product.low, "high": product.high}


def _step(step: Dense) -> dict[str, Any]:
    return {"activation": step.activation, "norm": describe_norm(step.norm)}
