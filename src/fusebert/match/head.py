"""Head: what a graph computes from the encoder's rows, as far as it is linear maps of each row or of the first one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fusebert.match.findings import Omitted, Provenance, Rows
from fusebert.match.weights import Weights, keeps_order
from fusebert.values.blocks import Linear
from fusebert.values.network import Dense, Head


@dataclass(frozen=True)
class Gives:
    """A head; which output of the graph each of a model's outputs is, by its place, and the function that comes after
    it, if any; what is omitted; and the outputs that are not understood."""

    head: Head
    outputs: Mapping[str, tuple[int, str]]
    omitted: tuple[Omitted, ...]
    made: bool  # whether it makes any output of the graph, perhaps but for what comes after it
    unclear: tuple[str, ...]


@dataclass(frozen=True)
class _Way:
    """How an output is made: of "each" row, the "first" one, or neither (""); by which steps; and what comes after."""

    place: int
    base: str
    steps: tuple[Dense, ...]
    after: str = ""
    origin: Provenance | None = None  # of the last linear map's weight


def read_head(weights: Weights, names: Sequence[str], vocabulary: int) -> Gives:
    """The head that explains the graph's outputs best; `names` are what the model calls them."""
    ways = [_way(weights, place, tensor) for place, tensor in enumerate(weights.graph.outputs)]
    head, given = _choose(ways, names, vocabulary)
    omitted = []
    for way in ways:
        name = f"output {names[way.place]}"
        if way.place in given.values():
            omitted += [Omitted("final", f"the {way.after} after {name}")] if way.after else []
        elif among := _among(weights, way, [ways[place] for place in given.values()]):
            omitted.append(Omitted("part", f"{name}, which is {among}"))
        else:
            omitted.append(Omitted("output", f"{name}, which is not made of linear maps of the encoder's rows"))
    outputs = {name: (place, ways[place].after) for name, place in given.items()}
    unclear = tuple(weights.graph.outputs[way.place] for way in ways if not way.base)
    return Gives(head, outputs, tuple(omitted), bool(given), unclear)


def _choose(ways: list[_Way], names: Sequence[str], vocabulary: int) -> tuple[Head, dict[str, int]]:
    hidden = [way for way in ways if way.base == "each" and not way.steps]
    each = [way for way in ways if way.base == "each" and way.steps]
    first = [way for way in ways if way.base == "first" and way.steps]
    pooler = [way for way in first if len(way.steps) == 1 and way.steps[0].activation == "tanh"]
    if hidden or (pooler and len(pooler) == len(first)):
        named = (("last_hidden_state", hidden), ("pooler_output", pooler))
        given = {name: found[0].place for name, found in named if found}
        return Head("none", pooler[0].steps if pooler else ()), given
    if first:
        longest = max(first, key=lambda way: len(way.steps))
        return Head("sequence", longest.steps), {"logits": longest.place}
    if len(each) == 2 and all(len(way.steps[-1].linear.weight) == 1 for way in each):
        start, end = _start_and_end(each[0], each[1], names)
        both = Dense(_stacked(start.steps[-1].linear, end.steps[-1].linear))
        return Head("question", (*start.steps[:-1], both)), {"start_logits": start.place, "end_logits": end.place}
    if each:
        kind = "masked" if len(each[0].steps[-1].linear.weight) == vocabulary else "token"
        return Head(kind, each[0].steps), {"logits": each[0].place}
    return Head(), {}


def _start_and_end(first: _Way, second: _Way, names: Sequence[str]) -> tuple[_Way, _Way]:
    """Which of two outputs is the start of an answer: told by their names; else the lower column where both are columns
    of one linear map; else the first of the outputs."""
    says = [("start" in names[way.place].lower(), "end" in names[way.place].lower()) for way in (first, second)]
    if says == [(True, False), (False, True)]:
        return first, second
    if says == [(False, True), (True, False)]:
        return second, first
    one, other = _column(first.origin), _column(second.origin)
    swapped = one is not None and other is not None and one[:2] == other[:2] and other[2] < one[2]
    return (second, first) if swapped else (first, second)


