"""Inputs: which tensors of a model may be bound to a pattern's inputs: equal constants to constants, weights to
weights."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.scope import Edge, Scope
from fusebert.formats.tensorflow.tensor import tensor_value
from fusebert.ops.graph import Array
from fusebert.recipes.equivalence import PASSTHROUGH, WEIGHTS
from fusebert.recipes.extract import constant_behind
from fusebert.recipes.pattern import DIGEST, Pattern


class Inputs:
    """The inputs of one pattern, and the constants of one model."""

    def __init__(self, graphs: TensorFlowFile, pattern: Pattern) -> None:
        self._graphs, self._sources = graphs, pattern.sources
        self._values: dict[int, tuple[Array | str, Any]] = {}
        self._wanted = {name: self._value(one) for name, one in pattern.constants.items()}

    def mismatch(self, scope: Scope, name: str, edge: Edge) -> str | None:
        """Why a tensor cannot be bound to an input of the pattern, or None if it can."""
        source = self._sources.get(name)
        if source is None:  # patterns of the earlier tools record only the names of inputs
            return None
        if name in self._wanted:
            constant = constant_behind(scope, edge)
            if constant is None:
                return f"{edge.text} is not a constant, but {name} of the pattern is"
            return _unequal(self._wanted[name], self._value(constant.message), name, constant.name)
        if source.op in WEIGHTS and edge.node not in scope.arguments and not self._is_weight(scope, edge):
            return f"{edge.text} is not a weight, but {name} of the pattern is"
        return None

    def _is_weight(self, scope: Scope, edge: Edge) -> bool:
        for _ in range(16):
            node = scope.nodes.get(edge.node)
            if node is None or node.op in WEIGHTS:
                return True
            if (node.op not in PASSTHROUGH and node.op != "Cast") or not node.inputs:
                return False
            edge = node.inputs[0]
        return False

    def _value(self, constant: Any) -> Array | str:
        """A constant's values, or, for a large constant of a pattern, its shape and digest."""
        if id(constant) not in self._values:
            digest = next((e.value.s.decode() for e in constant.attr if e.key == DIGEST), None)
            tensor = next((e.value.tensor for e in self._graphs.whole(constant).attr if e.key == "value"), None)
            if tensor is None:
                raise FusebertError(f"{constant.name} (Const) has no value")
            if digest is None:
                value: Array | str = tensor_value(tensor, constant.name)
            else:
                value = f"{'x'.join(str(dim.size) for dim in tensor.tensor_shape.dim)} {digest}"
            self._values[id(constant)] = value, constant  # keeping the object keeps its id unique
        return self._values[id(constant)][0]


def _unequal(wanted: Array | str, found: Array | str, name: str, other: str) -> str | None:
    if isinstance(wanted, str):
        sizes, digest = wanted.split(" ")
        same = isinstance(found, str) or (
            "x".join(map(str, found.shape)) == sizes
            and (not digest or hashlib.sha256(found.tobytes()).hexdigest() == digest)
        )
        return None if same else f"the constant {other} differs from {name} of the pattern"
    if isinstance(found, str) or found.dtype != wanted.dtype or found.shape != wanted.shape:
        return f"the constant {other} is {_brief(found)}, but {name} of the pattern is {_brief(wanted)}"
    numbers = found.dtype.kind == "f"
    if np.array_equal(found, wanted) or (numbers and np.allclose(found, wanted, 1e-6, 0, equal_nan=True)):
        return None
    return f"the constant {other} is {_brief(found)}, but {name} of the pattern is {_brief(wanted)}"


def _brief(value: Array | str) -> str:
    if isinstance(value, str):
        return "a large constant"
    if value.size > 6:
        return f"{value.dtype.name} of {'x'.join(map(str, value.shape))}"
    if value.ndim == 0 and value.dtype.kind == "f":
        return f"{float(value):g}"
    return " ".join(str(value.tolist()).split())
