"""A fused operator of ours in a finding -> what it computes, as values: its own numbers, not those of the formula that
it was spelled out as."""

from __future__ import annotations

from dataclasses import replace

from fusebert.errors import UnsupportedError
from fusebert.formats.layout import has_window
from fusebert.formats.onnx import encoder_op
from fusebert.formats.tensorflow import bert_layers
from fusebert.formats.tensorflow.bert_op import FUSED, precision_of, with_defaults
from fusebert.match.findings import FoundEncoder, Lifted
from fusebert.ops.graph import Array, Graph, Node
from fusebert.values.operator import Operator
from fusebert.values.traverse import layers


def read_operator(raised: Lifted, found: FoundEncoder) -> Operator | None:
    """What an encoder that was fused already computes; None if it was not. Its weights are read now."""
    node = found.operator
    if node is None:
        return None
    weights = raised.graph.weights

    def array(name: str) -> Array:
        if name not in weights:
            raise UnsupportedError(f"{node.name}: {name} is not a constant or a variable")
        return weights[name].read()

    names = node.inputs[encoder_op.FIRST_WEIGHT :]
    try:
        if node.op == encoder_op.NAME:
            made = encoder_op.read_operator(node.attributes, names, array)
        else:
            made = bert_layers.read_operator(with_defaults(node.op, node.attributes), [array(name) for name in names])
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"{node.name}: its weights do not fit: {error}") from None
    every = layers(made.encoder)
    if len(found.layers) == len(every):
        return made if found.final else replace(made, encoder=replace(made.encoder, final=None))
    order = made.encoder.order[: every[len(found.layers) - 1].stop]  # only what is needed of the last layers
    return replace(made, encoder=replace(made.encoder, order=order, final=None))


def operator_settings(found: FoundEncoder) -> tuple[str, str] | None:
    """The precision of an encoder that was fused already, and what becomes of hidden positions in it; None if it was
    not."""
    return None if found.operator is None else _settings(found.operator)


def skips_hidden(graph: Graph) -> bool:
    """Whether a fused operator in a graph gives something of its own at hidden positions: zeros, or, through a window
    that may show them nothing, what no two frameworks give."""
    bodies = (graph, *graph.functions.values())
    fused = (node for body in bodies for node in body.nodes if node.op in (encoder_op.NAME, *FUSED))
    return any(_settings(node)[1] != "compute" or has_window(_layout(node)) for node in fused)


def _layout(node: Node) -> str:
    given = node.attributes.get("layout", node.attributes.get("Layout", ""))
    return given.decode("utf-8", "replace") if isinstance(given, bytes) else str(given)


def _settings(node: Node) -> tuple[str, str]:
    if node.op == encoder_op.NAME:
        return str(node.attributes.get("precision", "fp32")), str(node.attributes.get("padding", "skip"))
    settings = with_defaults(node.op, node.attributes)
    return precision_of(settings), str(settings["Padding"])


def is_rounded(raised: Lifted, found: FoundEncoder) -> bool:
    """Whether a fused operator has its weights as int8, so that their floats are gone."""
    names = found.operator.inputs if found.operator else ()
    return any(raised.graph.weights[name].dtype == "int8" for name in names if name in raised.graph.weights)
