"""Assemble: Finding -> Network. The encoder with its weights, and around it the embeddings and the head where a Network
can represent them; what it cannot represent is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fusebert.errors import UnsupportedError
from fusebert.match.axes import shape_of
from fusebert.match.embeddings import read_embeddings
from fusebert.match.findings import Finding, FoundEncoder, Lifted, Omitted
from fusebert.match.head import read_head
from fusebert.match.lift.shapes import numbers_read
from fusebert.match.misses import contradictions, furthest
from fusebert.match.operator import read_operator
from fusebert.match.weights import Weights
from fusebert.ops.graph import Graph
from fusebert.values import limits
from fusebert.values.blocks import Encoder
from fusebert.values.network import Embeddings, Network
from fusebert.values.plan import Plan


@dataclass(frozen=True)
class Assembled:
    """A whole model: the graph's inputs by what they are (ids, mask, types); by what the model calls its outputs, the
    places of the graph's and what the graph applies after them; and the parts of the graph that it omits."""

    network: Network
    inputs: Mapping[str, str]
    positions: str  # the tensor that has them, where they do not count from 0 or are an input
    outputs: Mapping[str, tuple[int, str]]  # softmax, log_softmax, sigmoid or nothing after it
    encoder_output: str
    counts_positions: bool  # the mask only gives the number of visible positions
    omitted: tuple[Omitted, ...]
    only_rows: bool  # the graph makes something of the encoder's rows that the model does not: it gives the rows
    plan: Plan | None = None  # of a graph whose encoder is a fused operator already: what that computes in


def read_encoder(raised: Lifted, found: FoundEncoder) -> Encoder:
    """An encoder with its weights, which are read now; those of a fused operator as it has them."""
    if (operator := read_operator(raised, found)) is not None:
        return operator.encoder
    return Weights(raised, found).encoder()


def assemble(finding: Finding) -> Assembled:
    """The stand-alone model that a graph is. Raises UnsupportedError with what stands in the way."""
    if not finding.encoders:
        raise UnsupportedError(f"no encoder was found: {'; '.join(map(str, finding.misses))}")
    if broken := contradictions(finding.raised):
        raise UnsupportedError(str(broken[0]))
    if len(finding.encoders) > 1:
        where = ", ".join(found.output for found in finding.encoders)
        raise UnsupportedError(f"there are {len(finding.encoders)} encoders ({where}); a stand-alone model has one")
    try:
        with limits.patience(len(finding.translated.nodes)):
            return _assemble(finding, finding.encoders[0])
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # sizes that do not fit, in a broken graph
        raise UnsupportedError(f"the embeddings or the head cannot be read: {error}") from error


def _assemble(finding: Finding, found: FoundEncoder) -> Assembled:
    weights = Weights(finding.raised, found)
    embeddings, inputs = read_embeddings(finding.raised, found)
    positions = inputs.pop("positions", "")
    omitted = []
    if (known := found.longest) is not None and known < embeddings.longest:
        omitted.append(Omitted("length", f"texts of more than {known} tokens, for which its scores are not known"))
        embeddings = _shortened(embeddings, known)
    served = finding.translated.facts.get("names", {})
    names = [served.get(tensor, tensor) for tensor in finding.translated.outputs]
    gives = read_head(weights, names, len(embeddings.word))
    if gives.head.kind == "none":
        _check_last(finding, found, gives.unclear)
    omitted += gives.omitted
    if found.mask.kind == "ids":
        omitted.append(Omitted("padding id", f"hiding positions with id {found.mask.hidden_id}, so give a mask"))
    elif found.mask.kind == "padding":
        inputs["padding"] = found.mask.tensor
        what = (
            f"the input {found.mask.tensor}, which is 1 where a position is hidden: here a mask is 1 where it is seen"
        )
        omitted.append(Omitted("mask", what))
    elif found.mask.kind == "additive":
        inputs["additive"] = found.mask.tensor
    elif found.mask.kind != "none":
        inputs["mask"] = found.mask.tensor
    if positions in finding.raised.graph.inputs:
        omitted.append(Omitted("positions", f"the input {positions}: positions count from 0"))
    counts = found.mask.kind == "lengths"
    if counts:
        what = "reading the mask as a number of positions: here it may hide any of them"
        omitted.append(Omitted("length", what))
    if finding.raised.quantized:
        omitted.append(Omitted("rounding", "rounding the inputs of the products to 8 bits"))
    operator = read_operator(finding.raised, found)
    labels = len(gives.head.steps[-1].linear.weight) if gives.head.kind in ("sequence", "token") else 0
    network = Network(
        family="bert" if embeddings.padding_id is None else "roberta",
        embeddings=embeddings,
        encoder=operator.encoder if operator else weights.encoder(shared=True),
        head=gives.head,
        labels=tuple(f"LABEL_{i}" for i in range(labels)),
        problem="regression" if gives.head.kind == "sequence" and labels == 1 else "single_label",
    )
    plan = operator.plan if operator else None
    made = tuple(omitted), not gives.made, plan
    return Assembled(network, inputs, positions, gives.outputs, found.output, counts, *made)


def _shortened(embeddings: Embeddings, length: int) -> Embeddings:
    """Embeddings for so many tokens at most."""
    if embeddings.position is None:
        return replace(embeddings, max_positions=length)
    before = 0 if embeddings.padding_id is None else embeddings.padding_id + 1
    return replace(embeddings, position=embeddings.position[: before + length])


def _check_last(finding: Finding, found: FoundEncoder, unclear: tuple[str, ...]) -> None:
    """Refuses an encoder that is only the first part of a longer one: its rows would pass for the last ones. That is so
    where an output that is not understood is rows of the same kind, or where a LayerNorm of a sum is on the way to it.
    """
    dims = finding.raised.dims
    for output in unclear:
        way = _between(finding.raised.graph, found.output, output)
        stops = [miss for tensor, miss in finding.unmatched.items() if tensor in way and miss.matched > 1]
        if stops or (way and output in dims and shape_of(dims[output]) == shape_of(dims[found.output])):
            where = f": {furthest(stops)[0]}" if stops else ""
            raise UnsupportedError(
                f"only the first part of the model was found: the encoder ends with {found.output} after "
                f"{len(found.layers)} layer(s), and output {output} is made of it by what is neither a matched layer "
                f"nor a head{where}; optimise the graph for its own framework, where that stays"
            )


def _between(graph: Graph, begin: str, end: str) -> set[str]:
    """The tensors through which one tensor's numbers reach another; none if they do not."""
    reached, leading = {begin}, {end}
    for node in graph.nodes:
        if reached.intersection(numbers_read(node)):
            reached.update(node.outputs)
    for node in reversed(graph.nodes):
        if leading.intersection(node.outputs):
            leading.update(numbers_read(node))
    return (reached & leading) - {begin}
