"""Repairs of ONNX models that were valid once and that today's ONNX Runtime refuses: a message in, changed in place,
and sentences that tell it. Only what can have meant one thing is repaired; it is known by following ranks and types of
whole numbers from constants and shapes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fusebert.formats.onnx.types import NUMBERS

_INT32, _INT64 = NUMBERS["int32"], NUMBERS["int64"]
_ROW = "repaired.row"  # the constant [-1]: the shape of a row of whatever there is
_KEPT = ("Identity", "Abs", "Neg", "Floor", "Ceil", "Relu", "Slice")
_BROADCAST = ("Add", "Sub", "Mul", "Div", "Mod", "Min", "Max")
_REDUCED = ("ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin")


@dataclass(frozen=True)
class _Known:
    """A tensor's number of dimensions and its element type, as far as they are known."""

    rank: int | None = None
    kind: int | None = None


def repair(model: Any) -> tuple[str, ...]:
    """Repairs the main graph of a model."""
    repairing = _Repairing(model.graph)
    repairing.work()
    return repairing.told()


class _Repairing:
    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._known = {t.name: _Known(len(t.dims), t.data_type) for t in graph.initializer}
        self._axes = {t.name: sum(t.dims[:1]) for t in graph.initializer}  # how many are in a list
        for value in graph.input:
            kind = value.type.tensor_type
            rank = len(kind.shape.dim) if kind.HasField("shape") else None
            self._known.setdefault(value.name, _Known(rank, kind.elem_type))
        self._done: dict[str, list[str]] = {"Concat": [], "Slice": []}

    def work(self) -> None:
        """Goes through the nodes in order; what a repair adds stands before the node that needed it."""
        nodes: list[Any] = []
        for message in self._graph.node:
            if message.domain in ("", "ai.onnx") and message.output:
                nodes += self._mended(message)
                self._known |= dict.fromkeys(message.output, self._made(message))
            nodes.append(message)
        if len(nodes) == len(self._graph.node):
            return
        kept = [type(one).FromString(one.SerializeToString()) for one in nodes]
        del self._graph.node[:]
        self._graph.node.extend(kept)
        if self._done["Concat"]:
            self._graph.initializer.add(name=_ROW, data_type=_INT64, dims=[1], int64_data=[-1])

    def told(self) -> tuple[str, ...]:
        """A sentence for each kind of repair."""
        what = {"Concat": "scalars that are joined became rows of one number", "Slice": "int32 became int64, as beside"}
        return tuple(
            f"Repaired, since ONNX Runtime would not load it: {what[word]} ({word} {names[0]}"
            f"{f' and {len(names) - 1} more' if len(names) > 1 else ''})."
            for word, names in self._done.items()
            if names
        )

    def _mended(self, message: Any) -> list[Any]:
        """The nodes that a node needs before it; it reads what they make."""
        inputs = [self._known.get(name, _Known()) for name in message.input]
        if message.op_type == "Concat" and any(known.rank == 0 for known in inputs):
            places = [i for i, known in enumerate(inputs) if known.rank == 0]
            word, more, attribute = "Reshape", [_ROW], None
        elif message.op_type == "Slice" and {_INT32, _INT64} <= {known.kind for known in inputs[1:]}:
            places = [i for i, known in enumerate(inputs) if i and message.input[i] and known.kind != _INT64]
            word, more, attribute = "Cast", [], _INT64
        else:
            return []
        self._done[message.op_type].append(message.name or message.output[0])
        added = []
        for i in places:
            made = f"{message.output[0]}.repaired.{i}"
            node = type(message)(op_type=word, name=made, input=[message.input[i], *more], output=[made])
            if attribute is not None:
                node.attribute.add(name="to", type=2, i=attribute)
            message.input[i] = made
            self._known[made] = _Known(1, inputs[i].kind)
            added.append(node)
        return added

    def _made(self, message: Any) -> _Known:
        """What is known of what a node makes."""
        word = message.op_type
        inputs = [self._known.get(name, _Known()) for name in message.input]
        first = inputs[0] if inputs else _Known()
        ranks = [known.rank for known in inputs]
        attributes = {a.name: a for a in message.attribute}
        if word == "Constant":
            if "value" in attributes:
                self._axes[message.output[0]] = sum(attributes["value"].t.dims[:1])
            return _constant(attributes)
        if word in ("Shape", "Size"):
            return _Known(1 if word == "Shape" else 0, _INT64)
        if word == "Cast":
            return _Known(first.rank, attributes["to"].i if "to" in attributes else None)
        if word in _KEPT:
            return first
        if word in ("Concat", "Range"):
            return _Known(1 if word == "Range" else first.rank, first.kind)
        if word == "Gather" and None not in ranks and len(ranks) == 2:
            return _Known(sum(filter(None, ranks)) - 1, first.kind)
        if word in _BROADCAST and None not in ranks:
            return _Known(max(filter(None, ranks), default=0), next((k.kind for k in inputs if k.kind), None))
        if word in ("Squeeze", "Unsqueeze", *_REDUCED) and first.rank is not None:
            return _Known(self._resized(message, attributes, first.rank), first.kind)
        return _Known(kind=first.kind) if word in ("Reshape", "Expand", "Tile", "Transpose") else _Known()

    def _resized(self, message: Any, attributes: Any, rank: int) -> int | None:
        """The rank after dimensions were added, taken away or reduced."""
        if "axes" in attributes:
            count = len(attributes["axes"].ints)
        else:
            count = self._axes.get(message.input[1], 0) if len(message.input) > 1 else 0
        if message.op_type == "Unsqueeze":
            return rank + count if count else None
        if message.op_type == "Squeeze":
            return rank - count if count else None
        if "keepdims" not in attributes or attributes["keepdims"].i:
            return rank
        return rank - count if count else 0


def _constant(attributes: Any) -> _Known:
    if "value" in attributes:
        return _Known(len(attributes["value"].t.dims), attributes["value"].t.data_type)
    for name, rank in (("value_int", 0), ("value_ints", 1)):
        if name in attributes:
            return _Known(rank, _INT64)
    return _Known()
