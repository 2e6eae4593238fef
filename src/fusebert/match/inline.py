"""A Graph with functions -> one flat Graph in the same dialect: every call replaced by the function's nodes, only what
the outputs need, each tensor made before it is read. Tensors inside a call are named `call/inner_call/tensor`; the
call's own outputs are made from them by `identity`. The fact `calls` has, for every such path, the function and its
arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fusebert.errors import FusebertError
from fusebert.ops.graph import AttributeOf, Graph, Node, TensorType, Weight, in_order
from fusebert.values import limits

_DEEPEST_CALL = 100
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def inline(graph: Graph) -> Graph:
    """The same graph without functions."""
    return _Inliner(graph).flat()


def ordered(graph: Graph) -> Graph:
    """The nodes that the outputs need, in the file's order wherever a tensor is then made before it is read."""
    maker = {tensor: i for i, node in enumerate(graph.nodes) for tensor in node.outputs if tensor}
    for tensor in (*graph.inputs, *graph.weights):
        maker.pop(tensor, None)
    needed = [maker[tensor] for tensor in graph.outputs if tensor in maker]
    before: dict[int, list[int]] = {}
    while needed:
        i = needed.pop()
        if i not in before:
            before[i] = [maker[tensor] for tensor in _reads(graph.nodes[i]) if tensor in maker]
            needed += before[i]
    places = in_order(before, lambda i: f"{graph.nodes[i].name or i} ({graph.nodes[i].op})")
    return replace(graph, nodes=tuple(graph.nodes[i] for i in places))


def _reads(node: Node, depth: int = 0) -> Iterator[str]:
    """A node's inputs, and what its inner graphs take from outside."""
    if depth > _DEEPEST_CALL:
        raise FusebertError(f"node {node.name} ({node.op}) is inside more than {_DEEPEST_CALL} inner graphs")
    yield from node.inputs
    for value in node.attributes.values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Graph):
                made = _local(inner)
                yield from (t for n in inner.nodes for t in _reads(n, depth + 1) if t not in made)
                yield from (t for t in inner.outputs if t not in made)


def _local(graph: Graph) -> set[str]:
    return {*graph.inputs, *graph.weights, *(tensor for node in graph.nodes for tensor in node.outputs)}


def output_number(tensor: str) -> int:
    """Which of its node's outputs a TensorFlow tensor is: the number that its name ends with. In a function, the hidden
    states of our own op count from 0 again, after its first output."""
    name, _, number = tensor.rpartition(":")
    after = name.endswith(":hidden_states")
    return int(number) + after if number.isdecimal() and len(number) < 10 else 0


