"""The runner of graphs whose framework is missing, and of those that no framework runs, since rounding was taken out of
them: every node is computed in NumPy, fused ones of TensorFlow by the engine. Slow, and exact enough to judge by."""

from __future__ import annotations

from dataclasses import replace

from fusebert.errors import UnsupportedError
from fusebert.match import skips_hidden, translate, unround
from fusebert.measure.inputs import Input, Told, sizes_of
from fusebert.measure.runners.bert_node import bert_node
from fusebert.measure.runners.runner import Feeds, Runner, endings_of, roles_of
from fusebert.ops.graph import Array, Graph, Node, TensorType
from fusebert.ops.primitives import Meaning
from fusebert.ops.vocabulary import evaluate
from fusebert.source import GraphSource, OnnxFile

_INSTEAD = "{} is not installed: fusebert's own evaluator computed its graphs, in NumPy and by the engine."


class Evaluator(Runner):
    """A SavedModel's default signature, a frozen graph or an ONNX file, by fusebert itself."""

    framework = "fusebert's own evaluator"
    slow = True

    def __init__(self, source: GraphSource, told: Told | None = None) -> None:
        path, graph = source.path, source.graph
        given, made = graph.facts.get("served") or ({t: t for t in side} for side in (graph.inputs, graph.outputs))
        if not made:
            raise UnsupportedError(f"{path} has no signature to call")
        graph = replace(graph, inputs=tuple(given.values()), outputs=tuple(made.values()))
        self.name = f"{path} by {self.framework}"
        self.remarks = (_INSTEAD.format("ONNX Runtime" if isinstance(source, OnnxFile) else "TensorFlow"),)
        self.roles = roles_of(source, [_input(name, tensor, graph) for name, tensor in given.items()], told)
        self._graph = translate(graph)
        self.endings = endings_of(source, made)
        self._tensors = {name: tensor for name, tensor in made.items() if tensor in self._graph.outputs}
        self.outputs = tuple(self._tensors)
        self.skips = skips_hidden(graph)
        self._given = given
        self._fused = {node.outputs: found for node in self._graph.nodes if (found := bert_node(node)) is not None}

    def answer(self, prepared: Feeds) -> dict[str, Array]:
        feeds = {self._given[name]: array for name, array in prepared.items()}
        answers = evaluate(self._graph, feeds, more=self._meaning)
        return {name: answers[tensor] for name, tensor in self._tensors.items()}

    def _meaning(self, node: Node) -> Meaning | None:
        return self._fused.get(node.outputs)

    def close(self) -> None:
        self._fused = {}


class Unrounded(Evaluator):
    """An 8-bit graph as it would be without rounding: its own weights, but activations in full. Asked the same again,
    it gives the answer that it remembers."""

    def __init__(self, source: GraphSource, told: Told | None = None) -> None:
        super().__init__(source, told)
        self.name, self.remarks = f"{source.path} without rounding", ()
        self._graph = unround(self._graph).graph
        self._given_before: dict[bytes, dict[str, Array]] = {}

    def answer(self, prepared: Feeds) -> dict[str, Array]:
        key = b"".join(repr(array.shape).encode() + array.tobytes() for array in prepared.values())
        if key not in self._given_before:
            self._given_before[key] = super().answer(prepared)
        return self._given_before[key]


def _input(name: str, tensor: str, graph: Graph) -> Input:
    declared = graph.types.get(tensor, TensorType("", None))
    return Input(name, declared.dtype, sizes_of(declared.shape), tensor)
