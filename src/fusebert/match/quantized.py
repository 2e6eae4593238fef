"""Quantised: a translated graph that computes with 8-bit numbers -> the floating-point one that it stands for. Weights
become floats again, which is exact; activations are no longer rounded, so that it computes what the model did before it
was quantised, but for its weights. What rounds in a way that is not known stays as it is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fusebert.match.findings import RuleRow, label
from fusebert.match.inline import ordered
from fusebert.match.lift.shapes import words
from fusebert.ops.graph import Graph, Node

_MOVES = words("""
    identity reshape transpose squeeze unsqueeze expand tile slice strided_slice gather split unstack
""")  # of their first input's numbers, whatever those are
_MOST_COMPARED = 1 << 16  # numbers of a scale


@dataclass(frozen=True)
class Unrounded:
    """The graph in floating point, the nodes whose 8-bit numbers became floats, and a row for each."""

    graph: Graph
    nodes: tuple[str, ...] = ()
    rows: tuple[RuleRow, ...] = ()


def unround(graph: Graph) -> Unrounded:
    """Takes the rounding out of a translated graph."""
    if not any(node.op in ("quantize", "dynamic_quantize", "dequantize") for node in graph.nodes):
        return Unrounded(graph)
    unrounding = _Unrounding(graph)
    for node in graph.nodes:
        unrounding.take(node)
    made = ordered(replace(graph, nodes=tuple(unrounding.nodes)))
    return Unrounded(made, tuple(unrounding.changed), tuple(unrounding.rows))


@dataclass(frozen=True)
class _Rounded:
    """What bytes were made of, and with which scale and zero point."""

    floats: str
    scale: str
    zero: str


class _Unrounding:
    """The nodes of the new graph, as far as the old one has been gone through."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._maker = {name: node for node in graph.nodes for name in node.outputs if name}
        self._rounded: dict[str, _Rounded] = {}
        self.nodes: list[Node] = []
        self.changed: list[str] = []
        self.rows: list[RuleRow] = []

    def take(self, node: Node) -> None:
        """Adds a node as it is, or what it is without rounding."""
        if node.op == "dequantize" and (floats := self._floats(node)) is not None:
            self._become(node, "identity", (floats,))
        elif node.op != "mul" or not self._product(node):
            self.nodes.append(node)
            self._remember(node)

    def _become(self, node: Node, op: str, inputs: tuple[str, ...], *others: Node, **attributes: Any) -> None:
        """Adds an operation in place of a node, and of others that led to it."""
        self.nodes.append(Node(op, inputs, node.outputs, attributes, node.name, node.function))
        self.changed.append(node.name)
        self.rows.append(RuleRow("translate", "unround", tuple(map(label, (*others, node))), op))

    def _remember(self, node: Node) -> None:
        """Notes what a node's bytes were before; where it only moves them, the floats are moved beside them."""
        x, scale, zero = (*node.inputs, "", "", "")[:3]
        if node.op == "quantize":
            self._rounded[node.outputs[0]] = _Rounded(x, scale, zero)
        elif node.op == "dynamic_quantize" and len(node.outputs) == 3:
            self._rounded[node.outputs[0]] = _Rounded(x, *node.outputs[1:])
        elif node.op in _MOVES and (before := self._rounded.get(x)) is not None:
            outputs = tuple(name and f"{name} as floats" for name in node.outputs)
            self.nodes.append(replace(node, inputs=(before.floats, *node.inputs[1:]), outputs=outputs))
            for name, floats in zip(node.outputs, outputs, strict=True):
                self._rounded[name] = replace(before, floats=floats)

    def _floats(self, node: Node) -> str | None:
        """What a node makes of bytes, if they were floats before or are rows of a table."""
        whole, scale, zero = (*node.inputs, "", "")[:3]
        before, made = self._rounded.get(whole), self._maker.get(whole)
        if before is not None and self._is_same(before.scale, scale) and self._is_same(before.zero, zero):
            return before.floats
        if made is None or made.op != "gather" or made.inputs[0] not in self._graph.weights:
            return None
        if not scale or any(math.prod(self._shape(name)) != 1 for name in (scale, zero) if name):
            return None
        table, rows = f"{node.outputs[0]} table", f"{node.outputs[0]} rows"
        self.nodes.append(replace(node, inputs=(made.inputs[0], *node.inputs[1:]), outputs=(table,)))
        self.nodes.append(replace(made, inputs=(table, *made.inputs[1:]), outputs=(rows,)))
        return rows

    def _product(self, node: Node) -> bool:
        """A product of bytes times the scales of both sides becomes a product of floats."""
        made = [self._maker.get(name) for name in node.inputs]
        scales = next((one for one in made if one is not None and one.op == "mul"), None)
        whole = next((one for one in made if one is not None and one is not scales), None)
        product = self._maker.get(whole.inputs[0]) if whole is not None and whole.op == "cast" else whole
        if scales is None or whole is None or product is None or product.op != "matmul_integer":
            return False
        a, b, a_zero, b_zero = (*product.inputs, "", "")[:4]
        before = self._rounded.get(a)
        for a_scale, b_scale in (scales.inputs, scales.inputs[::-1]):
            if before is not None and self._is_same(before.scale, a_scale) and self._is_same(before.zero, a_zero):
                right = self._operand(Node("dequantize", (b, b_scale, b_zero), (), {"axis": -1}), node)
                flags = {"transpose_a": False, "transpose_b": False}
                self._become(node, "matmul", (before.floats, right), product, whole, scales, **flags)
                return True
        return False

    def _operand(self, dequantized: Node, node: Node) -> str:
        """The right side of a product as floats: what it was before, or a constant's bytes times their scale."""
        name = f"{node.outputs[0]} right"
        dequantized = replace(dequantized, outputs=(name,), name=node.name, function=node.function)
        if (floats := self._floats(dequantized)) is not None:
            return floats
        self.nodes.append(dequantized)
        return name

    def _shape(self, tensor: str) -> tuple[int, ...]:
        weight = self._graph.weights.get(tensor)
        return (0,) if weight is None else weight.shape

    def _is_same(self, a: str, b: str) -> bool:
        """Whether two scales or zero points are one tensor, or constants of the same numbers."""
        first, second = (self._graph.weights.get(name) for name in (a, b))
        if a == b or first is None or second is None:
            return a == b
        few = first.shape == second.shape and math.prod(first.shape) <= _MOST_COMPARED
        return few and np.array_equal(first.read(), second.read())
