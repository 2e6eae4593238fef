"""Embeddings: word + position + type + LayerNorm (+ projection), known by what their indices are for the probes."""

from __future__ import annotations

import numpy as np

from fusebert.encoder import Norm
from fusebert.errors import UnsupportedError
from fusebert.graph import Array
from fusebert.match.mask import computed
from fusebert.match.pieces import Pieces, keeps_order
from fusebert.match.probe import Probe
from fusebert.network import Embeddings, positions


def read_embeddings(pieces: Pieces) -> tuple[Embeddings, dict[str, str]]:
    """The embeddings that an encoder reads, and the tensors they are looked up by: the inputs ids and types, and
    positions where they do not count from 0."""
    return _Reading(pieces).read()


class _Reading:
    def __init__(self, pieces: Pieces) -> None:
        self._pieces, self._raised, self._graph = pieces, pieces.raised, pieces.graph

    def read(self) -> tuple[Embeddings, dict[str, str]]:
        tensor = self._pieces.found.input
        project = self._pieces.made(tensor, "linear")
        if project is not None:
            tensor = project.inputs[0]
        norm = self._pieces.made(tensor, "layer_norm")
        if norm is None:
            raise self._stuck(tensor, "a LayerNorm of embeddings")
        tables: list[tuple[str, Array]] = []  # read by an input
        position: Array | None = None
        padding_id: int | None = None
        counted = ""
        always: list[Array] = []
        for term in self._terms(norm.inputs[0]):
            role, array, padding = self._term(term)
            if role == "position":
                if position is not None:
                    raise self._stuck(term, "one table of positions, not two")
                position, padding_id, counted = array, padding, term
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
            norm=self._pieces.norm(norm),
            project=None if project is None else self._pieces.linear(project),
            padding_id=padding_id,
        )
        if padding_id is not None and (node := self._pieces.made(counted, "embed")) is not None:
            inputs["positions"] = node.inputs[1]
        return made, inputs

    def _stuck(self, tensor: str, wanted: str) -> UnsupportedError:
        node = self._pieces.maker(tensor)
        there = f"{node.word} at node {node.name}" if node else f"{tensor}"
        return UnsupportedError(f"embeddings: {wanted} was expected, but there is {there}")

    def _terms(self, tensor: str) -> list[str]:
        node = self._pieces.made(tensor, "add")
        return [tensor] if node is None else [term for name in node.inputs for term in self._terms(name)]

    def _term(self, tensor: str) -> tuple[str, Array, int | None]:
        """What an added tensor is: "position", "always", or the input it is looked up by; its table; RoBERTa's id."""
        if tensor in self._graph.weights:
            array = self._graph.weights[tensor].read()
            rows = array.reshape(-1, array.shape[-1])
            return ("always", rows[0], None) if len(rows) == 1 else ("position", rows, None)
        node = self._pieces.maker(tensor)
        if node is not None and node.word == "embed" and node.inputs[0] in self._graph.weights:
            table = self._graph.weights[node.inputs[0]].read()
            indices = [computed(self._graph, node.inputs[1], probe) for probe in self._raised.probes]
            return self._looked_up(tensor, table, indices, node.inputs[1])
        if node is not None and (node.word == "expand" or (node.word == "arrange" and keeps_order(node))):
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
