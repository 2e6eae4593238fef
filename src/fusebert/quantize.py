"""Weights in the types of a plan: a Network in, the same Network in bf16 or int8 out.

Smoothing: a few columns of a LayerNorm's output are far larger than the rest, and would coarsen the 8-bit steps of all
others. Dividing such columns and multiplying their weights keeps the product and evens out the steps. Which columns
they are does not depend on the text, so random ids show them and no data is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from fusebert.encoder import LINEARS, Batch, Layer, Linear
from fusebert.engine import Engine, head_precision, quantize
from fusebert.graph import Array
from fusebert.network import Network, positions
from fusebert.plan import PRODUCTS, Plan, make_plan

_SEQUENCES, _LENGTH = 4, 64  # of random ids
_SMOOTHED = {"qkv": ("query", "key", "value"), "ffn_in": ("ffn_in",)}  # the products behind a LayerNorm


def smooth(network: Network, threads: int | None = None) -> Network:
    """The network with input scales for the int8 products behind a LayerNorm."""
    peaks = _column_peaks(network, threads)
    layers = [_smooth_layer(layer, peaks[i]) for i, layer in enumerate(network.encoder.layers)]
    return replace(network, encoder=replace(network.encoder, layers=tuple(layers)))


def _column_peaks(network: Network, threads: int | None) -> list[dict[str, Array]]:
    """Per layer and product, the largest magnitude of every input column on random ids."""
    engine = Engine(network, make_plan("fp32", len(network.encoder.layers)), threads)
    peaks: list[dict[str, Array]] = [{} for _ in network.encoder.layers]

    def watch(layer: int, product: int, rows: Array) -> None:
        peaks[layer][PRODUCTS[product]] = np.abs(rows).max(0)

    length = min(_LENGTH, network.embeddings.longest)
    ids = np.random.default_rng(0).integers(0, len(network.embeddings.word), (_SEQUENCES, length))
    places = np.ascontiguousarray(positions(network.embeddings, ids).ravel())
    kinds = None if network.embeddings.kind is None else np.zeros(ids.size, np.int64)
    rows = engine.embed(ids.ravel(), places, kinds)
    engine.encoder.run(rows, Batch.ragged([length] * _SEQUENCES), observer=watch)
    return peaks


def _smooth_layer(layer: Layer, peaks: dict[str, Array]) -> Layer:
    changed: dict[str, Any] = {}
    for product, names in _SMOOTHED.items():
        weights = np.max([np.abs(getattr(layer, name).floats()).max(0) for name in names], axis=0)
        inputs = np.maximum(peaks[product], peaks[product].mean() * 1e-2 + 1e-12)
        scales = np.sqrt(inputs / np.maximum(weights, weights.mean() * 1e-2 + 1e-12))
        scales = (scales / scales.mean()).astype(np.float32)
        changed |= {name: replace(getattr(layer, name), input_scales=scales) for name in names}
    return replace(layer, **changed)


def convert(network: Network, plan: Plan) -> Network:
    """The network with its weights in the plan's types, as an artifact stores them."""
    layers = []
    for layer, layer_plan in zip(network.encoder.layers, plan.layers, strict=True):
        types = {
            name: getattr(layer_plan, "qkv" if name in ("query", "key", "value") else name).type for name in LINEARS
        }
        changed: dict[str, Any] = {name: _as_type(getattr(layer, name), kind) for name, kind in types.items()}
        layers.append(replace(layer, **changed))
    head = tuple(
        replace(step, linear=_as_type(step.linear, head_precision(network, plan, i)))
        for i, step in enumerate(network.head.steps)
    )
    encoder = replace(network.encoder, layers=tuple(layers))
    return replace(network, encoder=encoder, head=replace(network.head, steps=head))


def _as_type(linear: Linear, kind: str) -> Linear:
    if kind == "s8" and linear.scales is None:
        weight = linear.floats()
        values, scales = quantize(weight if linear.input_scales is None else weight * linear.input_scales)
        return replace(linear, weight=values, scales=scales)
    if kind == "bf16":
        return replace(linear, weight=linear.floats().astype(ml_dtypes.bfloat16), scales=None)
    return linear
