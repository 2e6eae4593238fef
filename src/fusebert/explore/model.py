"""Model: a source with a graph -> all that the page shows of it, as plain JSON: the facts that `inspect --json` tells,
the flat graph in blocks, its tensors, and the graph after every stage of the match with the rows that led there."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.explore.groups import group
from fusebert.explore.tensors import describe, histogram
from fusebert.match import inline
from fusebert.ops.graph import Graph, Node
from fusebert.recipes.propose import barrier_ops, proposal
from fusebert.source import TensorFlowSource, open_graph
from fusebert.verbs.inspect import inspect


class Shown:
    """A model that is explored."""

    def __init__(self, path: str | Path) -> None:
        self.source = open_graph(path)

    @property
    def name(self) -> str:
        """The path, as it was given."""
        return str(self.source.path)

    @cached_property
    def flat(self) -> Graph:
        """The graph with its calls in place."""
        return inline(self.source.graph)

    @cached_property
    def data(self) -> dict[str, Any]:
        """Everything but the numbers in weights."""
        finding, grouping = self.source.finding, group(self.flat, self.source.finding)
        found = inspect(self.source).data()
        stages = {"translated": finding.translated, "lifted": finding.lifted, "raised": finding.raised.graph}
        return {
            "path": self.name, "kind": self.source.kind,
            "facts": {name: value for name, value in found.items() if not isinstance(value, list | dict)},
            "inputs": list(self.flat.inputs), "outputs": list(self.flat.outputs),
            "encoders": found["encoders"], "notes": found["notes"],
            "misses": [{**vars(miss), "told": str(miss)} for miss in finding.misses],
            "groups": [vars(one) for one in grouping.groups],
            "nodes": [
                {**_node(node), "function": node.function, "group": place}
                for node, place in zip(self.flat.nodes, grouping.of, strict=True)
            ],
            "tensors": describe(self.flat, finding),
            "stages": {name: [_node(node) for node in graph.nodes] for name, graph in stages.items()},
            "rows": [
                {"stage": r.stage, "rule": r.rule, "nodes": list(r.nodes), "result": r.result, "reason": r.reason}
                for r in finding.rows
            ],
            "patterns": self._patterns(),
        }  # fmt: skip

    def histogram(self, weight: str) -> dict[str, Any]:
        """What the numbers of a weight are."""
        return histogram(self.flat, weight)

    def _patterns(self) -> dict[str, Any] | None:
        """For TensorFlow: the operations that may be barriers, by function, and what is proposed for each encoder."""
        source = self.source
        if not isinstance(source, TensorFlowSource):
            return None
        functions = dict.fromkeys(node.function for node in self.flat.nodes)
        meta = source.file.meta(0)
        ops = {name: barrier_ops(source.file.scope(meta, name or None)) for name in functions}
        proposals = []
        for found in source.finding.encoders:
            try:
                proposals.append(vars(proposal(source, found)))
            except FusebertError as error:  # such as an encoder that is one operator already
                proposals.append({"error": str(error)})
        return {"barrier_ops": ops, "proposals": proposals}


def _node(node: Node) -> dict[str, Any]:
    return {
        "name": node.name or next(filter(None, node.outputs), ""), "op": node.op,
        "inputs": list(filter(None, node.inputs)), "outputs": list(filter(None, node.outputs)),
    }  # fmt: skip
