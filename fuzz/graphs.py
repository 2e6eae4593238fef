"""Graphs: a sound Graph -> the same with nodes, weights and types that are wrong here and there."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from fusebert.ops.graph import Graph, TensorType, Weight
from fuzz.mutate import HUGE

_WRONG: tuple[Any, ...] = (
    None, -1, HUGE, 1.5, float("nan"), "text", b"bytes", (), (1, "a"), (-HUGE,), True, Weight.of(np.ones(3)),
    Weight((HUGE,), "float32", lambda: np.zeros(0)), Graph((), (), (), {}),
)  # fmt: skip


def mutated(graph: Graph, random: Random) -> Graph:
    """The graph with some nodes wrong: other inputs, outputs, words, attributes; other weights and types."""
    nodes, weights, types = list(graph.nodes), dict(graph.weights), dict(graph.types)
    tensors = [*graph.inputs, *graph.weights, *(t for node in nodes for t in node.outputs), "", "nowhere"]
    words = sorted({node.op for node in nodes})
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(nodes))
        node, kind = nodes[at], random.choice(("input", "output", "word", "attribute", "drop", "weight", "type"))
        if kind == "input" and node.inputs:
            place = random.randrange(len(node.inputs))
            inputs = list(node.inputs)
            inputs[place : place + random.randint(0, 1)] = [random.choice(tensors)]
            nodes[at] = replace(node, inputs=tuple(inputs))
        elif kind == "output":
            nodes[at] = replace(node, outputs=(*node.outputs[:-1], random.choice(tensors)))
        elif kind == "word":
            nodes[at] = replace(node, op=random.choice(words))
        elif kind == "attribute":
            key = random.choice([*node.attributes, "axis", "perm", "to", "keepdims", "equation", "epsilon"])
            nodes[at] = replace(node, attributes={**node.attributes, key: random.choice(_WRONG)})
        elif kind == "drop":
            del nodes[at]
        elif kind == "weight" and weights:
            name = random.choice(sorted(weights))
            dtype = random.choice((np.int64, np.float32, np.bool_, np.int8))
            shape = random.choice(((), (1,), (3,), (2, 2), weights[name].shape))
            weights[name] = Weight.of(np.full(shape, random.choice((0, 1, -1, 7, 100, -100))).astype(dtype))
        elif kind == "type":
            types[random.choice(tensors)] = TensorType("float32", random.choice((None, (), (-1, HUGE), ("a", 3, 0))))
    return replace(graph, nodes=tuple(nodes), weights=weights, types=types)