class _Inliner:
    """The library, and the flat graph as it grows."""

    def __init__(self, graph: Graph) -> None:
        self._tensorflow = str(graph.facts.get("format", "")).startswith("tensorflow")
        self._graph = graph
        self._bodies: dict[str, Graph] = {}
        self._sizes: dict[str, tuple[int, int]] = {}
        self._prefixes: set[str] = set()
        self._nodes: list[Node] = []
        self._weights: dict[str, Weight] = {}
        self._types: dict[str, TensorType] = {}
        self._calls: dict[str, tuple[str, dict[str, str]]] = {}

    def flat(self) -> Graph:
        main = self._body("")
        main = replace(main, inputs=tuple(tensor for tensor in main.inputs if tensor not in main.weights))
        self._measure("", ())
        self._expand(main, lambda tensor: tensor, "", "", {})
        facts = {**main.facts, "calls": self._calls}
        flat = replace(
            main, nodes=tuple(self._nodes), weights=self._weights, types=self._types, functions={}, facts=facts
        )
        return ordered(flat)

    def _body(self, function: str) -> Graph:
        """A function's graph, or the main one, in order."""
        if function not in self._bodies:
            graph = self._graph.functions[function] if function else self._graph
            self._bodies[function] = ordered(graph)
        return self._bodies[function]

    def _measure(self, function: str, path: tuple[str, ...]) -> tuple[int, int]:
        """How many nodes a function becomes and how deep its calls go; refuses what is too large before it is built."""
        if function in path:
            raise FusebertError(f"function {function} calls itself")
        if function not in self._sizes:
            body = self._body(function)
            if len(path) > _DEEPEST_CALL:
                raise FusebertError(f"function {function} is called through more than {_DEEPEST_CALL} others")
            called = [self._measure(name, (*path, function)) for node in body.nodes if (name := self._called(node))]
            size = len(body.nodes) + sum(nodes for nodes, _ in called)
            depth = 1 + max((depth for _, depth in called), default=0)
            if size > limits.NODES or depth > _DEEPEST_CALL:
                raise FusebertError(f"the calls in function {function or 'main'} become {size} nodes, {depth} deep")
            self._sizes[function] = size, depth
        return self._sizes[function]

    def _called(self, node: Node) -> str | None:
        name = node.attributes.get("f") if self._tensorflow and node.op in _CALLS else node.op
        return name if isinstance(name, str) and name in self._graph.functions else None

    def _expand(
        self, body: Graph, rename: Callable[[str], str], prefix: str, function: str, given: Mapping[str, Any]
    ) -> None:
        """Adds a body's nodes under new names; `given` are the attributes of the call."""
        self._weights |= {rename(tensor): weight for tensor, weight in body.weights.items()}
        self._types |= {rename(tensor): kind for tensor, kind in body.types.items()}
        for node in body.nodes:
            inputs, outputs = tuple(map(rename, node.inputs)), tuple(map(rename, node.outputs))
            attributes = _resolved(node.attributes, given)
            here = replace(node, inputs=inputs, outputs=outputs, attributes=attributes, function=function)
            if called := self._called(node):
                self._call(here, called, prefix)
            elif (branch := self._branch(here)) is not None:
                self._take(here, branch, rename, prefix, given)
            else:
                self._nodes.append(here)

    def _call(self, node: Node, called: str, prefix: str) -> None:
        body = self._body(called)
        path = self._prefix(prefix, node)
        bound = dict.fromkeys(body.inputs, "") | dict(zip(body.inputs, node.inputs, strict=False))
        self._calls[path] = called, bound

        def rename(tensor: str) -> str:
            return bound[tensor] if tensor in bound else tensor and path + tensor

        own = {tensor: weight for tensor, weight in body.weights.items() if tensor not in bound}  # the caller decides
        types = {tensor: kind for tensor, kind in body.types.items() if tensor not in bound}
        given = {**body.facts.get("defaults", {}), **node.attributes}
        self._expand(replace(body, weights=own, types=types), rename, path, called, given)
        self._give(node, tuple(map(rename, body.outputs)))

    def _branch(self, node: Node) -> Graph | None:
        """The branch that an If with a constant condition takes."""
        condition = self._weights.get(node.inputs[0]) if node.op == "If" and node.inputs else None
        if condition is None or condition.shape not in ((), (1,)):
            return None
        branch = node.attributes.get("then_branch" if condition.read().any() else "else_branch")
        return branch if isinstance(branch, Graph) else None

    def _take(
        self, node: Node, branch: Graph, outer: Callable[[str], str], prefix: str, given: Mapping[str, Any]
    ) -> None:
        path = self._prefix(prefix, node)
        local = _local(branch)

        def rename(tensor: str) -> str:
            return path + tensor if tensor and tensor in local else outer(tensor)

        self._expand(ordered(branch), rename, path, node.function, given)
        self._give(node, tuple(map(rename, branch.outputs)))

    def _prefix(self, prefix: str, node: Node) -> str:
        """The name of a call among tensors, made unique where the file does not."""
        path = f"{prefix}{node.name or node.outputs[0]}/"
        while path in self._prefixes:
            path = f"{path[:-1]}~/"
        self._prefixes.add(path)
        return path

    def _give(self, node: Node, results: tuple[str, ...]) -> None:
        for position, output in enumerate(node.outputs):
            index = output_number(output) if self._tensorflow else position
            if output and index < len(results):
                self._nodes.append(Node("identity", (results[index],), (output,), {}, node.name, node.function))


def _resolved(attributes: Mapping[str, Any], given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not any(isinstance(value, AttributeOf) for value in attributes.values()):
        return attributes
    found = {k: given.get(v.name) if isinstance(v, AttributeOf) else v for k, v in attributes.items()}
    return {name: value for name, value in found.items() if value is not None}
