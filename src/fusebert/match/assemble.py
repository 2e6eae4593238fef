"""Assemble: Finding -> Network. The encoder with its weights, and around it the embeddings and the head where they are
what a Network can be; what is not, is listed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.encoder import LINEARS, NORMS, Encoder, Layer, Linear, Norm
from fusebert.errors import UnsupportedError
from fusebert.graph import Array, Node
from fusebert.match.find import Finding, Found
from fusebert.match.lift.lifting import Lifted
from fusebert.match.mask import computed
from fusebert.match.probe import Probe
from fusebert.network import Dense, Embeddings, Head, Network, positions


@dataclass(frozen=True)
class Assembled:
    """A whole model: its inputs by what they are (ids, mask, types), and what of the graph it leaves out."""

    network: Network
    inputs: Mapping[str, str]
    left_out: tuple[str, ...]


def encoder(raised: Lifted, found: Found) -> Encoder:
    """An encoder with its weights, which are read now."""
    parts = _Parts(raised, found)
    return Encoder(found.hidden, tuple(parts.layer(match.holes) for match in found.layers))


def assemble(finding: Finding) -> Assembled:
    """The stand-alone model that a graph is. Raises UnsupportedError with what stands in the way."""
    if not finding.encoders:
        nearest = "; ".join(f"at {m.node}, {m.expected} was expected, but there is {m.found}" for m in finding.misses)
        raise UnsupportedError(f"no encoder was found: {nearest}")
    if len(finding.encoders) > 1:
        where = ", ".join(found.output for found in finding.encoders)
        raise UnsupportedError(f"there are {len(finding.encoders)} encoders ({where}); a stand-alone model has one")
    found = finding.encoders[0]
    parts = _Parts(finding.raised, found)
    embeddings, inputs = parts.embeddings()
    head, left_out = parts.head(len(embeddings.word))
    mask = found.mask
    if mask.kind == "ids":
        left_out.append(f"{mask.tensor} hides its positions with id {mask.hidden_id}: give a mask instead")
    elif mask.kind != "none":
        inputs["mask"] = mask.tensor
    labels = len(head.steps[-1].linear.weight) if head.kind in ("sequence", "token") else 0
    network = Network(
        family="bert" if embeddings.padding_id is None else "roberta",
        embeddings=embeddings,
        encoder=encoder(finding.raised, found),
        head=head,
        labels=tuple(f"LABEL_{i}" for i in range(labels)),
        problem="regression" if head.kind == "sequence" and labels == 1 else "single_label",
    )
    return Assembled(network, inputs, tuple(left_out))


class _Parts:
    """Reads parts of a network off the raised graph."""

    def __init__(self, raised: Lifted, found: Found) -> None:
        self._raised, self._graph, self._found = raised, raised.graph, found
        self._maker = {name: node for node in raised.graph.nodes for name in node.outputs}

    # Pieces.

    def _array(self, name: str | None) -> Array | None:
        return None if not name else self._graph.weights[name].read()

    def _linear(self, weight: str, bias: str | None) -> Linear:
        matrix, offset = self._array(weight), self._array(bias)
        assert matrix is not None
        return Linear(_usable(matrix), None if offset is None else np.asarray(offset, np.float32).reshape(-1))

    def _norm(self, width: int, gain: str | None, bias: str | None, epsilon: float) -> Norm:
        scale, offset = self._array(gain), self._array(bias)
        return Norm(
            np.ones(width, np.float32) if scale is None else np.asarray(scale, np.float32),
            np.zeros(width, np.float32) if offset is None else np.asarray(offset, np.float32),
            epsilon,
        )

    def layer(self, holes: Mapping[str, object]) -> Layer:
        """One layer's weights."""
        named = {key: value for key, value in holes.items() if value is None or isinstance(value, str)}
        linears = {name: self._linear(str(named[f"{name}.weight"]), named[f"{name}.bias"]) for name in LINEARS}
        width = len(linears["attention_out"].weight)
        norms = {
            name: self._norm(width, named[f"{name}.gain"], named[f"{name}.bias"], float(str(holes[f"{name}.epsilon"])))
            for name in NORMS
        }
        parts: dict[str, Any] = {**linears, **norms}
        return Layer(
            **parts,
            heads=int(str(holes["heads"])),
            activation=str(holes["activation"]),
            scale=float(str(holes["scale"])),
        )

    def _made(self, tensor: str, word: str) -> Node | None:
        node = self._maker.get(tensor)
        return node if node is not None and node.word == word else None

    def _norm_of(self, node: Node) -> Norm:
        gain, bias = (*node.inputs[1:], "", "")[:2]
        width = next((self._graph.weights[n].shape[0] for n in (gain, bias) if n), self._found.hidden)
        return self._norm(width, gain, bias, float(node.attributes["epsilon"]))

    def _linear_of(self, node: Node) -> Linear:
        return self._linear(node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None)

    # Embeddings.

    def embeddings(self) -> tuple[Embeddings, dict[str, str]]:
        """Word + position + type + LayerNorm (+ projection), and the inputs they are read by."""
        tensor = self._found.input
        project = self._made(tensor, "linear")
        if project is not None:
            tensor = project.inputs[0]
        norm = self._made(tensor, "layer_norm")
        if norm is None:
            raise self._stuck(tensor, "a LayerNorm of embeddings")
        tables: list[tuple[str, Array]] = []  # read by an input
        position: Array | None = None
        padding_id: int | None = None
        always: list[Array] = []
        for term in self._terms(norm.inputs[0]):
            role, array, padding = self._term(term)
            if role == "position":
                if position is not None:
                    raise self._stuck(term, "one table of positions, not two")
                position, padding_id = array, padding
            elif role == "always":
                always.append(array)
            else:
                tables.append((role, array))
        if position is None or not 1 <= len(tables) <= 2:
            raise self._stuck(norm.inputs[0], "a sum of word, position and perhaps type embeddings")
        for vector in always:
            position = np.asarray(position, np.float32) + vector
        tables.sort(key=lambda table: -len(table[1]))
        inputs = dict(zip(("ids", "types"), (name for name, _ in tables), strict=False))
        made = Embeddings(
            word=tables[0][1],
            position=position,
            kind=tables[1][1] if len(tables) > 1 else None,
            norm=self._norm_of(norm),
            project=None if project is None else self._linear_of(project),
            padding_id=padding_id,
        )
        return made, inputs

    def _stuck(self, tensor: str, wanted: str) -> UnsupportedError:
        node = self._maker.get(tensor)
        there = f"{node.word} at node {node.name}" if node else f"{tensor}"
        return UnsupportedError(f"embeddings: {wanted} was expected, but there is {there}")

    def _terms(self, tensor: str) -> list[str]:
        node = self._made(tensor, "add")
        return [tensor] if node is None else [term for name in node.inputs for term in self._terms(name)]

    def _term(self, tensor: str) -> tuple[str, Array, int | None]:
        """What an added tensor is: "position", "always", or the input it is looked up by; its table; RoBERTa's id."""
        if tensor in self._graph.weights:
            array = self._graph.weights[tensor].read()
            rows = array.reshape(-1, array.shape[-1])
            return ("always", rows[0], None) if len(rows) == 1 else ("position", rows, None)
        node = self._maker.get(tensor)
        if node is not None and node.word == "embed" and node.inputs[0] in self._graph.weights:
            table = self._graph.weights[node.inputs[0]].read()
            indices = [computed(self._graph, node.inputs[1], probe) for probe in self._raised.probes]
            return self._looked_up(tensor, table, indices, node.inputs[1])
        if node is not None and (node.word == "expand" or (node.word == "arrange" and _keeps_order(node))):
            return self._term(node.inputs[0])
        if node is not None and node.word in ("slice", "strided_slice") and node.inputs[0] in self._graph.weights:
            table = self._graph.weights[node.inputs[0]].read()
            table = table.reshape(-1, table.shape[-1])
            for probe in self._raised.probes:
                part = computed(self._graph, tensor, probe).reshape(-1, table.shape[-1])
                if not np.array_equal(part, table[: len(part)]):
                    raise self._stuck(tensor, "the first rows of the position table")
            return "position", table, None
        raise self._stuck(tensor, "a word, position or type embedding")

    def _looked_up(self, tensor: str, table: Array, indices: list[Array], name: str) -> tuple[str, Array, int | None]:
        probes = self._raised.probes
        for given in self._graph.inputs:
            if all(
                given in probe and np.array_equal(i, probe[given]) for i, probe in zip(indices, probes, strict=True)
            ):
                return given, table, None
        if self._is_always(name, indices):
            return "always", np.asarray(table[int(indices[0].reshape(-1)[0])], np.float32), None
        if name not in self._raised.content:
            flat = [np.unique(i.reshape(-1, i.shape[-1]), axis=0) if i.ndim else i.reshape(1, 1) for i in indices]
            first = int(flat[0][0, 0])
            if all(len(rows) == 1 and np.array_equal(rows[0], first + np.arange(rows.shape[1])) for rows in flat):
                return "position", table[first:], None
        for given in self._graph.inputs:
            for padding in (0, 1, int(indices[0].reshape(-1).min()) - 1):
                if padding >= 0 and self._counts_from(name, given, padding, table):
                    return "position", table, padding
        raise self._stuck(tensor, "positions that count from 0, or from the padding id as RoBERTa does")

    def _is_always(self, name: str, indices: list[Array]) -> bool:
        """Whether indices are one and the same number, whatever is in the inputs."""
        if name in self._raised.content:
            fed = {key: value if value.ndim != 2 else value * 5 + 2 for key, value in self._raised.probes[0].items()}
            indices = [*indices, computed(self._graph, name, fed)]
        return len({int(n) for i in indices for n in np.unique(i)}) == 1

    def _counts_from(self, name: str, given: str, padding: int, table: Array) -> bool:
        """Whether positions are counted over all ids but the padding, which is tried with paddings among them."""
        random = np.random.default_rng(0)
        rule = Embeddings(table, table, None, Norm(table, table, 0.0), padding_id=padding)
        for probe in self._raised.probes:
            if given not in probe or probe[given].ndim != 2:
                return False
            ids = np.where(random.random(probe[given].shape) < 0.3, padding, padding + 1).astype(probe[given].dtype)
            fed: Probe = {**probe, given: ids}
            if not np.array_equal(computed(self._graph, name, fed), positions(rule, ids)):
                return False
        return True

    # Head.

    def head(self, vocabulary: int) -> tuple[Head, list[str]]:
        """What is made of the encoder's rows, and the outputs that a Head cannot give."""
        first: list[tuple[Dense, ...]] = []
        each: list[tuple[Dense, ...]] = []
        hidden, left_out = False, []
        for name in self._graph.outputs:
            base, steps = self._chain(name)
            if base == "each" and not steps:
                hidden = True
            elif base == "each":
                each.append(steps)
            elif base == "first" and steps:
                first.append(steps)
            else:
                left_out.append(f"output {name} is not made of linear maps of the encoder's rows")
        if hidden or not (first or each):
            pooler = [steps for steps in first if len(steps) == 1 and steps[0].activation == "tanh"]
            left_out += ["an output besides the last hidden state is left out"] * (
                len(first) - len(pooler[:1]) + len(each)
            )
            return Head("none", pooler[0] if pooler else ()), left_out
        if first:
            left_out += ["only one of several heads is kept"] * (len(first) > 1 or bool(each))
            steps = max(first, key=len)
            kind = "none" if len(steps) == 1 and steps[0].activation == "tanh" else "sequence"
            return Head(kind, steps), left_out
        if len(each) == 2 and all(len(steps[-1].linear.weight) == 1 for steps in each):
            start, end = each if self._in_order() else reversed(each)
            return Head("question", (*start[:-1], Dense(_stacked(start[-1].linear, end[-1].linear)))), left_out
        left_out += ["only one of several heads is kept"] * (len(each) > 1)
        return Head("masked" if len(each[0][-1].linear.weight) == vocabulary else "token", each[0]), left_out

    def _in_order(self) -> bool:
        """Whether the first of two outputs is the first column of what was one linear map: the start, then the end."""
        rows = []
        for name in self._graph.outputs:
            while (node := self._made(name, "arrange")) is not None:
                name = node.inputs[0]
            node = self._made(name, "linear")
            rows.append("" if node is None else self._raised.origins.get(node.inputs[1], ("", ""))[1])
        return rows == sorted(rows)

    def _chain(self, tensor: str) -> tuple[str, tuple[Dense, ...]]:
        """Whether a tensor is made of each row or the first one ("?": of neither), and by which steps."""
        steps: list[Dense] = []
        while True:
            while (node := self._made(tensor, "arrange")) is not None and _keeps_order(node):
                tensor = node.inputs[0]
            if tensor == self._found.output:
                return "each", tuple(reversed(steps))
            if (node := self._made(tensor, "select")) is not None:
                at_first = node.inputs[0] == self._found.output and node.attributes["index"] == 0
                return "first" if at_first else "?", tuple(reversed(steps))
            norm, activation = None, "identity"
            if (node := self._made(tensor, "layer_norm")) is not None:
                norm, tensor = self._norm_of(node), node.inputs[0]
            if (node := self._made(tensor, "activation")) is not None:
                activation, tensor = str(node.attributes["name"]), node.inputs[0]
            if (node := self._made(tensor, "linear")) is None:
                return "?", ()
            steps.append(Dense(self._linear_of(node), activation, norm))
            tensor = node.inputs[0]


def _stacked(a: Linear, b: Linear) -> Linear:
    weight = np.concatenate([a.weight, b.weight])
    if a.bias is None or b.bias is None:
        return Linear(weight)
    return Linear(weight, np.concatenate([a.bias, b.bias]))


def _keeps_order(node: Node) -> bool:
    order = node.attributes["order"]
    return tuple(order) == tuple(sorted(order))


def _usable(weight: Array) -> Array:
    """Weights the engine takes as they are; others become float32."""
    return weight if weight.dtype.name in ("float32", "float16", "bfloat16") else weight.astype(np.float32)
