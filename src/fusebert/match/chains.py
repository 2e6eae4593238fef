"""Chains: blocks to layers, and layers that read each other's output to encoders, divided where the mask changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fusebert.match.findings import Layer, Mask, Match, Refused
from fusebert.match.mask import Masks
from fusebert.match.patterns import FORMS
from fusebert.ops.graph import Node
from fusebert.values.blocks import Attention


def layers_of(blocks: Mapping[str, Match]) -> dict[str, Layer]:
    """Each feed-forward block with the attention block that it reads, by what it makes."""
    pairs = ((blocks.get(block.bindings["x"]), block) for block in blocks.values() if not is_attention(block))
    layers = [Layer((before, block)) for before, block in pairs if before and is_attention(before)]
    inner = inside(layers)  # the sum of a post-norm layer ends one without that norm
    return {layer.output: layer for layer in layers if layer.output not in inner}


def needed(blocks: Mapping[str, Match], layers: Mapping[str, Layer]) -> dict[str, Match]:
    """The blocks that layers are made of, and those that are no part of one: the sum before a block's norm ends another
    block, without that norm."""
    parts = {id(block) for layer in layers.values() for block in layer.blocks}
    inner = inside(layers.values())
    return {output: block for output, block in blocks.items() if id(block) in parts or output not in inner}


def inside(layers: Iterable[Layer]) -> set[str]:
    """The tensors that layers make on the way to what they make."""
    made = ((layer.output, name) for layer in layers for node in layer.nodes for name in node.outputs)
    return {name for output, name in made if name != output}


def is_attention(block: Match) -> bool:
    """Whether a block's body is attention."""
    return isinstance(FORMS[block.form].body, Attention)


def chained(layers: Mapping[str, Layer]) -> list[list[Layer]]:
    """Layers one after the other, as long as each reads what the one before makes."""
    after = {layer.bindings["x"]: layer for layer in layers.values()}
    chains = []
    for layer in layers.values():
        if layer.bindings["x"] in layers and after[layer.bindings["x"]] is layer:
            continue
        chain = [layer]
        while (following := after.get(chain[-1].output)) is not None:
            chain.append(following)
        chains.append(chain)
    return chains


def same_operator(chain: list[Layer], operators: Mapping[str, Node]) -> list[list[Layer]]:
    """The chain, divided where a fused operator of ours begins or ends."""
    return _divided(chain, lambda layer: id(operators.get(layer.output)))


def same_mask(chain: list[Layer], masks: Masks) -> list[list[Layer]]:
    """The chain, divided where the mask changes."""
    return _divided(chain, lambda layer: _mask(layer, masks))


def _divided(chain: list[Layer], trait: Callable[[Layer], object]) -> list[list[Layer]]:
    parts: list[list[Layer]] = []
    for layer in chain:
        if parts and trait(layer) == trait(parts[-1][0]):
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return parts


def _mask(layer: Layer, masks: Masks) -> Mask | str:
    """What a layer's mask hides, however it is computed; the reason where it is refused."""
    read = masks.read(layer.bindings["mask"], layer.bindings["heads"])
    return read.reason if isinstance(read, Refused) else replace(read[0], added="")


def with_distances(layer: Layer, masks: Masks) -> Layer:
    """The layer with what its scores get by distance, which must have been read as a mask."""
    read = masks.read(layer.bindings["mask"], layer.bindings["heads"])
    assert not isinstance(read, Refused)
    attention, *others = layer.blocks
    return Layer((replace(attention, distances=read[1]), *others))
