"""Our own fused operators, `fusebert.Encoder` of ONNX and `Bert` of TensorFlow, spelled out in primitive operations by
the one formula of a block: what fusebert wrote is a model like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from math import sqrt
from typing import Any, Self

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.layout import layout_inputs, read_layout
from fusebert.formats.onnx import encoder_op
from fusebert.formats.tensorflow.bert_op import (
    COMPACT,
    COMPACT_WEIGHTS,
    FORM,
    OPS,
    WEIGHTS,
    Settings,
    shapes_of,
    with_defaults,
)
from fusebert.match.emitter import Emitter, Ints, Rule
from fusebert.match.findings import Refused
from fusebert.match.patterns import NamedLinear
from fusebert.ops.graph import Array
from fusebert.ops.primitives import ACTIVATIONS
from fusebert.ops.vocabulary import distance_buckets
from fusebert.values.blocks import Attention, Block, Encoder, Norm
from fusebert.values.forms import block, norm
from fusebert.values.traverse import Part, is_norm, layers, map_parts, post_norm_layer

_LOWEST = float(np.finfo(np.float32).min)
_FARTHEST = 1 << 16  # that distances are told apart
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("HiddenSize", "NumAttentionHeads", "IntermediateSize"), int),
    **dict.fromkeys(("AttentionScale", "LayerNormEpsilon", "MaskValue"), float), "HiddenAct": str,
}  # fmt: skip
_Part = Callable[[str], Any]  # the names of a part's weights, by the part's path
_Own = Mapping[tuple[str, str], str]  # the weights of a layer by part and field


class _Words:
    """The words of a block's formula, as operations that an emitter emits. Rows are `[batch, tokens, hidden]`, or
    without a batch where `tokens`, a tensor, says how many tokens a sequence has."""

    def __init__(self, e: Emitter, rows: str, tokens: str = "") -> None:
        self._e, self._rows, self._tokens = e, rows, tokens
        self._rows_of_tables, self._made_places = 0, ""

    def linear(self, x: str, weight: str, bias: str) -> str:
        product = self._e.matmul(x, str(weight), transpose_a=False, transpose_b=True)
        return self._e.add(product, bias) if bias else product

    def split_heads(self, x: str, heads: int) -> str:
        e = self._e
        if isinstance(x, _Named):  # a table of positions
            self._rows_of_tables = len(x)
            wide = e.reshape(str(x), e.constant([0, heads, -1]), zero_copies=True)
            return e.transpose(wide, e.constant([1, 0, 2]))
        if heads < 1:
            raise Refused(f"attention with {heads} heads is not supported")
        if not self._tokens:
            wide = e.reshape(x, e.constant([0, 0, heads, -1]), zero_copies=True)
        else:
            width = e.gather(e.emit("shape", x, to="int64"), e.constant([-1]), axis=0, batch_dims=0)
            size = e.floordiv(width, e.constant([heads]))
            shape = e.concat(e.constant([-1]), self._tokens, e.constant([heads]), size, axis=0)
            wide = e.reshape(x, shape, zero_copies=False)
        return e.transpose(wide, e.constant([0, 2, 1, 3]))

    def merge_heads(self, x: str) -> str:
        e = self._e
        rows = e.transpose(x, e.constant([0, 2, 1, 3]))
        if not self._tokens:
            return e.reshape(rows, e.constant([0, 0, -1]), zero_copies=True)
        lead = e.slice(e.emit("shape", self._rows, to="int64"), e.constant([0]), e.constant([-1]))
        return e.reshape(rows, e.concat(lead, e.constant([-1]), axis=0), zero_copies=False)

    def scores(self, query: str, key: str, scale: float) -> str:
        e = self._e
        product = e.matmul(query, key, transpose_a=False, transpose_b=True)
        return e.mul(product, e.constant(scale, "float32"))

    def mask(self, scores: str, mask: Callable[[str], str] | None) -> str:
        return self._e.add(scores, mask(scores)) if mask else scores

    def softmax(self, x: str) -> str:
        return self._e.softmax(x, axis=-1)

    def context(self, attention: str, value: str) -> str:
        return self._e.matmul(attention, value, transpose_a=False, transpose_b=False)

    def add(self, a: str, b: str) -> str:
        return self._e.add(a, b)

    def activation(self, x: str, name: str) -> str:
        return self._e.activation(x, name=name)

    def multiply(self, a: str, b: str) -> str:
        return self._e.mul(a, b)

    def layer_norm(self, x: str, gain: str, bias: str, epsilon: float) -> str:
        return self._e.layer_norm(x, str(gain), bias, epsilon=epsilon)

    def rms_norm(self, x: str, gain: str, epsilon: float) -> str:
        e = self._e
        squares = e.mean(e.square(x), e.constant([-1]), keepdims=True)
        normed = e.div(x, e.sqrt(e.add(squares, e.constant(epsilon, "float32"))))
        return e.mul(normed, str(gain)) if gain else normed

    def repeat_heads(self, x: str, times: int) -> str:
        e, shape = self._e, self._e.emit("shape", x, to="int64")
        begin, end = (e.slice(shape, e.constant([first]), e.constant([last])) for first, last in ((0, 2), (2, 4)))
        wide = e.expand(e.unsqueeze(x, e.constant([2])), e.concat(begin, e.constant([times]), end, axis=0))
        return e.reshape(wide, e.mul(shape, e.constant([1, times, 1, 1])), zero_copies=False)

    def _places(self) -> str:
        """0, 1, 2 and so on, for every token of a sequence."""
        e = self._e
        if not self._made_places:
            if self._tokens:
                tokens = e.squeeze(self._tokens, e.constant([0]))
            else:
                tokens = e.gather(e.emit("shape", self._rows, to="int64"), e.constant(1), axis=0, batch_dims=0)
            self._made_places = e.range(e.constant(0), tokens, e.constant(1))
        return self._made_places

    def rotate(self, x: str, frequencies: str, positions: None = None) -> str:  # noqa: ARG002
        e, half = self._e, len(frequencies)
        first = e.slice(x, e.constant([0]), e.constant([half]), e.constant([-1]))
        second = e.slice(x, e.constant([half]), e.constant([2 * half]), e.constant([-1]))
        places = e.cast(e.unsqueeze(self._places(), e.constant([1])), to="float32")
        angles = e.mul(places, str(frequencies))
        both = e.concat(angles, angles, axis=-1)
        return e.add(e.mul(x, e.cos(both)), e.mul(e.concat(e.neg(second), first, axis=-1), e.sin(both)))

    def _distances(self, most: int) -> str:
        """Query minus key position, at most so much, counted from the least."""
        e, places = self._e, self._places()
        whole = e.sub(e.unsqueeze(places, e.constant([1])), e.unsqueeze(places, e.constant([0])))
        return e.add(e.minimum(e.maximum(whole, e.constant(-most)), e.constant(most)), e.constant(most))

    def distance_bias(self, table: str, scores: str, positions: None = None) -> str:  # noqa: ARG002
        e = self._e
        reach = e.weights[e.unchanged(table)].shape[1] // 2
        index = e.sub(e.constant(2 * reach), self._distances(reach))
        return e.gather(str(table), index, axis=1, batch_dims=0)

    def by_distance(
        self,
        x: str,
        positions: None = None,  # noqa: ARG002
        *,
        buckets: int,
        reach: int,
        of_keys: bool = False,
    ) -> str:
        e, middle = self._e, self._rows_of_tables // 2
        farthest = max(reach, middle)
        if farthest > _FARTHEST:
            raise Refused(f"distances of up to {farthest} are not supported")
        rows = distance_buckets(np.arange(-farthest, farthest + 1), buckets, reach, middle)
        index = e.gather(e.constant(rows), self._distances(farthest), axis=0, batch_dims=0)
        if of_keys:
            index = e.transpose(index, e.constant([1, 0]))
        shape = e.emit("shape", x, to="int64")
        tokens = e.slice(shape, e.constant([2]), e.constant([3]))
        wide = e.expand(index, e.concat(e.slice(shape, e.constant([0]), e.constant([3])), tokens, axis=0))
        taken = e.gather_elements(x, wide, axis=3)
        return e.transpose(taken, e.constant([0, 1, 3, 2])) if of_keys else taken

    def window(self, scores: str, positions: None = None, *, window: int) -> str:  # noqa: ARG002
        e, places = self._e, self._places()
        distances = e.abs(e.sub(e.unsqueeze(places, e.constant([1])), e.unsqueeze(places, e.constant([0]))))
        near = e.less_equal(distances, e.constant(window))
        return e.where(near, scores, e.constant(float("-inf"), "float32"))


def _run(words: _Words, rows: str, mask: Any, encoder: Encoder) -> list[str]:
    """What comes out of every layer; after the last one, of the encoder."""
    made = []
    for places in layers(encoder):
        for place in places:
            rows = block(words, rows, mask, encoder.blocks[encoder.order[place]])
        made.append(rows)
    return [*made[:-1], norm(words, rows, encoder.final)]


def _encoder(
    e: Emitter,
    rows: str,
    mask: str = "",
    /,
    *weights: str,
    taps: Ints = (),
    layout: str = "",
    **attributes: Any,
) -> tuple[str, ...]:
    """`fusebert.Encoder`; docs/onnxruntime-op.md."""
    encoder = _laid_out(e, layout, weights) if layout else _in_layers(e, weights, **attributes)
    rank = _rank(e, mask)
    # of what is computed only what is added to scores is a mask of floats
    additive = rank == 4 or (rank is None and "float" in e.dtype(mask))
    tokens = e.gather(e.emit("shape", mask, to="int64"), e.constant([-1]), axis=0, batch_dims=0) if rank == 2 else ""

    def added(scores: str) -> str:
        return mask if additive else e.key_mask(mask, scores, filter=_LOWEST)

    made = _run(_Words(e, rows, tokens), rows, added if mask else None, encoder)
    if any(not 0 <= tap < len(made) for tap in taps):
        raise Refused(f"taps {taps} are not layers")
    return made[-1], *(made[tap] for tap in taps)


def _in_layers(e: Emitter, weights: Sequence[str], activation: str = "gelu_erf", **attributes: Any) -> Encoder:
    """Layers of BERT, with names in place of weights."""
    try:
        fields = encoder_op.weight_names(attributes)
        count, rest = divmod(len(weights), len(fields))
        if rest or not count:
            raise Refused(f"{len(weights)} weights are no layers of {len(fields)}")
        settings = [encoder_op.layer_settings(attributes, layer, count) for layer in range(count)]
    except FusebertError as error:
        raise Refused(str(error)) from None
    blocks: list[Block] = []
    for layer, (heads, scale, epsilons) in enumerate(settings):
        own = dict(zip(fields, weights[layer * len(fields) :], strict=False))
        width = _size(e, own["attention.query", "weight"], 0)
        scale = scale or 1 / sqrt(max(width // max(heads, 1), 1))
        part = _onnx_part(e, own, epsilons)
        blocks += post_norm_layer(part, heads, _known(activation), scale)
    return Encoder.of(0, tuple(blocks))


def _laid_out(e: Emitter, layout: str, weights: Sequence[str]) -> Encoder:
    """Blocks of any form, with names in place of weights. No weight is read."""
    zero = np.zeros((), np.float32)

    def shown(name: str) -> Array:
        """An array of a weight's shape and type, without its numbers."""
        if (known := e.weights.get(e.unchanged(name))) is None:
            raise Refused(f"{name} is not a constant")
        return np.broadcast_to(zero.astype(np.int8) if known.dtype == "int8" else zero, known.shape)

    try:
        encoder = read_layout(encoder_op.NAME, layout, weights, shown)
        names = dict(zip(layout_inputs(encoder_op.NAME, layout), weights, strict=True))
    except FusebertError as error:
        raise Refused(str(error)) from None
    if not layers(encoder):
        raise Refused("a layout without attention is not supported")

    def named(path: str, part: Part) -> Part:
        bias = names.get(f"{path}.bias", "")
        if isinstance(part, Norm):
            gain = names.get(f"{path}.gain", "")
            size = 0 if part.gain is None else len(part.gain)
            return Norm(_Named(gain, size), bias, part.epsilon, part.kind)  # type: ignore[arg-type]
        turned = names.get(f"{path}.kernel")
        weight = names[f"{path}.weight"] if turned is None else e.transpose(turned, e.constant([1, 0]))
        if part.scales is not None:
            weight = e.dequantize(weight, names[f"{path}.scales"], axis=0)
            if (inputs := names.get(f"{path}.input_scales")) is not None:
                weight = e.div(weight, inputs)
        return NamedLinear(_Named(weight, len(part.weight)), bias)  # type: ignore[arg-type]

    made = map_parts(encoder, named)
    blocks = (_with_tables(block, f"block.{i}.position", names) for i, block in enumerate(made.blocks))
    return replace(made, blocks=tuple(blocks))


