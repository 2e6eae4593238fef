"""Weights of a raised graph as the values a Network is made of. They are read here, and not before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.match.distances import ByDistance
from fusebert.match.findings import FoundEncoder, Lifted, Match
from fusebert.match.patterns import FORMS, FREQUENCIES
from fusebert.ops.graph import Array, Node
from fusebert.values.blocks import Attention, Block, Encoder, Linear, Norm, Relative, Rotary
from fusebert.values.traverse import Part, map_block


class Weights:
    """Reads linears, norms and blocks off a raised graph."""

    def __init__(self, raised: Lifted, found: FoundEncoder) -> None:
        self.raised, self.graph, self.found = raised, raised.graph, found
        self._maker = {name: node for node in raised.graph.nodes for name in node.outputs}

    def maker(self, tensor: str) -> Node | None:
        """The node that makes a tensor."""
        return self._maker.get(tensor)

    def made(self, tensor: str, word: str) -> Node | None:
        """The node that makes a tensor, if it is this word."""
        node = self._maker.get(tensor)
        return node if node is not None and node.op == word else None

    def norm(self, node: Node) -> Norm:
        """What a norm around the encoder has, a LayerNorm gain and bias in any case."""
        gain, bias = (*node.inputs[1:], "", "")[:2]
        if node.op == "rms_norm":
            return self._norm(gain, None, float(node.attributes["epsilon"]), "rms")
        read = self._norm(gain, bias, float(node.attributes["epsilon"]))
        width = next((len(array) for _, array in read.arrays()), self.found.hidden)
        ones, zeros = np.ones(width, np.float32), np.zeros(width, np.float32)
        return replace(
            read, gain=ones if read.gain is None else read.gain, bias=zeros if read.bias is None else read.bias
        )

    def linear(self, node: Node) -> Linear:
        """What a linear has."""
        return self._linear(node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None)

    def encoder(self, shared: bool = False) -> Encoder:
        """The encoder; where blocks may be `shared`, one whose weights are those of an earlier one is that one."""
        every = [block for layer in self.found.layers for block in layer.blocks]
        own: list[Match] = []
        order = []
        for block in every:
            earlier = (number for number, other in enumerate(own) if shared and self._same(block, other))
            order.append(next(earlier, len(own)))
            own += [block] * (order[-1] == len(own))
        final = None if self.found.final is None else self.norm(self.found.final)
        return Encoder(self.found.hidden, tuple(map(self.block, own)), tuple(order), final)

    def _same(self, block: Match, other: Match) -> bool:
        """Whether two blocks compute the same."""
        names = block.bindings.keys() - {"x", "mask"}
        if block.form != other.form or block.distances is not other.distances:
            return False
        pairs = [(block.bindings[name], other.bindings.get(name)) for name in sorted(names)]
        return all(a == b or (isinstance(a, str) and isinstance(b, str) and self._equal(a, b)) for a, b in pairs)

    def _equal(self, name: str, other: str) -> bool:
        """Whether two weights hold the same numbers, as exporters write those that layers share."""
        weights = self.graph.weights
        if name not in weights or other not in weights or weights[name].shape != weights[other].shape:
            return False
        return np.array_equal(self.numbers(name), self.numbers(other))

    def block(self, match: Match) -> Block:
        """A matched block: its form, with weights and numbers in place of their names."""
        form, bindings = FORMS[match.form], match.bindings
        named = {field.name: getattr(form.body, field.name) for field in fields(form.body)}
        numbers: dict[str, Any] = {name: bindings[hole] for name, hole in named.items() if isinstance(hole, str)}
        body: Any = replace(form.body, **numbers)
        if isinstance(body, Attention):
            turns = bindings[FREQUENCIES]
            rotary = Rotary(np.asarray(self.numbers(turns), np.float32)) if turns else None
            body = _with_distances(replace(body, position=rotary), match.distances)
        filled = replace(form, body=body)
        return map_block(filled, lambda _, part: self._part(part, bindings))

    def _part(self, named: Part, bindings: Mapping[str, Any]) -> Part:
        """A part of a form, whose arrays are names, with the weights they stand for."""
        given = {field: bindings[str(name)] for field, name in named.arrays()}
        if isinstance(named, Norm):
            return self._norm(given.get("gain"), given.get("bias"), float(bindings[str(named.epsilon)]), named.kind)
        return self._linear(given["weight"], given.get("bias"))

    def _array(self, name: str | None) -> Array | None:
        return self.numbers(name) if name else None

    def numbers(self, name: str) -> Array:
        """The numbers of a weight."""
        weight = self.graph.weights[name]
        if not weight.is_numbers:
            raise UnsupportedError(f"weight {name} holds {weight.dtype}, where numbers are expected")
        return weight.read()

    def _linear(self, weight: str, bias: str | None) -> Linear:
        matrix, offset = self._array(weight), self._array(bias)
        assert matrix is not None
        return Linear(_usable(matrix), None if offset is None else np.asarray(offset, np.float32).reshape(-1))

    def _norm(self, gain: str | None, bias: str | None, epsilon: float, kind: str = "layer") -> Norm:
        arrays = (None if not name else np.asarray(self._array(name), np.float32) for name in (gain, bias))
        return Norm(next(arrays), next(arrays), epsilon, kind)


def _with_distances(body: Attention, distances: ByDistance) -> Attention:
    """The body with what its scores get by distance."""
    table = distances.table
    if table is None:
        return replace(body, window=distances.window)
    if body.position is not None:
        raise UnsupportedError("an attention has rotary positions and numbers by distance, of which it can have one")
    table = table if len(table) == body.heads else np.repeat(table, body.heads, 0)
    return replace(body, window=distances.window, position=Relative(table))


def keeps_order(node: Node) -> bool:
    """Whether an `arrange` only splits and merges dimensions."""
    order = node.attributes["order"]
    return tuple(order) == tuple(sorted(order))


def _usable(weight: Array) -> Array:
    """Weights the engine takes as they are; others become float32."""
    return weight if weight.dtype.name in ("float32", "float16", "bfloat16") else weight.astype(np.float32)
