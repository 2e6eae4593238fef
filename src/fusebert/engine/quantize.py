"""Weights in the types of a plan: a Network in, the same Network in bf16 or int8 out.

Smoothing: a few columns of a product's input are far larger than the rest, and would coarsen the 8-bit steps of all
others. Dividing such columns and multiplying their weights keeps the product and evens out the steps. Which columns
they are does not depend on the text, so random ids show them and no data is asked for.

Splitting: behind the activation a few neurons have a weight that dwarfs the others of its row and coarsens their steps.
Such a neuron is computed twice or more, and its weights are shared out: the sum is the same, the steps are finer. The
order of neurons is free, and chosen so that those whose products the engine adds in 16 bits are not all large."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, overload

import ml_dtypes
import numpy as np

from fusebert.engine.native import EncoderEngine, Engine, head_precision, pool, quantize
from fusebert.errors import FusebertError
from fusebert.formats.files import release
from fusebert.ops.graph import Array
from fusebert.values.batch import Batch
from fusebert.values.blocks import Block, Encoder, FeedForward, Linear, Norm
from fusebert.values.network import Head, Network, positions
from fusebert.values.plan import Plan, make_plan
from fusebert.values.traverse import Part, layer_encoder, layers, map_block, weights

_SEQUENCES, _LENGTH = 4, 64  # of random ids
_CREST = 6.0  # a weight of more than so many times its row's root mean square is to be split
_NEURONS = 32  # there may be one copy for so many
_SUM_LIMIT = 128  # of four weights that are added in 16 bits: what the positive ones add up to, and the negative ones
_FOUR = np.array([0, 1, 0, 1, 2, 3, 2, 3])  # of eight in a row: the first, second, fifth and sixth; the other four


_Peaks = list[Array]  # the largest number in every column of a block's first and second product's inputs


def smooth(network: Network, threads: int | None = None, floats: bool = False, engine: Engine | None = None) -> Network:
    """The network with its encoder in int8; with `floats` only its input scales, for whoever has the weights. `engine`
    is the same network in fp32, if it is at hand."""
    ids = random_ids(len(network.embeddings.word), min(_LENGTH, network.embeddings.longest))
    places = np.ascontiguousarray(positions(network.embeddings, ids).ravel())
    kinds = None if network.embeddings.kind is None else np.zeros(ids.size, np.int64)
    bare = replace(network, encoder=Encoder.of(network.encoder.hidden_size, ()), head=Head())
    rows = (engine or Engine(bare, make_plan("fp32", 0), threads)).embed(ids.ravel(), places, kinds)
    rows = rows.reshape(*ids.shape, -1)
    if engine is None:
        return replace(network, encoder=smooth_encoder(network.encoder, rows, pool(threads), floats))
    _, peaks = _observe(engine.encoder, len(network.encoder.order), *_ragged(rows))
    return replace(network, encoder=_smoothed(network.encoder, [peaks], floats))


def random_ids(vocabulary: int, length: int = _LENGTH) -> Array:
    """The token ids `[sequences, length]` whose rows show the large columns; always the same."""
    return np.random.default_rng(0).integers(0, vocabulary, (_SEQUENCES, length))


def smooth_encoder(encoder: Encoder, rows: Array, threads: Any, floats: bool = False) -> Encoder:
    """The encoder in int8, by what embedded rows `[sequences, length, hidden]` show on a pool of threads. The floats of
    a layer are released before those of the next are read: never more than one layer is in memory."""
    return _smoothed(encoder, _layer_by_layer(encoder, *_ragged(rows), threads), floats)


def _ragged(rows: Array) -> tuple[Array, Batch]:
    sequences, length, hidden = rows.shape
    return rows.reshape(-1, hidden), Batch.ragged([length] * sequences)


def _layer_by_layer(encoder: Encoder, rows: Array, batch: Batch, threads: Any) -> Iterator[list[_Peaks]]:
    for places in layers(encoder):
        alone = layer_encoder(encoder, places)
        try:
            engine = EncoderEngine(alone, make_plan("fp32", len(alone.blocks)), threads)
            rows, peaks = _observe(engine, len(places), rows, batch)
        except FusebertError as error:  # which counts blocks from this layer's first
            raise FusebertError(_renumbered(str(error), [encoder.order[place] for place in places])) from None
        yield peaks
        for _, array in weights(alone):
            release(array)


def _smoothed(encoder: Encoder, peaks: Iterable[list[_Peaks]], floats: bool) -> Encoder:
    """The encoder smoothed by the peaks of every place in its order, some at a time: a block after its last use, by the
    largest peaks of all its uses."""
    blocks, largest, place = list(encoder.blocks), dict[int, _Peaks](), 0
    for some in peaks:
        for own in some:
            block = encoder.order[place]
            place += 1
            largest[block] = list(map(np.maximum, largest[block], own)) if block in largest else own
            if block not in encoder.order[place:]:
                blocks[block] = smooth_block(encoder.blocks[block], largest[block], floats)
    return replace(encoder, blocks=tuple(blocks))


def _renumbered(sentence: str, numbers: list[int]) -> str:
    """An error about the blocks of one layer, with the numbers that they have in the encoder."""
    return re.sub(r"block (\d+)", lambda found: f"block {numbers[int(found[1])]}", sentence, count=1)


def _observe(engine: EncoderEngine, places: int, rows: Array, batch: Batch) -> tuple[Array, list[_Peaks]]:
    """What an encoder makes of rows in fp32, and the peaks of every place in its order."""
    peaks: list[_Peaks] = [[np.zeros(1, np.float32)] * 2 for _ in range(places)]

    def watch(place: int, product: int, inputs: Array) -> None:
        peaks[place][product] = np.maximum(peaks[place][product], np.abs(inputs).max(0))

    return engine.run(rows, batch, observer=watch)[0], peaks


def smooth_block(block: Block, peaks: Sequence[Array], floats: bool = False) -> Block:
    """The block in int8, by the largest number in every column of its first and second product's inputs."""
    block = _with_scales(block, peaks[0])
    if floats:
        return block
    body = _split_neurons(block.body, peaks[1]) if isinstance(block.body, FeedForward) else block.body
    return map_block(replace(block, body=body), lambda _, part: _as_type(part, "s8"))


