"""Extract: a model, seeds and barriers -> a Pattern: the nodes that compute the seeds, back to the barriers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.messages import message
from fusebert.formats.tensorflow.scope import Edge, Node, Scope
from fusebert.formats.tensorflow.tensor import tensor_value
from fusebert.formats.tensorflow.types import DTYPES
from fusebert.recipes.pattern import DIGEST, save
from fusebert.report import Report
from fusebert.source import TensorFlowSource, open_tensorflow

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_TYPE_ATTRIBUTES = ("dtype", "T", "DstT", "out_type", "N")
_MOST_IN_PATTERN = 1024  # bytes; a pattern stores a digest of a larger constant,
_MOST_READ = 4 << 20  # and only the type and shape of one larger than this, which is a weight


def extract_pattern(
    path: str | Path | TensorFlowSource,
    out: str | Path,
    seeds: Sequence[str],
    barriers: Sequence[str] = (),
    barrier_ops: Sequence[str] = (),
    function: str | None = None,
    meta_graph: int = 0,
    overwrite: bool = False,
) -> Report:
    """Writes the pattern that ends at `seeds` and begins at the barriers, given by name or by operation."""
    graphs = open_tensorflow(path).file
    scope = graphs.scope(graphs.meta(meta_graph), function)
    seeds, barriers = ([scope.node_of(name) for name in names] for names in (seeds, barriers))
    pattern = pattern_of(graphs, scope, seeds, barriers, barrier_ops)
    save(Path(out), pattern, overwrite)
    unmet = sorted(set(barriers) - set(pattern.inputs))
    notes = [f"Barriers that were not reached, which is harmless: {', '.join(unmet)}."] if unmet else []
    if any(name.startswith("^") for node in (*pattern.seed_nodes, *pattern.internal_nodes) for name in node.input):
        notes.append("Some nodes have control inputs; a pattern ignores them, and replace-pattern keeps them.")
    constants = sum(node.op == "Const" for node in pattern.input_nodes)
    facts = {
        "from": scope.where, "seeds": len(pattern.seed_nodes), "internal_nodes": len(pattern.internal_nodes),
        "inputs": len(pattern.inputs), "constants": constants,
    }  # fmt: skip
    return Report(f"{path} -> {out}", facts, (), tuple(notes))


def pattern_of(
    graphs: TensorFlowFile, scope: Scope, seeds: Sequence[str], barriers: Sequence[str], barrier_ops: Sequence[str]
) -> Any:
    """The Pattern message."""
    names = _checked(scope, seeds, barriers, barrier_ops)
    walk = _Walk(scope, names, set(barrier_ops))
    walk.run(seeds)
    pattern = message("Pattern")
    wanted = set(seeds)
    pattern.seed_nodes.extend(graphs.whole(node.message) for node in scope.nodes.values() if node.name in wanted)
    pattern.internal_nodes.extend(graphs.whole(node.message) for node in walk.inside if node.name not in wanted)
    pattern.inputs.extend(sorted(walk.met))
    pattern.input_nodes.extend(_source(graphs, scope, name) for name in pattern.inputs)
    return pattern


def _checked(scope: Scope, seeds: Sequence[str], barriers: Sequence[str], barrier_ops: Sequence[str]) -> set[str]:
    if not seeds:
        raise FusebertError("a pattern needs at least one seed node; give it with -s")
    for name in seeds:
        scope.check_name(name, "seed")
        if name in scope.arguments:
            raise FusebertError(f"seed {name!r} is an argument of {scope.where}; choose a node")
        if list(seeds).count(name) > 1:
            raise FusebertError(f"seed {name!r} is given twice")
        if name in barriers or scope.nodes[name].op in barrier_ops:
            why = "by name" if name in barriers else f"because every {scope.nodes[name].op} is one"
            raise FusebertError(f"{name!r} is both a seed and a barrier ({why}); remove one of the two")
    for name in barriers:
        scope.check_name(name, "barrier")
    return set(barriers)


@dataclass
class _Walk:
    """The walk backwards from the seeds."""

    scope: Scope
    barriers: set[str]
    ops: set[str]
    inside: list[Node] = field(default_factory=list)
    met: set[str] = field(default_factory=set)

    def run(self, seeds: Sequence[str]) -> None:
        seen: set[str] = set()
        waiting = [(name, "a seed") for name in reversed(seeds)]
        while waiting:
            name, reader = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            if self._is_barrier(name):
                self.met.add(name)
                continue
            node = self._inner(name, reader)
            self.inside.append(node)
            waiting += [(edge.node, name) for edge in reversed(node.inputs)]

    def _is_barrier(self, name: str) -> bool:
        if name in self.barriers or name in self.scope.arguments:
            return True
        node = self.scope.nodes.get(name)
        return node is not None and node.op in self.ops

    def _inner(self, name: str, reader: str) -> Node:
        node = self.scope.nodes.get(name)
        if node is None:
            raise FusebertError(f"{reader} reads {name!r}, which is not in {self.scope.where}")
        if node.op in _CALLS:
            called = node.attribute("f")
            inner = f", or extract inside it with -f {called.func.name}" if called is not None else ""
            raise FusebertError(f"{name} ({node.op}), read by {reader}, is a function call; make it a barrier{inner}")
        if not node.inputs:
            raise FusebertError(
                f"{name} ({node.op}), read by {reader}, has no inputs and is not a barrier; "
                f"add -b {name} or -B {node.op}"
            )
        return node


def _source(graphs: TensorFlowFile, scope: Scope, name: str) -> Any:
    """A description of the node at a barrier: its operation and element type; for a constant, its value or digest."""
    made = message("NodeDef")
    made.name = name
    if name in scope.arguments:
        made.op = "_Arg"
        made.attr.add(key="T").value.type = scope.arguments[name]
        return made
    node = scope.nodes[name]
    constant = constant_behind(scope, Edge(name))
    if constant is None:
        made.op = node.op
        made.attr.extend(entry for entry in node.message.attr if entry.key in _TYPE_ATTRIBUTES)
        return made
    made.op = "Const"
    made.attr.extend(
        entry for entry in describe_constant(graphs, constant).attr if entry.key in ("dtype", "value", DIGEST)
    )
    return made


def constant_behind(scope: Scope, edge: Edge) -> Node | None:
    """The Const that produces a tensor, directly or through Identity nodes, or None."""
    for _ in range(16):
        node = scope.nodes.get(edge.node)
        if node is None or node.op == "Const":
            return node
        if node.op != "Identity" or len(node.inputs) != 1:
            return None
        edge = node.inputs[0]
    return None


def describe_constant(graphs: TensorFlowFile, constant: Node) -> Any:
    """A Const as a pattern stores it: whole if small, else a digest of its bytes; very large, type and shape alone."""
    tensor = next((entry.value.tensor for entry in constant.message.attr if entry.key == "value"), None)
    if tensor is None:
        raise FusebertError(f"{constant.name} (Const) has no value")
    count = 1
    for dim in tensor.tensor_shape.dim:
        count *= dim.size
    size = count * np.dtype(DTYPES[tensor.dtype]).itemsize if tensor.dtype in DTYPES else 0
    if size <= _MOST_IN_PATTERN:
        return graphs.whole(constant.message)
    made = message("NodeDef")
    made.name, made.op = constant.name, "Const"
    value = made.attr.add(key="value").value.tensor
    value.dtype = tensor.dtype
    value.tensor_shape.CopyFrom(tensor.tensor_shape)
    digest = b""
    if size <= _MOST_READ:
        whole = next(e.value.tensor for e in graphs.whole(constant.message).attr if e.key == "value")
        array = tensor_value(whole, constant.name)
        digest = hashlib.sha256(array.tobytes()).hexdigest().encode()
    made.attr.add(key=DIGEST).value.s = digest
    return made
