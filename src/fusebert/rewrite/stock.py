"""Stock: an encoder, and the embeddings before it, as the fused kernels that ONNX Runtime itself has. A Cut and weights
in, nodes and constants out, for `formats.onnx_write`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.formats.onnx.edit import NewNode
from fusebert.formats.onnx.types import NUMBERS
from fusebert.match import Cut
from fusebert.ops.graph import Array
from fusebert.values.blocks import Attention, Block, Encoder, FeedForward, Linear, Norm
from fusebert.values.network import Embeddings
from fusebert.values.traverse import beyond_bert, layers

MICROSOFT = "com.microsoft"
_INT32, _INT64 = NUMBERS["int32"], NUMBERS["int64"]
_NUMBERS_ARE_INPUTS = 13  # the operation set from which on
_BLOCK = 32  # weights that share a scale in MatMulNBits


@dataclass
class Stock:
    """Nodes that are being written, under names of their own."""

    name: str
    opset: int
    int8: bool = False
    fast_gelu: bool = False  # tanh GELU for erf GELU too
    nodes: list[NewNode] = field(default_factory=list)
    weights: dict[str, Array] = field(default_factory=dict)

    def say(self, operation: str, *inputs: str, domain: str = MICROSOFT, output: str = "", **attributes: Any) -> str:
        """Adds a node; returns what it makes."""
        made = output or f"{self.name}.{len(self.nodes)}"
        given = tuple(inputs)
        while given and not given[-1]:
            given = given[:-1]
        self.nodes.append(NewNode(operation, domain, given, (made,), attributes, f"{self.name}.{operation}.{made}"))
        return made

    def parted(self, operation: str, x: str, name: str, numbers: list[int], **attributes: Any) -> str:
        """Adds a node whose numbers are an attribute in old operation sets and an input in newer ones."""
        if self.opset < _NUMBERS_ARE_INPUTS:
            return self.say(operation, x, domain="", **{**attributes, name: numbers})
        return self.say(operation, x, self.constant(np.array(numbers, np.int64)), domain="", **attributes)

    def constant(self, array: Array) -> str:
        """Adds a weight; returns its name."""
        name = f"{self.name}.weight.{len(self.weights)}"
        self.weights[name] = np.ascontiguousarray(array)
        return name

    def vector(self, array: Array | None, width: int) -> str:
        """A bias, of zeros where there is none."""
        return self.constant(np.zeros(width, np.float32) if array is None else np.asarray(array, np.float32))

    def product(self, x: str, weight: Array) -> str:
        """x times the transposed weight."""
        if not self.int8:
            return self.say("MatMul", x, self.constant(weight.T), domain="")
        rows, columns = weight.shape
        blocks = -(-columns // _BLOCK)
        padded = np.zeros((rows, blocks * _BLOCK), np.float32)
        padded[:, :columns] = weight
        padded = padded.reshape(rows, blocks, _BLOCK)
        scales = np.abs(padded).max(-1) / 127
        values = np.rint(padded / np.where(scales > 0, scales, 1)[..., None]) + 128
        sizes = {"K": columns, "N": rows, "bits": 8, "block_size": _BLOCK, "accuracy_level": 4}
        packed = self.constant(values.astype(np.uint8))
        return self.say("MatMulNBits", x, packed, self.constant(scales.astype(np.float32).reshape(-1)), **sizes)


def check_stock(encoder: Encoder, where: object) -> None:
    """Refuses an encoder that these kernels cannot express, by what it has and they have not."""
    if beyond := beyond_bert(encoder):
        raise UnsupportedError(
            f"{where}: ONNX Runtime's stock kernels cannot carry {', '.join(beyond)}; fusebert's operator can "
            "(--for onnxruntime)"
        )


def stock_encoder(stock: Stock, place: Cut, encoder: Encoder, multi_head: bool) -> None:
    """Adds the nodes of an encoder: Attention, SkipLayerNormalization and BiasGelu of every layer."""
    check_stock(encoder, stock.name)
    rows, mask = place.rows, _mask(stock, place)
    if place.flat:
        hidden = stock.constant(np.array([encoder.hidden_size], np.int64))
        shape = stock.say("Concat", stock.say("Shape", place.mask, domain=""), hidden, domain="", axis=0)
        rows = stock.say("Reshape", rows, shape, domain="")
    every = layers(encoder)
    outputs = dict(zip((len(every) - 1, *place.taps), place.outputs, strict=True))
    for number, places in enumerate(every):
        wanted = outputs.get(number, "")
        attention, feed_forward = (encoder.blocks[encoder.order[i]] for i in places)
        rows = _attention(stock, attention, rows, mask, multi_head)
        rows = _feed_forward(stock, feed_forward, rows, "" if place.flat else wanted)
        if place.flat and wanted:
            flat = stock.constant(np.array([-1, encoder.hidden_size], np.int64))
            stock.say("Reshape", rows, flat, domain="", output=wanted)


def stock_embeddings(
    stock: Stock, embeddings: Embeddings, inputs: dict[str, tuple[str, str]], positions: str, output: str
) -> None:
    """Adds EmbedLayerNormalization. `inputs` are ids and types with their element types; `positions` is the tensor that
    has them, where they do not just count from 0."""
    ids, types = (_as_int32(stock, *inputs[role]) if role in inputs else "" for role in ("ids", "types"))
    if embeddings.project is not None:
        raise UnsupportedError("the embeddings are narrower than the encoder, which the stock kernel cannot carry")
    if embeddings.position is None or embeddings.norm is None:
        raise UnsupportedError("the embeddings have no positions or no norm, which the stock kernel cannot do without")
    tables = [embeddings.word, embeddings.position, embeddings.kind if types else None]
    word, position, kind = ("" if t is None else stock.constant(np.asarray(t, np.float32)) for t in tables)
    norm = [stock.constant(array) for array in _gain_and_bias(embeddings.norm, embeddings.word.shape[1])]
    made = [output, f"{stock.name}.mask_index"]
    given = (ids, types, word, position, kind, *norm, "", positions)
    while not given[-1]:
        given = given[:-1]
    attributes = {"epsilon": float(embeddings.norm.epsilon)}
    stock.nodes.append(
        NewNode("EmbedLayerNormalization", MICROSOFT, given, tuple(made), attributes, f"{stock.name}.embeddings")
    )


def _as_int32(stock: Stock, tensor: str, kind: str) -> str:
    return tensor if kind == "int32" else stock.say("Cast", tensor, domain="", to=_INT32)


def _mask(stock: Stock, place: Cut) -> str:
    """The mask as the kernels take it: int32, raw rows or lengths."""
    if place.mask_kind == "none":
        return ""
    if place.mask_kind == "additive":
        raise UnsupportedError(f"{place.mask} is added to the scores, which the stock kernels take in full size only")
    declared = place.mask_type
    if place.mask_kind == "lengths" and declared is not None and len(declared.shape or ()) == 2:
        whole = stock.say("Cast", place.mask, domain="", to=_INT64)
        return stock.say("Cast", stock.parted("ReduceSum", whole, "axes", [1], keepdims=0), domain="", to=_INT32)
    return _as_int32(stock, place.mask, declared.dtype if declared else "")


def _attention(stock: Stock, block: Block, x: str, mask: str, multi_head: bool) -> str:
    body = block.body
    assert isinstance(body, Attention)
    linears = body.query, body.key, body.value
    sizes = [len(linear.weight) for linear in linears]
    weight = np.concatenate([linear.floats() for linear in linears])
    bias = np.concatenate([_bias(linear) for linear in linears])
    attributes: dict[str, Any] = {"num_heads": body.heads, "scale": float(body.scale)}
    if multi_head or stock.int8:
        made = stock.parted("Split", stock.product(x, weight), "split", sizes, axis=-1)
        parts = [f"{made}.{part}" for part in "qkv"]
        stock.nodes[-1] = replace(stock.nodes[-1], outputs=tuple(parts))
        context = stock.say("MultiHeadAttention", *parts, stock.constant(bias), mask, **attributes)
    else:
        if len(set(sizes)) > 1:
            attributes["qkv_hidden_sizes"] = sizes
        context = stock.say("Attention", x, stock.constant(weight.T), stock.constant(bias), mask, **attributes)
    return _skip_norm(stock, stock.product(context, body.out.floats()), x, block.after, body.out)


def _feed_forward(stock: Stock, block: Block, x: str, output: str) -> str:
    body = block.body
    assert isinstance(body, FeedForward)
    inner = _activation(stock, stock.product(x, body.up.floats()), body)
    return _skip_norm(stock, stock.product(inner, body.down.floats()), x, block.after, body.down, output)


def _bias(linear: Linear) -> Array:
    return np.zeros(len(linear.weight), np.float32) if linear.bias is None else linear.bias


def _gain_and_bias(norm: Norm, width: int) -> tuple[Array, Array]:
    gain = np.ones(width, np.float32) if norm.gain is None else norm.gain
    return gain, np.zeros(width, np.float32) if norm.bias is None else norm.bias


def _skip_norm(stock: Stock, x: str, skip: str, norm: Norm | None, linear: Linear, output: str = "") -> str:
    assert norm is not None  # the finder knows no layer without one
    given = [stock.constant(array) for array in (*_gain_and_bias(norm, len(linear.weight)), _bias(linear))]
    return stock.say("SkipLayerNormalization", x, skip, *given, output=output, epsilon=float(norm.epsilon))


def _activation(stock: Stock, x: str, body: FeedForward) -> str:
    bias = stock.vector(body.up.bias, len(body.up.weight))
    if body.activation == "gelu_tanh" or (body.activation == "gelu_erf" and stock.fast_gelu):
        return stock.say("FastGelu", x, bias)
    if body.activation == "gelu_erf":
        return stock.say("BiasGelu", x, bias)
    summed = stock.say("Add", x, bias, domain="")
    if body.activation == "gelu_quick":
        return stock.say("QuickGelu", summed, alpha=1.702)
    if body.activation in ("relu", "tanh"):
        return stock.say(body.activation.capitalize(), summed, domain="")
    raise UnsupportedError(f"no stock kernel computes the activation {body.activation}")
