"""Embeddings: word, perhaps + position and + type, times a number, with or without a norm (+ projection), known by
their indices for the probes."""

from __future__ import annotations

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.match.distances import ANYWHERE
from fusebert.match.findings import FoundEncoder, Layer, Lifted
from fusebert.match.patterns import FREQUENCIES
from fusebert.match.probe import Probe
from fusebert.match.rotations import LONGEST
from fusebert.match.trials import Trials
from fusebert.match.weights import Weights, keeps_order
from fusebert.ops.graph import Array
from fusebert.values.blocks import Norm
from fusebert.values.network import Embeddings, positions

MOST_KINDS = 16  # token types; a larger table is another vocabulary


def read_embeddings(raised: Lifted, found: FoundEncoder) -> tuple[Embeddings, dict[str, str]]:
    """The embeddings that an encoder reads, and the tensors they are looked up by: the inputs ids and types, and
    positions where they do not count from 0, or are an input too."""
    return _Reading(Weights(raised, found)).read()


class _Reading:
    def __init__(self, weights: Weights) -> None:
        self._weights, self._raised, self._graph = weights, weights.raised, weights.graph
        self._trials = Trials(weights.raised)

    def read(self) -> tuple[Embeddings, dict[str, str]]:
        tensor = self._weights.found.input
        while (laid := self._weights.made(tensor, "arrange")) is not None and keeps_order(laid):
            tensor = laid.inputs[0]
        project = self._weights.made(tensor, "linear")
        if project is not None:
            tensor = project.inputs[0]
        norm = self._weights.made(tensor, "layer_norm")
        summed, scale = self._scaled(tensor if norm is None else norm.inputs[0])
        tables: list[tuple[str, Array]] = []  # read by an input
        position: Array | None = None
        padding_id: int | None = None
        counted = ""
        always: list[Array] = []
        for term in self._terms(summed):
            role, array, padding = self._term(term)
            if role == "position":
                if position is not None:
                    raise self._stuck(term, "one table of positions, not two")
                position, padding_id, counted = array, padding, term
            elif role == "always":
                always.append(array)
            else:
                tables.append((role, array))
        tables.sort(key=lambda table: -len(table[1]))
        given = "" if position is not None else _given_positions(tables)
        if given:
            position = next(array for name, array in tables if name == given)
            tables = [table for table in tables if table[0] != given]
        placed = position is not None or any(map(_knows_distances, self._weights.found.layers))
        if not placed or not 1 <= len(tables) <= 2:
            raise self._stuck(summed, "a sum of word, position and perhaps type embeddings")
        for vector in always:
            if position is not None:
                position = np.asarray(position, np.float32) + vector
            else:
                tables[0] = tables[0][0], np.asarray(tables[0][1], np.float32) + vector
        inputs = dict(zip(("ids", "types"), (name for name, _ in tables), strict=False))
        made = Embeddings(
            word=tables[0][1],
            position=position,
            kind=tables[1][1] if len(tables) > 1 else None,
            norm=None if norm is None else self._weights.norm(norm),
            project=None if project is None else self._weights.linear(project),
            padding_id=padding_id,
            scale=scale,
            max_positions=LONGEST if position is None else None,
        )
        if given:
            inputs["positions"] = given
        elif padding_id is not None and (node := self._weights.made(counted, "embed")) is not None:
            inputs["positions"] = node.inputs[1]
        return made, inputs

    def _scaled(self, tensor: str) -> tuple[str, float]:
        """What is multiplied by a number, and the number."""
        node = self._weights.made(tensor, "mul")
        for one, other in (node.inputs, node.inputs[::-1]) if node is not None else ():
            if other in self._graph.weights and self._graph.weights[other].is_numbers:
                number = self._graph.weights[other]
                if all(size == 1 for size in number.shape):
                    return one, float(number.read().reshape(()))
        return tensor, 1.0

    def _stuck(self, tensor: str, wanted: str) -> UnsupportedError:
        node = self._weights.maker(tensor)
        there = f"{node.op} at node {node.name}" if node else f"{tensor}"
        return UnsupportedError(f"embeddings that are not supported: {wanted} was expected, but there is {there}")

    def _terms(self, tensor: str) -> list[str]:
        left, terms = [tensor], list[str]()
        while left:
            node = self._weights.made(name := left.pop(), "add")
            terms += [name] if node is None else []
            left += [] if node is None else reversed(node.inputs)
        return terms

    def _term(self, tensor: str) -> tuple[str, Array, int | None]:
        """What an added tensor is: "position", "always", or the input it is looked up by; its table; RoBERTa's id."""
        if tensor in self._graph.weights:
            array = self._weights.numbers(tensor)
            if not array.ndim or not array.size:
                raise self._stuck(tensor, "rows of numbers")
            rows = array.reshape(-1, array.shape[-1])
            return ("always", rows[0], None) if len(rows) == 1 else ("position", rows, None)
        node = self._weights.maker(tensor)
        if node is not None and node.op == "embed" and node.inputs[0] in self._graph.weights:
            table = self._weights.numbers(node.inputs[0])
            return self._looked_up(tensor, table, node.inputs[1])
        if node is not None and (node.op == "expand" or (node.op == "arrange" and keeps_order(node))):
            return self._term(node.inputs[0])
        if node is not None and node.op in ("slice", "strided_slice") and node.inputs[0] in self._graph.weights:
            table = self._weights.numbers(node.inputs[0])
            table = table.reshape(-1, table.shape[-1])
            for _, part in self._trials.try_all(tensor, (len(table),)):
                part = part.reshape(-1, table.shape[-1])
                if not np.array_equal(part, table[: len(part)]):
                    raise self._stuck(tensor, "the first rows of the position table")
            return "position", table, None
        raise self._stuck(tensor, "a word, position or type embedding")

    def _looked_up(self, tensor: str, table: Array, name: str) -> tuple[str, Array, int | None]:
        """What a table is that a tensor is an index of."""
        for given in self._graph.inputs:
            if self._is_index(name, given, len(table)):
                return given, table, None
        tried = [indices for _, indices in self._trials.try_all(name, ())]
        first = int(tried[0].reshape(-1)[0]) if tried[0].size else 0
        if first >= 0 and len({int(n) for indices in tried for n in np.unique(indices)}) == 1:
            return "always", np.asarray(table[first], np.float32), None
        lengths = (len(table) - first, *(n for n in (512, 256, 128, 64, 32) if n < len(table) - first))
        if first >= 0 and all(_counts(indices, first) for _, indices in self._trials.try_all(name, lengths)):
            return "position", table[first:], None
        for given in self._trials.ids:
            for padding in (0, 1, int(tried[0].min()) - 1):
                if padding >= 0 and self._counts_from(name, given, padding, table):
                    return "position", table, padding
        raise self._stuck(tensor, "positions that count from 0, or from the padding id as RoBERTa does")

    def _is_index(self, name: str, given: str, entries: int) -> bool:
        """Whether an index is an input as it is, whatever of the table's entries that holds."""
        random = np.random.default_rng(0)
        for probe in self._raised.probes:
            if given not in probe or probe[given].dtype.kind not in "iu":
                return False
            ids = random.integers(0, entries, probe[given].shape).astype(probe[given].dtype)
            for fed in (probe, {**probe, given: ids}):
                if not np.array_equal(self._trials.compute(name, fed), fed[given]):
                    return False
        return True

    def _counts_from(self, name: str, given: str, padding: int, table: Array) -> bool:
        """Whether positions are counted over all ids but the padding, which is tried with paddings among them."""
        random = np.random.default_rng(0)
        rule = Embeddings(table, table, None, Norm(table, table, 0.0), padding_id=padding)
        for probe in (*self._raised.probes, self._trials.long(len(table) - padding - 1)):
            if probe is None:
                continue
            if given not in probe or probe[given].ndim != 2:
                return False
            ids = random.integers(padding, padding + 9, probe[given].shape)
            ids = np.where(random.random(ids.shape) < 0.3, padding, ids).astype(probe[given].dtype)
            fed: Probe = {**probe, given: ids}
            if not np.array_equal(self._trials.compute(name, fed), positions(rule, ids)):
                return False
        return True


def _knows_distances(layer: Layer) -> bool:
    """Whether a layer tells positions by itself."""
    attention = layer.blocks[0]
    return bool(attention.bindings.get(FREQUENCIES)) or attention.distances is not ANYWHERE


def _counts(indices: Array, first: int) -> bool:
    """Whether indices count the positions of every sequence."""
    rows = indices.reshape(-1, indices.shape[-1]) if indices.ndim else indices.reshape(1, 1)
    return bool((rows == first + np.arange(rows.shape[1])).all())


def _given_positions(tables: list[tuple[str, Array]]) -> str:
    """Which of the inputs that tables are looked up by, the largest first, has the positions: the one that is called
    so; else the second, unless its table is as small as one of token types."""
    named = [name for name, _ in tables if "position" in name.lower()]
    second = [name for name, table in tables[1:2] if len(table) > MOST_KINDS]
    return next(iter((*named, *second)), "")
