"""Bert: an encoder that was found, and the tensors that can be read in its place -> the inputs and attributes of the
node `Bert` there. For whoever puts that node into a graph: rewriting, and recipes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fusebert.errors import UnsupportedError
from fusebert.formats.tensorflow.bert_op import weight_shapes
from fusebert.match import TRANSPOSE, Finding, FoundEncoder
from fusebert.ops.graph import Graph
from fusebert.values.traverse import POST_NORM_PARTS, is_norm

_SAME_SCALE = 1e-6  # of the usual one, relative
_SAME = ("heads", "activation", "scale")  # in all layers of a node


def call_of(finding: Finding, function: str, body: Graph, tensor: str) -> tuple[str, Mapping[str, str]]:
    """The call of a function that a tensor of the flat graph is made in: what its tensors' names begin with, and the
    tensors that its arguments are."""
    if not function:
        return "", {}
    own = {*body.weights, *(name for node in body.nodes for name in node.outputs)} - {*body.inputs}
    for path, (called, arguments) in finding.translated.facts["calls"].items():
        if called == function and tensor.startswith(path) and tensor[len(path) :] in own:
            return path, arguments
    raise UnsupportedError(f"{tensor} is not a tensor of function {function}")


def encoder_attributes(found: FoundEncoder, layers: range) -> dict[str, Any]:
    """The attributes that these layers of an encoder have in common; raises where they differ."""
    first, inner = found.layers[layers[0]].bindings, _inner(found, layers[0])
    for number in layers:
        bindings = found.layers[number].bindings
        epsilons = {bindings[f"{norm}.epsilon"] for norm in POST_NORM_PARTS if is_norm(norm)}
        same = all(bindings[name] == first[name] for name in _SAME) and _inner(found, number) == inner
        if not same or epsilons != {first["feed_forward.after.epsilon"]}:
            raise UnsupportedError(
                f"layers differ in heads, sizes, activation, scale or epsilon: {found.layers[number].output}"
            )
    attributes: dict[str, Any] = {
        "HiddenSize": found.hidden,
        "NumAttentionHeads": int(first["heads"]),
        "IntermediateSize": inner,
        "HiddenAct": str(first["activation"]),
        "LayerNormEpsilon": float(first["feed_forward.after.epsilon"]),
    }
    scale, heads = float(first["scale"]), attributes["NumAttentionHeads"]
    if (
        abs(scale * (found.hidden / heads) ** 0.5 - 1) > _SAME_SCALE
    ):  # else it is what the op does without the attribute
        attributes["AttentionScale"] = scale
    return attributes


def _inner(found: FoundEncoder, number: int) -> int:
    return found.weights[number]["feed_forward.up.weight"].shape[0]


class Reach:
    """The tensors of the flat graph that a node can read, the preferred ones first; none is a variable's handle."""

    def __init__(self, finding: Finding, found: FoundEncoder, tensors: Iterable[str]) -> None:
        self._found, self._weights = found, finding.raised.graph.weights
        self._by_root: dict[str, list[str]] = {}  # the tensors that have a weight's numbers, as they are stored
        for tensor in tensors:
            origin = finding.raised.origin(tensor) if tensor in self._weights else None
            if origin is not None and not origin.steps:
                self._by_root.setdefault(origin.name, []).append(tensor)

    def weight(self, layer: int, part: str, field: str) -> str | None:
        """The tensor that has a weight of a layer as the op takes it, if there is one."""
        source = self._found.weights[layer].get(f"{part}.{field}")
        if source is None or source.steps != ((TRANSPOSE,) if field == "weight" else ()):
            return None
        shapes = weight_shapes(self._found.hidden, self._found.heads, _inner(self._found, layer))[part, field]
        fitting = (name for name in self._by_root.get(source.name, ()) if self._weights[name].shape in shapes)
        return next(fitting, None)