def _with_tables(block: Block, path: str, names: Mapping[str, str]) -> Block:
    """A block whose position, if it has one, has names in place of its tables."""
    body = block.body
    position = body.position if isinstance(body, Attention) else None
    if position is None:
        return block
    arrays = {field.name: getattr(position, field.name) for field in fields(position)}
    tables: dict[str, Any] = {
        name: _Named(names[f"{path}.{name}"], len(array))
        for name, array in arrays.items()
        if isinstance(array, np.ndarray)
    }
    return replace(block, body=replace(body, position=replace(position, **tables)))  # type: ignore[arg-type]


class _Named(str):
    """The name of a weight, which is as long as the weight: the formula compares lengths."""

    __slots__ = ("_rows",)
    _rows: int

    def __new__(cls, name: str, rows: int) -> Self:
        made = super().__new__(cls, name)
        made._rows = rows
        return made

    def __len__(self) -> int:
        return self._rows


def _onnx_part(e: Emitter, own: _Own, epsilons: tuple[float, float]) -> _Part:
    def given(path: str, field: str) -> str:
        name = own.get((path, field), "")
        return name if name and 0 not in (e.sizes(e.unchanged(name)) or (0,)) else ""

    def part(path: str) -> Any:
        bias = given(path, "bias")
        if is_norm(path):
            gain = given(path, "gain")
            return Norm(gain, bias, epsilons[path.startswith("feed_forward")])  # type: ignore[arg-type]
        weight = given(path, "weight")
        if e.dtype(weight) == "int8":
            weight = e.dequantize(weight, given(path, "scales"), axis=0)
            if inputs := given(path, "input_scales"):
                weight = e.div(weight, inputs)
        return NamedLinear(weight, bias)  # type: ignore[arg-type]

    return part


