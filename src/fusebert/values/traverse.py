"""Traversal of an encoder by its dataclass fields: whoever stores, packs, quantises or hands over weights iterates
here, so no list of parts is written anywhere else. For a post-norm BERT layer the order is query, key, value, out,
after, up, down, after, each with its weight (or gain) and bias."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from fusebert.ops.graph import Array
from fusebert.values.blocks import Attention, Block, Encoder, FeedForward, Linear, Norm, Position, default_scale

Part = Linear | Norm


def parts(encoder: Encoder) -> Iterator[tuple[str, Part]]:
    """Every Linear and Norm with its path, such as `block.3.up`; each block once, however often it runs."""
    for number, block in enumerate(encoder.blocks):
        for name, part in block_parts(block):
            yield f"block.{number}.{name}", part
    if encoder.final is not None:
        yield "final", encoder.final


def block_parts(block: Block) -> Iterator[tuple[str, Part]]:
    """Every Linear and Norm of a block by the name of its field."""
    for value in _children(block):
        if isinstance(value[1], Attention | FeedForward):
            yield from ((name, part) for name, part in _children(value[1]) if isinstance(part, Linear | Norm))
        elif isinstance(value[1], Norm):
            yield value


def scalars(value: Attention | FeedForward | Position) -> dict[str, int | float | str]:
    """The numbers and words of a body or a position, by the names of their fields."""
    return {name: own for name, own in _children(value) if isinstance(own, int | float | str)}


def weights(encoder: Encoder) -> Iterator[tuple[str, Array]]:
    """Every array with its path, such as `block.3.up.weight` or `block.3.position.table`."""
    for path, part in parts(encoder):
        for name, array in part.arrays():
            yield f"{path}.{name}", array
    for number, block in enumerate(encoder.blocks):
        if isinstance(block.body, Attention) and block.body.position is not None:
            for name, value in _children(block.body.position):
                if isinstance(value, np.ndarray):
                    yield f"block.{number}.position.{name}", value


def map_parts(encoder: Encoder, change: Callable[[str, Part], Part]) -> Encoder:
    """The encoder with every part replaced by what `change(path, part)` returns."""
    blocks = tuple(
        map_block(block, lambda name, part, number=number: change(f"block.{number}.{name}", part))  # type: ignore[misc]
        for number, block in enumerate(encoder.blocks)
    )
    final: Any = None if encoder.final is None else change("final", encoder.final)
    return replace(encoder, blocks=blocks, final=final)


def map_block(block: Block, change: Callable[[str, Part], Part]) -> Block:
    """The block with every part replaced by what `change(name, part)` returns."""
    changed: dict[str, Any] = {
        name: replace(value, **_changed(value, change)) if isinstance(value, Attention | FeedForward) else value
        for name, value in _children(block)
    }
    return replace(block, **{**changed, **_changed(block, change)})


def layers(encoder: Encoder) -> tuple[range, ...]:
    """The places in `order` that make up each layer; a layer begins with an attention."""
    begins = [i for i, number in enumerate(encoder.order) if isinstance(encoder.blocks[number].body, Attention)]
    ends = [*begins[1:], *[len(encoder.order)] * bool(begins)]
    return tuple(range(begin, end) for begin, end in zip(begins, ends, strict=True))


def layer_encoder(encoder: Encoder, places: range) -> Encoder:
    """A layer by itself."""
    return Encoder.of(encoder.hidden_size, tuple(encoder.blocks[encoder.order[place]] for place in places))


def in_order(encoder: Encoder) -> Encoder:
    """The same encoder with a block for every place in its order."""
    return replace(encoder, blocks=tuple(encoder.blocks[i] for i in encoder.order), order=(*range(len(encoder.order)),))


def post_norm_layer(part: Callable[[str], Any], heads: Any, activation: Any, scale: Any = None) -> tuple[Block, Block]:
    """The two blocks of a BERT layer, of the parts that `part(path)` gives for paths such as `attention.query` and
    `feed_forward.after`; `scale` is that of the head size unless given."""
    query = part("attention.query")
    linears = query, part("attention.key"), part("attention.value"), part("attention.out")
    attention = Attention(*linears, heads, heads, default_scale(query, heads) if scale is None else scale)
    feed_forward = FeedForward(part("feed_forward.up"), None, part("feed_forward.down"), activation)
    return (
        Block(None, attention, None, part("attention.after")),
        Block(None, feed_forward, None, part("feed_forward.after")),
    )


def beyond_bert(encoder: Encoder) -> tuple[str, ...]:
    """What an encoder has that BERT's layers have not, in words; none of one that a kernel for BERT can carry."""
    bodies = [block.body for block in encoder.blocks]
    attentions = [body for body in bodies if isinstance(body, Attention)]
    kinds = [type(body) for body in bodies]
    beyond = {
        "blocks that do not take turns": kinds != [Attention, FeedForward] * (len(bodies) // 2),
        "blocks that run more than once": encoder.order != tuple(range(len(bodies))),
        "norms before a block": any(block.before is not None for block in encoder.blocks),
        "norms inside a block": any(block.branch is not None or block.adds_twice for block in encoder.blocks),
        "blocks without a norm": any(block.after is None for block in encoder.blocks),
        "a final norm": encoder.final is not None,
        "RMSNorm": any(isinstance(part, Norm) and part.kind == "rms" for _, part in parts(encoder)),
        "gated feed-forwards": any(isinstance(body, FeedForward) and body.gate is not None for body in bodies),
        "more than one activation": len({body.activation for body in bodies if isinstance(body, FeedForward)}) > 1,
        "shared key heads": any(body.key_heads != body.heads for body in attentions),
        "norms of queries": any(body.query_norm is not None or body.key_norm is not None for body in attentions),
        "windows": any(body.window is not None for body in attentions),
    }
    positions = {type(body.position).__name__.lower() for body in attentions if body.position is not None}
    return (*(f"{kind} positions" for kind in sorted(positions)), *(what for what, is_so in beyond.items() if is_so))


def is_norm(path: str) -> bool:
    """Whether a path of POST_NORM_PARTS names a norm."""
    return path.endswith(".after")


def _post_norm_parts() -> Iterator[str]:
    def named(path: str) -> Any:
        return Norm(path, None, 0.0) if is_norm(path) else Linear(path)  # type: ignore[arg-type]

    for block in post_norm_layer(named, 1, "identity", 1.0):
        for _, part in block_parts(block):
            yield from (path for _, path in part.arrays())  # type: ignore[misc]


def _children(value: Block | Attention | FeedForward | Position) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(value, field.name)) for field in fields(value))


def _changed(value: Any, change: Callable[[str, Part], Part]) -> dict[str, Any]:
    return {name: change(name, part) for name, part in _children(value) if isinstance(part, Linear | Norm)}


POST_NORM_PARTS = tuple(_post_norm_parts())  # a BERT layer's, in the order in which operators take them