def _column(origin: Provenance | None) -> tuple[str, tuple[object, ...], int] | None:
    """The weight that a column is chosen from, what was done to it before, and which column it is."""
    if origin is None or not origin.steps or not isinstance(chosen := origin.steps[-1], Rows):
        return None
    return origin.name, origin.steps[:-1], chosen.first


def _among(weights: Weights, way: _Way, given: Sequence[_Way]) -> str:
    """What an output is that the model gives under another name; "" if it does not."""
    if any((way.base, way.after, way.origin) == (other.base, other.after, other.origin) for other in given if way.base):
        return "the same as another one"
    if way.base == "first" and not way.steps and any(other.base == "each" and not other.steps for other in given):
        return "the first row of the others"
    tensor = weights.graph.outputs[way.place]
    if weights.found.calls > 1 and not _is_made_of(weights, tensor, weights.found.output):
        return "made by another call of the same function"
    node = weights.maker(tensor)
    parts = node.inputs if node is not None and node.op in ("stack", "concat") else (tensor,)
    return "rows of layers, which are given as hidden states if asked for" if _are_rows(weights, parts) else ""


def _are_rows(weights: Weights, tensors: Sequence[str]) -> bool:
    """Whether all tensors are what goes into the encoder's layers or comes out of them."""
    seen = []
    for tensor in tensors:
        while (node := weights.made(tensor, "arrange")) is not None and keeps_order(node):
            tensor = node.inputs[0]
        seen.append(tensor)
    return {weights.found.input, weights.found.output, *weights.found.taps}.issuperset(seen)


def _is_made_of(weights: Weights, tensor: str, origin: str) -> bool:
    waiting, seen = [tensor], set[str]()
    while waiting and origin not in seen:
        seen.add(name := waiting.pop())
        node = weights.maker(name)
        waiting += [given for given in node.inputs if given and given not in seen] if node is not None else []
    return origin in seen


def _way(weights: Weights, place: int, tensor: str) -> _Way:
    steps: list[Dense] = []
    after = ""
    origin: Provenance | None = None
    while (node := weights.maker(tensor)) is not None and (
        node.op in ("softmax", "log_softmax", "sigmoid") or (node.op == "arrange" and keeps_order(node))
    ):
        after = after if node.op == "arrange" else node.op
        tensor = node.inputs[0]
    while True:
        while (node := weights.made(tensor, "arrange")) is not None and keeps_order(node):
            tensor = node.inputs[0]
        if tensor == weights.found.output:
            return _Way(place, "each", tuple(reversed(steps)), after, origin)
        if (node := weights.made(tensor, "select")) is not None:
            tokens = len(weights.raised.dims[weights.found.output]) - 2
            at_first = node.inputs[0] == weights.found.output and node.attributes == {"axis": tokens, "index": 0}
            return _Way(place, "first" if at_first else "", tuple(reversed(steps)), after, origin)
        norm, activation = None, "identity"
        if (node := weights.made(tensor, "layer_norm")) is not None:
            norm, tensor = weights.norm(node), node.inputs[0]
        if (node := weights.made(tensor, "activation")) is not None:
            activation, tensor = str(node.attributes["name"]), node.inputs[0]
        if (node := weights.made(tensor, "linear")) is None:
            return _Way(place, "", ())
        origin = origin or weights.raised.origin(node.inputs[1])
        steps.append(Dense(weights.linear(node), activation, norm))
        tensor = node.inputs[0]


def _stacked(a: Linear, b: Linear) -> Linear:
    weight = np.concatenate([a.weight, b.weight])
    if a.bias is None or b.bias is None:
        return Linear(weight)
    return Linear(weight, np.concatenate([a.bias, b.bias]))