def _bert(op: str, e: Emitter, rows: str, mask: str, /, *weights: str, **attributes: Any) -> tuple[str, ...]:
    """`Bert` and `BertHiddenStates`; docs/tensorflow-op.md."""
    settings = _settings(op, attributes)
    shapes = {name: options[0] for name, options in shapes_of(settings).items()}
    blocks: list[Block] = []
    for own in _layers(weights, WEIGHTS, settings):
        blocks += _post_norm(_tensorflow_part(e, own, shapes, settings["LayerNormEpsilon"]), settings)
    return _masked(e, rows, mask, Encoder.of(0, tuple(blocks)), settings)


def _compact(op: str, e: Emitter, rows: str, mask: str, /, *weights: str, **attributes: Any) -> tuple[str, ...]:
    """`BertCompact` and `BertCompactHiddenStates`, whose weights are those of `fusebert.Encoder`."""
    settings = _settings(op, attributes)
    epsilons = (settings["LayerNormEpsilon"],) * 2
    blocks: list[Block] = []
    for own in _layers(weights, COMPACT_WEIGHTS, settings):
        blocks += _post_norm(_onnx_part(e, own, epsilons), settings)
    return _masked(e, rows, mask, Encoder.of(0, tuple(blocks)), settings)


def _form(e: Emitter, rows: str, mask: str, /, *weights: str, **attributes: Any) -> tuple[str, ...]:
    """`EncoderForm`, whose layout is that of `fusebert.Encoder`."""
    settings = _settings(FORM, attributes)
    return _masked(e, rows, mask, _laid_out(e, str(settings["Layout"]), weights), settings)


