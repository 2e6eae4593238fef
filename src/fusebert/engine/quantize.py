"""Weights in the types of a plan: a Network in, the same Network in bf16 or int8 out.

Smoothing: a few columns of a product's input are far larger than the rest, and would coarsen the 8-bit steps of all
others. Dividing such columns and multiplying their weights keeps the product and evens out the steps. Which columns
they are does not depend on the text, so random ids show them and no data is asked for.

Splitting: behind the activation a few neurons have a weight that dwarfs the others of its row and coarsens their steps.
Such a neuron is computed twice or more, and its weights are shared out: the sum is the same, the steps are finer. The
order of neurons is free, and chosen so that those whose products the engine adds in 16 bits are not all large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from fusebert.engine.native import EncoderEngine, Engine, head_precision, pool, quantize
from fusebert.errors import FusebertError
from fusebert.formats.files import release
from fusebert.ops.graph import Array
from fusebert.values.blocks import LINEARS, Batch, Encoder, Layer, Linear
from fusebert.values.network import Head, Network, positions
from fusebert.values.plan import PRODUCTS, Plan, make_plan

_SEQUENCES, _LENGTH = 4, 64  # of random ids
_SMOOTHED = {"qkv": ("query", "key", "value"), "ffn_in": ("ffn_in",)}  # the products behind a LayerNorm
_CREST = 6.0  # a weight of more than so many times its row's root mean square is to be split
_NEURONS = 32  # there may be one copy for so many
_SUM_LIMIT = 128  # of four weights that are added in 16 bits: what the positive ones add up to, and the negative ones
_FOUR = np.array([0, 1, 0, 1, 2, 3, 2, 3])  # of eight in a row: the first, second, fifth and sixth; the other four


def smooth(network: Network, threads: int | None = None, floats: bool = False) -> Network:
    """The network with its encoder in int8; with `floats` only its input scales, for whoever has the weights."""
    rows = _sample_rows(network, threads)
    return replace(network, encoder=smooth_encoder(network.encoder, rows, pool(threads), floats))


def _sample_rows(network: Network, threads: int | None) -> Array:
    """Random ids, embedded: `[sequences, length, hidden]`."""
    bare = replace(network, encoder=replace(network.encoder, layers=()), head=Head())
    ids = random_ids(len(network.embeddings.word), min(_LENGTH, network.embeddings.longest))
    places = np.ascontiguousarray(positions(network.embeddings, ids).ravel())
    kinds = None if network.embeddings.kind is None else np.zeros(ids.size, np.int64)
    rows = Engine(bare, make_plan("fp32", 0), threads).embed(ids.ravel(), places, kinds)
    return rows.reshape(*ids.shape, -1)


def random_ids(vocabulary: int, length: int = _LENGTH) -> Array:
    """The token ids `[sequences, length]` whose rows show the large columns; always the same."""
    return np.random.default_rng(0).integers(0, vocabulary, (_SEQUENCES, length))


def smooth_encoder(encoder: Encoder, rows: Array, threads: Any, floats: bool = False) -> Encoder:
    """The encoder in int8, by what embedded rows `[sequences, length, hidden]` show on a pool of threads.

    A layer's floats are let go of before those of the next are read, so that never more than one layer is in memory."""
    sequences, length, hidden = rows.shape
    batch, rows = Batch.ragged([length] * sequences), rows.reshape(-1, hidden)
    layers = []
    for number, layer in enumerate(encoder.layers):
        alone = replace(encoder, layers=(layer,))
        try:
            rows, peaks = _observe(alone, rows, batch, threads)
        except FusebertError as error:  # which calls the only layer the first
            raise FusebertError(str(error).replace("layer 0", f"layer {number}", 1)) from None
        layers.append(smooth_layer(layer, peaks, floats))
        for _, array in alone.weights():
            release(array)
    return replace(encoder, layers=tuple(layers))


def _observe(alone: Encoder, rows: Array, batch: Batch, threads: Any) -> tuple[Array, dict[str, Array]]:
    """What one layer makes of rows in fp32, and the largest number in every column of its products' inputs."""
    peaks: dict[str, Array] = {}

    def watch(_: int, product: int, inputs: Array) -> None:
        peaks[PRODUCTS[product]] = np.abs(inputs).max(0)

    engine = EncoderEngine(alone, make_plan("fp32", 1), threads)
    return engine.run(rows, batch, observer=watch)[0], peaks


def smooth_layer(layer: Layer, peaks: Mapping[str, Array], floats: bool = False) -> Layer:
    """The layer in int8, by the largest number in every column of each product's inputs."""
    layer = _with_scales(layer, peaks)
    return layer if floats else _as_types(_split_neurons(layer, peaks["ffn_out"]), dict.fromkeys(LINEARS, "s8"))


