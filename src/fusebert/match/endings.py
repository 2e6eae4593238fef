"""Endings: how a graph makes each of its outputs from the encoder's rows, as far as it says what the output is: classes
have a linear map last, and perhaps a softmax; embeddings have not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fusebert.match.findings import Finding
from fusebert.ops.graph import Node

_FINAL = ("softmax", "log_softmax", "sigmoid")
_SAME = ("arrange", "identity", "cast")


@dataclass(frozen=True)
class Ending:
    """`final` is the softmax, log_softmax or sigmoid at the end, if any; `linear` says that a linear map comes last,
    but for that; `pooled` that an activation stands before it; `wide` that it makes as many numbers as a row of the
    encoder has; `head` that there are linear maps behind the encoder."""

    final: str = ""
    linear: bool = False
    pooled: bool = False
    wide: bool = False
    head: bool = False


def read_endings(finding: Finding) -> dict[str, Ending]:
    """How each output of a graph is made, as far as that is known: where no encoder was found, no rows are known that
    it could be made of."""
    graph = finding.raised.graph
    maker = {name: node for node in graph.nodes for name in node.outputs}
    encoded = {tensor for found in finding.encoders for tensor in (found.output, *found.taps)}
    widths = {found.hidden for found in finding.encoders}
    endings = {}
    for name, tensor in zip(finding.translated.outputs, graph.outputs, strict=True):
        final, last = _last(maker, tensor)
        head = _has_linear(maker, tensor, encoded)
        if last is None or last.op != "linear" or last.inputs[1] not in graph.weights:
            if final or finding.encoders:
                endings[name] = Ending(final, head=head)
            continue
        before = _skipped(maker, last.inputs[0], (*_SAME, "layer_norm"))
        pooled = before is not None and before.op == "activation"
        endings[name] = Ending(final, True, pooled, graph.weights[last.inputs[1]].shape[0] in widths, head)
    return endings


def _last(maker: Mapping[str, Node], tensor: str) -> tuple[str, Node | None]:
    """The function at the end, and the node before it."""
    node = _skipped(maker, tensor, _SAME)
    if node is None or node.op not in _FINAL:
        return "", node
    return node.op, _skipped(maker, node.inputs[0], _SAME)


def _skipped(maker: Mapping[str, Node], tensor: str, words: tuple[str, ...]) -> Node | None:
    """The node that makes a tensor, but for nodes of these words."""
    while (node := maker.get(tensor)) is not None and node.op in words:
        tensor = node.inputs[0]
    return node


def _has_linear(maker: Mapping[str, Node], tensor: str, encoded: set[str]) -> bool:
    """Whether a tensor is made of an encoder's rows by way of a linear map."""
    waiting, seen, linear, reached = [tensor], set[str](), False, False
    while waiting:
        name = waiting.pop()
        reached = reached or name in encoded
        if name in encoded or name in seen or (node := maker.get(name)) is None:
            continue
        seen.add(name)
        linear = linear or node.op == "linear"
        waiting += [given for given in node.inputs if given]
    return linear and reached