def _settings(op: str, attributes: Mapping[str, Any]) -> Settings:
    settings = with_defaults(op, attributes)
    for name, kind in _KINDS.items():
        if name in settings and not isinstance(settings[name], kind):
            raise Refused(f"attribute {name} of {op} has an unexpected type")
    return settings


def _layers(weights: Sequence[str], fields: Sequence[tuple[str, str]], settings: Settings) -> list[_Own]:
    """The weights of every layer by part and field."""
    count, rest = divmod(len(weights), len(fields))
    heads, hidden = settings["NumAttentionHeads"], settings["HiddenSize"]
    if rest or not count or heads < 1 or hidden % heads:
        raise Refused(f"{len(weights)} weights and {heads} heads of {hidden} are no layers")
    return [dict(zip(fields, weights[layer * len(fields) :], strict=False)) for layer in range(count)]


def _post_norm(part: _Part, settings: Settings) -> tuple[Block, Block]:
    heads, hidden = settings["NumAttentionHeads"], settings["HiddenSize"]
    scale = settings["AttentionScale"] or 1 / sqrt(hidden / heads)
    return post_norm_layer(part, heads, _known(settings["HiddenAct"]), scale)


def _masked(e: Emitter, rows: str, mask: str, encoder: Encoder, settings: Settings) -> tuple[str, ...]:
    """The rows after the last layer, then those after each."""
    rank = _rank(e, mask) or (4 if settings["AdditiveMask"] else 2)
    last = e.gather(e.emit("shape", mask, to="int64"), e.constant([-1]), axis=0, batch_dims=0)
    added = mask if settings["AdditiveMask"] else _hiding(e, mask, settings["MaskValue"])
    added = added if rank == 4 else e.unsqueeze(added, e.constant([1, 2] if rank == 2 else [1]))
    made = _run(_Words(e, rows, last), rows, lambda _: added, encoder)
    return made[-1], *made