def _with_scales(layer: Layer, peaks: Mapping[str, Array]) -> Layer:
    changed: dict[str, Any] = {}
    for product, names in _SMOOTHED.items():
        weights = np.max([np.abs(getattr(layer, name).floats()).max(0) for name in names], axis=0)
        inputs = np.maximum(peaks[product], peaks[product].mean() * 1e-2 + 1e-12)
        scales = np.sqrt(inputs / np.maximum(weights, weights.mean() * 1e-2 + 1e-12))
        scales = (scales / scales.mean()).astype(np.float32)
        changed |= {name: replace(getattr(layer, name), input_scales=scales) for name in names}
    return replace(layer, **changed)


def _split_neurons(layer: Layer, peaks: Array) -> Layer:
    """The layer with copies of those neurons whose weights dwarf others, and with ffn_out in int8."""
    even = np.maximum(peaks / max(np.median(peaks), peaks.mean() * 1e-2 + 1e-12), 1)
    scales = np.sqrt(np.sqrt(even)).astype(np.float32)  # gently: a token's peak is rarely where others have theirs
    weight = layer.ffn_out.floats() * scales
    crest = (np.abs(weight) / np.sqrt((weight**2).mean(1, keepdims=True) + 1e-20)).max(0)
    copies = np.ones(len(crest), np.int64)
    for _ in range(len(crest) // _NEURONS):
        largest = np.argmax(crest / copies)
        if crest[largest] <= _CREST * copies[largest]:
            break
        copies[largest] += 1
    places = np.repeat(np.arange(len(copies)), copies)
    places = _large_beside_small(places, (crest / copies)[places])
    values, steps = quantize((weight / copies)[:, places])
    for neuron in np.flatnonzero(copies > 1):
        left = weight[:, neuron].copy()
        for done, place in enumerate(np.flatnonzero(places == neuron)):  # each takes up what the others rounded away
            beside = values[:, [other for other in (place ^ 1, place ^ 4, place ^ 5) if other < len(places)]]
            low = np.maximum(-127, -_SUM_LIMIT - np.minimum(beside, 0).sum(1, dtype=np.int32))
            high = np.minimum(127, _SUM_LIMIT - np.maximum(beside, 0).sum(1, dtype=np.int32))
            values[:, place] = np.clip(np.rint(left / steps / (copies[neuron] - done)), low, high)
            left -= values[:, place] * steps
    ffn_in, bias = layer.ffn_in, layer.ffn_in.bias
    return replace(
        layer,
        ffn_in=replace(ffn_in, weight=ffn_in.weight[places], bias=None if bias is None else bias[places]),
        ffn_out=replace(layer.ffn_out, weight=values, scales=steps, input_scales=scales[places]),
    )


def _large_beside_small(places: Array, sizes: Array) -> Array:
    """The places so ordered that of four which _SUM_LIMIT limits together, one is large and one is small."""
    at = np.arange(len(places))
    member, four = _FOUR[at % 8], at // 8 * 2 + at // 2 % 2
    by_size = np.lexsort((np.where(member % 2, -four, four), member))  # down the first of each four, up the second, ...
    ordered = np.empty_like(places)
    ordered[by_size] = places[np.argsort(-sizes, kind="stable")]
    return ordered


def convert(network: Network, plan: Plan) -> Network:
    """The network with its weights in the plan's types, as an artifact stores them."""
    head = tuple(
        replace(step, linear=_as_type(step.linear, head_precision(network, plan, i)))
        for i, step in enumerate(network.head.steps)
    )
    encoder = convert_encoder(network.encoder, plan)
    return replace(network, encoder=encoder, head=replace(network.head, steps=head))


def convert_encoder(encoder: Encoder, plan: Plan) -> Encoder:
    """The encoder with its weights in the plan's types."""
    layers = []
    for layer, layer_plan in zip(encoder.layers, plan.layers, strict=True):
        types = {
            name: getattr(layer_plan, "qkv" if name in ("query", "key", "value") else name).type for name in LINEARS
        }
        layers.append(_as_types(layer, types))
    return replace(encoder, layers=tuple(layers))


def _as_types(layer: Layer, types: Mapping[str, str]) -> Layer:
    changed: dict[str, Any] = {name: _as_type(getattr(layer, name), kind) for name, kind in types.items()}
    return replace(layer, **changed)


def _as_type(linear: Linear, kind: str) -> Linear:
    if kind == "s8" and linear.scales is None:
        weight = linear.floats()
        values, scales = quantize(weight if linear.input_scales is None else weight * linear.input_scales)
        return replace(linear, weight=values, scales=scales)
    if kind == "bf16":
        return replace(linear, weight=linear.floats().astype(ml_dtypes.bfloat16), scales=None)
    return linear
