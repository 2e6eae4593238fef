"""Form: all of an encoder that is no array, as plain fields, and back, with its arrays by name. The artifact has these
fields in its header, an operator in its layout; the names are those of values/traverse.py."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.artifact.header import Fields
from fusebert.formats.files import check_shape
from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import ACTIVATIONS
from fusebert.values.blocks import (
    Attention,
    Block,
    Disentangled,
    Encoder,
    FeedForward,
    Linear,
    Norm,
    Position,
    Relative,
    Rotary,
)
from fusebert.values.traverse import block_parts, scalars

MOST = 1 << 16  # blocks that run


class Arrays:
    """Arrays by name with checked shapes; errors name the file that they are in."""

    def __init__(self, where: str | Path, names: Container[str], read: Callable[[str], Array]) -> None:
        self._where, self._names, self._read = where, names, read

    def _stored(self, name: str) -> str:
        return name

    def has(self, name: str) -> bool:
        return self._stored(name) in self._names

    def get(self, name: str, shape: tuple[int | None, ...]) -> Array:
        stored = self._stored(name)
        if stored not in self._names:
            raise FusebertError(f"{self._where} has no tensor {stored}")
        array = self._read(stored)
        check_shape(self._where, stored, array, shape)
        return array

    def floats(self, name: str, shape: tuple[int | None, ...]) -> Array:
        array = self.get(name, shape)
        if array.dtype == np.int8:
            raise FusebertError(f"{self._where}: tensor {name} is I8, but must be floats")
        return array

    def linear(self, name: str, outputs: int | None, inputs: int | None) -> Linear:
        weight = self.get(f"{name}.weight", (outputs, inputs))
        rows = (weight.shape[0],)
        bias = self.floats(f"{name}.bias", rows) if self.has(f"{name}.bias") else None
        scales = self.floats(f"{name}.scales", rows) if weight.dtype == np.int8 else None
        columns = f"{name}.input_scales"
        return Linear(weight, bias, scales, self.floats(columns, (weight.shape[1],)) if self.has(columns) else None)


def describe_block(block: Block) -> dict[str, Any]:
    """The fields of a block."""
    body = block.body
    kind = "attention" if isinstance(body, Attention) else "feed_forward"
    own: dict[str, Any] = {"body": kind, **scalars(body)}
    if isinstance(body, Attention):
        own |= {"window": body.window, "position": _describe_position(body.position)}
    norms = {name: describe_norm(part) for name, part in block_parts(block) if isinstance(part, Norm)}
    return {**own, "norms": norms, **({"adds_twice": True} if block.adds_twice else {})}


def _describe_position(position: Position | None) -> dict[str, Any] | None:
    return None if position is None else {"kind": type(position).__name__.lower(), **scalars(position)}


def describe_norm(norm: Norm | None) -> dict[str, Any] | None:
    """The fields of a norm."""
    if norm is None:
        return None
    return {"kind": norm.kind, "epsilon": norm.epsilon, "has": [name for name, _ in norm.arrays()]}


def read_encoder(fields: Fields, arrays: Arrays, hidden: int) -> Encoder:
    """The encoder of `blocks`, `order` and `final`."""
    blocks = tuple(_block(own, arrays, f"block.{i}", hidden) for i, own in enumerate(fields.sections("blocks")))
    order = fields.values.get("order")
    known = range(len(blocks))
    if not isinstance(order, list) or len(order) > MOST or not all(type(i) is int and i in known for i in order):
        raise FusebertError(f"{fields.path}: order must be a list of block numbers from 0 to {len(blocks) - 1}")
    return Encoder(hidden, blocks, tuple(order), read_norm(fields, "final", arrays, "final", hidden))


def _block(fields: Fields, arrays: Arrays, path: str, hidden: int) -> Block:
    norms = fields.section("norms")

    def norm(name: str, width: int | None = hidden) -> Norm | None:
        return read_norm(norms, name, arrays, f"{path}.{name}", width)

    def inward(name: str) -> Linear:
        return arrays.linear(f"{path}.{name}", None, hidden)

    def outward(name: str) -> Linear:
        return arrays.linear(f"{path}.{name}", hidden, None)

    body: Attention | FeedForward
    if fields.choice("body", ("attention", "feed_forward")) == "attention":
        body = Attention(
            inward("query"), inward("key"), inward("value"), outward("out"), heads=fields.whole("heads", 1, 1 << 16),
            key_heads=fields.whole("key_heads", 1, 1 << 16), scale=fields.number("scale"),
            window=fields.whole("window", 0, 1 << 30) if fields.optional("window") else None,
            position=_position(fields, arrays, f"{path}.position"), query_norm=norm("query_norm", None),
            key_norm=norm("key_norm", None),
        )  # fmt: skip
    else:
        gate = inward("gate") if arrays.has(f"{path}.gate.weight") else None
        body = FeedForward(inward("up"), gate, outward("down"), fields.choice("activation", ACTIVATIONS))
    twice = fields.values.get("adds_twice") is True  # older ones have no such field
    return Block(norm("before"), body, norm("branch"), norm("after"), twice)


def _position(block: Fields, arrays: Arrays, path: str) -> Position | None:
    if not block.optional("position"):
        return None
    fields = block.section("position")
    kind = fields.choice("kind", ("rotary", "relative", "disentangled"))
    if kind == "rotary":
        return Rotary(arrays.floats(f"{path}.frequencies", (None,)))
    if kind == "relative":
        return Relative(arrays.floats(f"{path}.table", (None, None)))
    content, position = (
        arrays.floats(f"{path}.{name}", (None, None)) if arrays.has(f"{path}.{name}") else None
        for name in ("content_to_position", "position_to_content")
    )
    sizes = fields.whole("buckets", -1, 1 << 24), fields.whole("reach", 1, 1 << 24)
    return Disentangled(content, position, *sizes)


def read_norm(parent: Fields, field: str, arrays: Arrays, name: str, width: int | None) -> Norm | None:
    """The norm that is described in a field, if it is there."""
    if not parent.optional(field):
        return None
    fields = parent.section(field)
    has = fields.strings("has")
    gain, bias = (arrays.floats(f"{name}.{part}", (width,)) if part in has else None for part in ("gain", "bias"))
    return Norm(gain, bias, fields.number("epsilon", 0, 1), fields.choice("kind", ("layer", "rms")))