def _hiding(e: Emitter, mask: str, value: float) -> str:
    shown = e.cast(mask, to="float32")
    return e.mul(e.sub(e.constant(1.0, "float32"), shown), e.constant(value, "float32"))


def _tensorflow_part(e: Emitter, own: _Own, shapes: Any, epsilon: float) -> _Part:
    def plain(path: str, field: str) -> str:
        return e.reshape(own[path, field], e.constant(shapes[path, field]), zero_copies=False)

    def part(path: str) -> Any:
        if is_norm(path):
            return Norm(plain(path, "gain"), plain(path, "bias"), epsilon)  # type: ignore[arg-type]
        weight = e.transpose(plain(path, "weight"), e.constant([1, 0]))
        return NamedLinear(weight, plain(path, "bias"))  # type: ignore[arg-type]

    return part


def _known(activation: str) -> str:
    if activation not in ACTIVATIONS:
        raise Refused(f"activation {activation} is unknown")
    return activation


def _rank(e: Emitter, tensor: str) -> int | None:
    """How many dimensions a tensor has, as far as the file tells."""
    shape = e.sizes(e.unchanged(tensor)) if tensor else None
    return None if shape is None else len(shape)


def _size(e: Emitter, weight: str, axis: int) -> int:
    if weight not in e.weights or len(e.weights[weight].shape) != 2:
        raise Refused(f"{weight} is not a constant matrix")
    return e.weights[weight].shape[axis]


RULES: dict[str, Rule] = {
    encoder_op.NAME: _encoder,
    **{op: partial(_bert, op) for op in OPS},
    **{op: partial(_compact, op) for op in COMPACT},
    FORM: _form,
}
