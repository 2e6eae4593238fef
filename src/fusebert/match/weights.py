"""Pieces: weights of a raised graph as the values a Network is made of. They are read here, and not before."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fusebert.match.find import Found
from fusebert.match.lift.state import Lifted
from fusebert.ops.graph import Array, Node
from fusebert.values.blocks import LINEARS, NORMS, Layer, Linear, Norm


class Pieces:
    """Reads linears, norms and layers off a raised graph."""

    def __init__(self, raised: Lifted, found: Found) -> None:
        self.raised, self.graph, self.found = raised, raised.graph, found
        self._maker = {name: node for node in raised.graph.nodes for name in node.outputs}

    def maker(self, tensor: str) -> Node | None:
        """The node that makes a tensor."""
        return self._maker.get(tensor)

    def made(self, tensor: str, word: str) -> Node | None:
        """The node that makes a tensor, if it is this word."""
        node = self._maker.get(tensor)
        return node if node is not None and node.word == word else None

    def norm(self, node: Node) -> Norm:
        """What a layer_norm has."""
        gain, bias = (*node.inputs[1:], "", "")[:2]
        width = next((self.graph.weights[n].shape[0] for n in (gain, bias) if n), self.found.hidden)
        return self._norm(width, gain, bias, float(node.attributes["epsilon"]))

    def linear(self, node: Node) -> Linear:
        """What a linear has."""
        return self._linear(node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None)

    def layer(self, holes: Mapping[str, Any]) -> Layer:
        """What a matched layer has."""
        linears = {name: self._linear(holes[f"{name}.weight"], holes[f"{name}.bias"]) for name in LINEARS}
        width = len(linears["attention_out"].weight)
        norms = {
            name: self._norm(width, holes[f"{name}.gain"], holes[f"{name}.bias"], float(holes[f"{name}.epsilon"]))
            for name in NORMS
        }
        parts: dict[str, Any] = {**linears, **norms}
        return Layer(
            **parts, heads=int(holes["heads"]), activation=str(holes["activation"]), scale=float(holes["scale"])
        )

    def _array(self, name: str | None) -> Array | None:
        return None if not name else self.graph.weights[name].read()

    def _linear(self, weight: str, bias: str | None) -> Linear:
        matrix, offset = self._array(weight), self._array(bias)
        assert matrix is not None
        return Linear(_usable(matrix), None if offset is None else np.asarray(offset, np.float32).reshape(-1))

    def _norm(self, width: int, gain: str | None, bias: str | None, epsilon: float) -> Norm:
        scale, offset = self._array(gain), self._array(bias)
        return Norm(
            np.ones(width, np.float32) if scale is None else np.asarray(scale, np.float32),
            np.zeros(width, np.float32) if offset is None else np.asarray(offset, np.float32),
            epsilon,
        )


def keeps_order(node: Node) -> bool:
    """Whether an `arrange` only splits and merges dimensions."""
    order = node.attributes["order"]
    return tuple(order) == tuple(sorted(order))


def _usable(weight: Array) -> Array:
    """Weights the engine takes as they are; others become float32."""
    return weight if weight.dtype.name in ("float32", "float16", "bfloat16") else weight.astype(np.float32)
