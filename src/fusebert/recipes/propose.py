"""Propose: a TensorFlow model -> the commands that extract a pattern of each encoder that the finder sees in it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from fusebert.errors import UnsupportedError
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.scope import Edge, Scope
from fusebert.match import FoundEncoder, cut
from fusebert.recipes.extract import pattern_of
from fusebert.rewrite.bert import call_of
from fusebert.source import TensorFlowSource, open_tensorflow

_REFERENCES = ("Variable", "VariableV2")  # read through an Identity


@dataclass(frozen=True)
class Proposal:
    """What extract-pattern takes: where a pattern ends, where it begins, and the function it is in."""

    seeds: tuple[str, ...]
    barriers: tuple[str, ...]
    barrier_ops: tuple[str, ...]
    function: str

    def command(self, path: str | Path, out: str = "pattern.pb") -> str:
        """The command line, ready to be run."""
        words = ["fusebert", "extract-pattern", str(path), "-o", out]
        for option, names in (("-s", self.seeds), ("-b", self.barriers), ("-B", self.barrier_ops)):
            words += (option, *names) if names else ()
        return shlex.join([*words, *(("-f", self.function) if self.function else ())])


def propose(path: str | Path) -> list[str]:
    """A command line for each encoder, ready to be run."""
    source = open_tensorflow(path)
    if not source.finding.encoders:
        misses = "; ".join(map(str, source.finding.misses))
        raise UnsupportedError(f"{path}: no encoder was found, so seeds and barriers are yours to choose: {misses}")
    names = ["pattern.pb", *(f"pattern_{number}.pb" for number in range(2, 1 + len(source.finding.encoders)))]
    pairs = zip(source.finding.encoders, names, strict=True)
    return [proposal(source, found).command(source.path, name) for found, name in pairs]


def proposal(source: TensorFlowSource, found: FoundEncoder) -> Proposal:
    """The pattern of an encoder that the finder sees."""
    scope = source.file.scope(source.file.meta(0), found.function or None)
    body = source.graph.functions[found.function] if found.function else source.graph
    path, _ = call_of(source.finding, found.function, body, found.output)
    place = cut(source.finding, found)
    seeds = [_node(tensor, path) for tensor in place.outputs]
    barriers = [_node(tensor, path) for tensor in (place.rows, place.mask) if tensor.startswith(path)]
    barriers = [name for name in barriers if name in scope.nodes]  # arguments of a function are barriers anyway
    ops = barrier_ops(scope)
    barriers = _closed(source.file, scope, seeds, barriers, ops)
    return Proposal(tuple(seeds), tuple(barriers), tuple(ops), scope.function)


def _closed(graphs: TensorFlowFile, scope: Scope, seeds: list[str], barriers: list[str], ops: list[str]) -> list[str]:
    """The barriers, with those that are needed so that nothing outside reads a node inside."""
    while True:
        pattern = pattern_of(graphs, scope, seeds, barriers, ops)
        inside = {node.name for node in (*pattern.seed_nodes, *pattern.internal_nodes)}
        leaks = [node.name for node in pattern.internal_nodes if _is_needed_outside(scope, node.name, inside)]
        if not leaks:
            return [name for name in barriers if name in set(pattern.inputs)]
        barriers = [*barriers, *leaks]


def _is_needed_outside(scope: Scope, name: str, inside: set[str]) -> bool:
    readers = (reader for reader, _ in scope.consumers.get(name, ()) if reader.name not in inside)
    return name in scope.kept or any(scope.unread_from(reader) is None for reader in readers)


def _node(tensor: str, path: str) -> str:
    return Edge.of(tensor.removeprefix(path)).node


def barrier_ops(scope: Scope) -> list[str]:
    """The operations that bring weights, constants and inputs into a graph."""
    there = {node.op for node in scope.nodes.values()}
    ops = ["ReadVariableOp", "Const", "Placeholder"]
    if there.intersection(_REFERENCES):
        ops.insert(0, "Identity")
    return [op for op in ops if op in there]