def _with_scales(block: Block, peaks: Array) -> Block:
    """The block whose first product, which is the one behind a norm, has its inputs evened out."""
    names = block.body.products()[0]
    largest = np.max([np.abs(getattr(block.body, name).floats()).max(0) for name in names], axis=0)
    inputs = np.maximum(peaks, peaks.mean() * 1e-2 + 1e-12)
    scales = np.sqrt(inputs / np.maximum(largest, largest.mean() * 1e-2 + 1e-12))
    scales = (scales / scales.mean()).astype(np.float32)
    changed: dict[str, Any] = {name: replace(getattr(block.body, name), input_scales=scales) for name in names}
    return replace(block, body=replace(block.body, **changed))


def _split_neurons(body: FeedForward, peaks: Array) -> FeedForward:
    """The feed-forward body with copies of those neurons whose weights dwarf others, and with `down` in int8."""
    even = np.maximum(peaks / max(np.median(peaks), peaks.mean() * 1e-2 + 1e-12), 1)
    scales = np.sqrt(np.sqrt(even)).astype(np.float32)  # gently: a token's peak is rarely where others have theirs
    weight = body.down.floats() * scales
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
    inner: dict[str, Any] = {name: _rows(getattr(body, name), places) for name in body.products()[0]}
    return replace(body, **inner, down=replace(body.down, weight=values, scales=steps, input_scales=scales[places]))


def _rows(linear: Linear, places: Array) -> Linear:
    return replace(linear, weight=linear.weight[places], bias=None if linear.bias is None else linear.bias[places])


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
    blocks = []
    for block, types in zip(encoder.blocks, plan.blocks, strict=True):
        products = zip(block.body.products(), (types.first.type, types.second.type), strict=True)
        kinds = {name: kind for names, kind in products for name in names}
        blocks.append(map_block(block, lambda name, part, kinds=kinds: _as_type(part, kinds.get(name, ""))))  # type: ignore[misc]
    return replace(encoder, blocks=tuple(blocks))


@overload
def _as_type(part: Linear, kind: str) -> Linear: ...
@overload
def _as_type(part: Part, kind: str) -> Part: ...
def _as_type(part: Part, kind: str) -> Part:
    """A linear in a type; a norm stays as it is."""
    if isinstance(part, Norm):
        return part
    linear = part
    if kind == "s8" and linear.scales is None:
        weight = linear.floats()
        values, scales = quantize(weight if linear.input_scales is None else weight * linear.input_scales)
        return replace(linear, weight=values, scales=scales)
    if kind == "bf16":
        return replace(linear, weight=linear.floats().astype(ml_dtypes.bfloat16), scales=None)
    return linear
