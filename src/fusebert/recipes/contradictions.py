"""Contradictions: what can be seen in a Pattern against the attributes of the Bert node that shall replace it: the
activation, the number that hides scores, and the epsilon of its LayerNorms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fusebert.formats.tensorflow.bert_op import Settings, settings_of
from fusebert.formats.tensorflow.scope import Node, read_nodes
from fusebert.formats.tensorflow.tensor import tensor_value
from fusebert.formats.tensorflow.types import DTYPES
from fusebert.recipes.derive import HIDDEN

_ACTIVATIONS = {
    "Erf": "gelu_erf", "Erfc": "gelu_erf", "Tanh": "gelu_tanh", "Sigmoid": "gelu_quick", "Relu": "relu",
}  # fmt: skip


def contradictions(pattern: Any, node: Any) -> Iterator[str]:
    """Why a node does not compute what the pattern does, as far as the pattern shows it."""
    settings, nodes, constants = _read(pattern, node)
    yield from _of_activation(settings, nodes, node.name)
    yield from _of_mask(settings, _mask_value(nodes, constants), node.name)
    yield from _of_epsilon(settings, nodes, constants, node.name)


def mask_notes(pattern: Any, node: Any) -> list[str]:
    """What is to be said where a node hides scores by another number than the pattern, which hides as well."""
    settings, nodes, constants = _read(pattern, node)
    value, own = _mask_value(nodes, constants), settings["MaskValue"]
    if value is None or settings["AdditiveMask"] or max(value, own) > HIDDEN or abs(own - value) <= 1e-6 * abs(value):
        return []
    return [
        f"{node.name} has MaskValue {own:.3g}, and the pattern adds {value:.3g}: a sequence whose mask hides all of it "
        "may get other numbers."
    ]


def _read(pattern: Any, node: Any) -> tuple[Settings, dict[str, Node], dict[str, Any]]:
    """The node's attributes, the nodes of the pattern, and the constants that it reads."""
    nodes = read_nodes((*pattern.seed_nodes, *pattern.internal_nodes), "the pattern")
    return settings_of(node), nodes, {one.name: one for one in pattern.input_nodes if one.op == "Const"}


def _of_activation(settings: Settings, nodes: Mapping[str, Node], name: str) -> Iterator[str]:
    seen = {one.op: _ACTIVATIONS[one.op] for one in nodes.values() if one.op in _ACTIVATIONS}
    activation = settings["HiddenAct"]
    if seen and activation not in seen.values():
        op, wanted = next(iter(seen.items()))
        what = "GELU" if wanted.startswith("gelu") else "its activation"
        yield f"the pattern computes {what} by {op}, but {name} has HiddenAct {activation}; it should be {wanted}"


def _of_mask(settings: Settings, value: float | None, name: str) -> Iterator[str]:
    """Numbers below HIDDEN all hide what they are added to."""
    if value is not None and settings["AdditiveMask"]:
        yield f"the pattern adds {value:.3g} where the mask is 0, but {name} has AdditiveMask, and adds the mask itself"
    elif value is not None and (value <= HIDDEN) != (settings["MaskValue"] <= HIDDEN):
        yield f"the pattern adds {value:.3g} where the mask is 0, but {name} has MaskValue {settings['MaskValue']:.3g}"


def _of_epsilon(
    settings: Settings, nodes: Mapping[str, Node], constants: Mapping[str, Any], name: str
) -> Iterator[str]:
    own = settings["LayerNormEpsilon"]
    for one in nodes.values():
        if one.op != "Rsqrt" or not one.inputs:
            continue
        added = nodes.get(one.inputs[0].node)
        for edge in added.inputs if added is not None and added.op in ("Add", "AddV2") else ():
            epsilon = _scalar(constants.get(edge.node))
            if epsilon is not None and abs(epsilon - own) > 1e-9 + 1e-3 * abs(epsilon):
                yield (
                    f"the pattern's LayerNorm adds {epsilon:.3g} ({edge.node}), but {name} has LayerNormEpsilon "
                    f"{own:.3g}"
                )
                return


def _mask_value(nodes: Mapping[str, Node], constants: Mapping[str, Any]) -> float | None:
    """The number that a pattern multiplies 1 - mask by; None if the pattern does not do that."""
    for one in nodes.values():
        if one.op != "Mul" or len(one.inputs) != 2:
            continue
        names = [edge.node for edge in one.inputs]
        for difference, factor in (names, names[::-1]):
            value, taken = _scalar(constants.get(factor)), nodes.get(difference)
            if value is not None and value < 0 and taken is not None and taken.op == "Sub" and taken.inputs:
                minuend = _scalar(constants.get(taken.inputs[0].node))
                if minuend == 1:
                    return value
    return None


def _scalar(constant: Any) -> float | None:
    """The value of a scalar Const of a pattern, or None."""
    tensor = next((e.value.tensor for e in constant.attr if e.key == "value"), None) if constant is not None else None
    if tensor is None or tensor.tensor_shape.dim or tensor.dtype not in DTYPES:
        return None
    return float(tensor_value(tensor, constant.name))
