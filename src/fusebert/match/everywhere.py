"""Everywhere: encoders in library functions that no output of the graph reaches, such as training copies and other
entry points of a SavedModel, each looked at by itself."""

from __future__ import annotations

from dataclasses import replace

from fusebert.match.find import Finding, find
from fusebert.ops.graph import Graph


def find_elsewhere(graph: Graph, reached: Finding) -> dict[str, Finding]:
    """What is found in each function that the outputs do not need and no such function calls; only where there are
    encoders. Functions whose variables are not known are passed over, since they are parts of others."""
    done = {function for function, _ in reached.translated.facts.get("calls", {}).values()}
    called = {node.attributes.get("f") for function in graph.functions.values() for node in function.nodes}
    findings = {}
    for name, function in graph.functions.items():
        if name in done or name in called or not any(argument in function.weights for argument in function.inputs):
            continue
        finding = find(replace(function, functions=graph.functions, facts=graph.facts))
        if finding.encoders:
            findings[name] = finding
    return findings
