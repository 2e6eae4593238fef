"""Graphs rewritten without changing what they compute: other names, another order, detours, copies. Used by the tests
of the finder; each takes a Graph, what its tensors are in one run, and a source of chance, and gives a Graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import count

import numpy as np

from fusebert.formats.onnx.types import NUMBERS as _NUMBERS
from fusebert.match import translate
from fusebert.ops.graph import Graph, Node, Weight
from fusebert.ops.vocabulary import evaluate

Values = Mapping[str, np.ndarray]
Rewrite = Callable[[Graph, Values, np.random.Generator], Graph]

_COMMUTE = {"Add", "AddV2", "Mul", "And", "Or", "Equal", "Max", "Min", "Maximum", "Minimum", "LogicalAnd", "Sum"}
_QUIET = {"onnx": ("Identity", "Dropout"), "tensorflow": ("Identity", "StopGradient", "Snapshot")}
_COUNT = count()


def values_of(graph: Graph, feeds: Values) -> Values:
    """Every tensor of a graph in one run, as far as the outputs need it; those of functions under their own names."""
    translated = translate(graph)
    every = dict.fromkeys(t for node in translated.nodes for t in node.outputs if t)
    found = evaluate(replace(translated, outputs=tuple(every)), feeds)
    short = {name.rpartition("/")[2]: value for name, value in found.items()}
    for name, value in found.items():  # a call's tensors are named call/tensor
        for at in (i for i, letter in enumerate(name) if letter == "/"):
            short[name[at + 1 :]] = value
    return {**short, **found, **feeds}


def is_tensorflow(graph: Graph) -> bool:
    return str(graph.facts["format"]).startswith("tensorflow")


def _everywhere(rewrite: Callable[[Graph, bool, Values, np.random.Generator], Graph]) -> Rewrite:
    """Of the main graph and of its functions."""

    def run(graph: Graph, values: Values, random: np.random.Generator) -> Graph:
        dialect = is_tensorflow(graph)
        functions = {
            name: rewrite(body, dialect, values, random) if "traced" not in name else body
            for name, body in graph.functions.items()
        }
        return replace(rewrite(graph, dialect, values, random), functions=functions)

    return run


def _fresh(graph: Graph, tensorflow: bool) -> Iterator[str]:
    taken = {*graph.inputs, *graph.weights, *(t for node in graph.nodes for t in (*node.inputs, *node.outputs))}
    for number in _COUNT:  # no two graphs have the same
        name = f"detour_{number}:0" if tensorflow else f"detour_{number}"
        if name not in taken:
            yield name


def renamed(graph: Graph, values: Values, random: np.random.Generator) -> Graph:
    """All nodes and tensors have names that say nothing; inputs and outputs keep their places."""
    functions = {name: _renamed(body, is_tensorflow(graph), random) for name, body in graph.functions.items()}
    return replace(_renamed(graph, is_tensorflow(graph), random), functions=functions)


def _renamed(graph: Graph, tensorflow: bool, random: np.random.Generator) -> Graph:
    tensors = list(dict.fromkeys([*graph.inputs, *graph.weights, *_made(graph)]))
    numbers = random.permutation(len(tensors))
    names = {}
    for tensor, number in zip(tensors, numbers, strict=True):
        place = tensor.rpartition(":")[2]
        names[tensor] = f"t{number}:{place}" if tensorflow and place.isdecimal() else f"t{number}"
    return _with_names(graph, names, iter(random.permutation(len(graph.nodes) + 10_000)))


def _made(graph: Graph) -> Iterator[str]:
    for node in graph.nodes:
        yield from filter(None, node.outputs)
        for inner in node.attributes.values():
            if isinstance(inner, Graph):
                yield from (*inner.inputs, *inner.weights, *_made(inner))


def _with_names(graph: Graph, names: Mapping[str, str], numbers: Iterator[int]) -> Graph:
    nodes = []
    for node in graph.nodes:
        attributes = {
            key: _with_names(value, names, numbers) if isinstance(value, Graph) else value
            for key, value in node.attributes.items()
        }
        inputs, outputs = (tuple(names.get(t, t) for t in ts) for ts in (node.inputs, node.outputs))
        nodes.append(replace(node, name=f"n{next(numbers)}", inputs=inputs, outputs=outputs, attributes=attributes))
    return replace(
        graph,
        nodes=tuple(nodes),
        inputs=tuple(names.get(t, t) for t in graph.inputs),
        outputs=tuple(names.get(t, t) for t in graph.outputs),
        weights={names.get(t, t): weight for t, weight in graph.weights.items()},
        types={names.get(t, t): kind for t, kind in graph.types.items()},
    )


@_everywhere
def shuffled(graph: Graph, tensorflow: bool, values: Values, random: np.random.Generator) -> Graph:
    """Nodes in any order."""
    return replace(graph, nodes=tuple(graph.nodes[i] for i in random.permutation(len(graph.nodes))))


@_everywhere
def swapped(graph: Graph, tensorflow: bool, values: Values, random: np.random.Generator) -> Graph:
    """Inputs of commutative nodes the other way round; the older operation Max of TensorFlow is a reduction."""
    words = _COMMUTE - {"Max", "Min", "Sum"} if tensorflow else _COMMUTE
    nodes = [replace(n, inputs=n.inputs[::-1]) if n.op in words and len(n.inputs) > 1 else n for n in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


@_everywhere
def copied(graph: Graph, tensorflow: bool, values: Values, random: np.random.Generator) -> Graph:
    """Every reader of a constant has its own; a variable stays one."""
    weights, nodes, names = dict(graph.weights), [], _fresh(graph, tensorflow)
    made = {t for node in graph.nodes for t in node.outputs}
    for node in graph.nodes:
        inputs = []
        for name in node.inputs:
            if name in graph.weights and name not in made:
                copy = next(names)
                weights[copy] = graph.weights[name]
                name = copy
            inputs.append(name)
        nodes.append(replace(node, inputs=tuple(inputs)))
    return replace(graph, nodes=tuple(nodes), weights=weights)


@_everywhere
def shared(graph: Graph, tensorflow: bool, values: Values, random: np.random.Generator) -> Graph:
    """Equal constants are one."""
    first: dict[tuple[object, ...], str] = {}
    names = {}
    made = {t for node in graph.nodes for t in node.outputs}
    for name, weight in graph.weights.items():
        if weight.dtype != "string" and name not in made:
            names[name] = first.setdefault((weight.shape, weight.dtype, weight.read().tobytes()), name)
    nodes = [replace(node, inputs=tuple(names.get(t, t) for t in node.inputs)) for node in graph.nodes]
    return replace(graph, nodes=tuple(nodes))


def _detoured(
    detour: Callable[[str, np.ndarray, Iterator[str], dict[str, Weight], bool, np.random.Generator], list[Node] | None],
    share: float = 0.3,
) -> Rewrite:
    """Some nodes read a tensor by way of other nodes, which the function makes."""

    @_everywhere
    def rewrite(graph: Graph, tensorflow: bool, values: Values, random: np.random.Generator) -> Graph:
        weights, nodes, names = dict(graph.weights), [], _fresh(graph, tensorflow)
        known = {**values, **{n: w.read() for n, w in graph.weights.items() if w.dtype != "string"}}
        handles = {n for node in graph.nodes if node.op in ("VarHandleOp", "VariableV2") for n in node.outputs}
        for node in graph.nodes:
            inputs = []
            for name in node.inputs:
                usable = name and name in known and name not in handles and "Variable" not in node.op
                if usable and "resource" not in name and random.random() < share:
                    way = detour(name, known[name], names, weights, tensorflow, random)
                    if way:
                        nodes += way
                        name = way[-1].outputs[0]
                inputs.append(name)
            nodes.append(replace(node, inputs=tuple(inputs)))
        return replace(graph, nodes=tuple(nodes), weights=weights)

    return rewrite


def _identity(
    name: str, value: np.ndarray, names: Iterator[str], weights: dict, tensorflow: bool, random: np.random.Generator
) -> list[Node] | None:
    word = str(random.choice(_QUIET["tensorflow" if tensorflow else "onnx"]))
    if word == "Dropout" and value.dtype.kind != "f":
        word = "Identity"
    out = next(names)
    return [Node(word, (name,), (out,), {}, f"quiet {out}")]


def _cast(
    name: str, value: np.ndarray, names: Iterator[str], weights: dict, tensorflow: bool, random: np.random.Generator
) -> list[Node] | None:
    kind, out = value.dtype.name, next(names)
    return [Node("Cast", (name,), (out,), {"DstT": kind} if tensorflow else {"to": _NUMBERS[kind]}, f"cast {out}")]


def _reshape(
    name: str, value: np.ndarray, names: Iterator[str], weights: dict, tensorflow: bool, random: np.random.Generator
) -> list[Node] | None:
    shape, out = next(names), next(names)
    node = Node("Reshape", (name, shape), (out,), {}, f"reshape {out}")
    if not tensorflow and random.random() < 0.5:
        weights[shape] = Weight.of(np.zeros(value.ndim, np.int64))  # 0 copies a size
        return [node] if value.ndim else None
    return [Node("Shape", (name,), (shape,), {}, f"shape of {out}"), node]


def _transposes(
    name: str, value: np.ndarray, names: Iterator[str], weights: dict, tensorflow: bool, random: np.random.Generator
) -> list[Node] | None:
    if value.ndim < 2:
        return None
    order = random.permutation(value.ndim)
    nodes, at = [], name
    for perm in (order, np.argsort(order)):
        out = next(names)
        if tensorflow:
            weights[axes := next(names)] = Weight.of(perm.astype(np.int32))
            nodes.append(Node("Transpose", (at, axes), (out,), {}, f"turn {out}"))
        else:
            nodes.append(Node("Transpose", (at,), (out,), {"perm": tuple(int(p) for p in perm)}, f"turn {out}"))
        at = out
    return nodes


identities, casts = _detoured(_identity), _detoured(_cast)
reshapes, transposes = _detoured(_reshape), _detoured(_transposes)


@_everywhere
def products_apart(graph: Graph, tensorflow: bool, values: Values, random: np.random.Generator) -> Graph:
    """Gemm as Transpose, MatMul and Add."""
    nodes, names = [], _fresh(graph, tensorflow)
    for node in graph.nodes:
        plain = node.attributes.get("alpha", 1) == node.attributes.get("beta", 1) == 1
        if node.op != "Gemm" or not plain or node.attributes.get("transA"):
            nodes.append(node)
            continue
        a, b = node.inputs[:2]
        if node.attributes.get("transB"):
            turned = next(names)
            nodes.append(Node("Transpose", (b,), (turned,), {"perm": (1, 0)}, f"{node.name} turned"))
            b = turned
        product = next(names) if len(node.inputs) > 2 else node.outputs[0]
        nodes.append(Node("MatMul", (a, b), (product,), {}, node.name))
        if len(node.inputs) > 2:
            nodes.append(Node("Add", (product, node.inputs[2]), node.outputs, {}, f"{node.name} bias"))
    return replace(graph, nodes=tuple(nodes))


@_everywhere
def products_together(graph: Graph, tensorflow: bool, values: Values, random: np.random.Generator) -> Graph:
    """MatMul and Add with constants as Reshape, Gemm with a transposed weight, and Reshape."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    weights, names, instead, gone = dict(graph.weights), _fresh(graph, tensorflow), {}, set()
    for node in graph.nodes:
        after = readers.get(node.outputs[0], [])
        matrix = graph.weights.get(node.inputs[1]) if node.op == "MatMul" else None
        if matrix is None or len(matrix.shape) != 2 or len(after) != 1 or after[0].op != "Add":
            continue
        bias = next((n for n in after[0].inputs if n in graph.weights and len(graph.weights[n].shape) == 1), None)
        if bias is None or tensorflow or node.outputs[0] in graph.outputs:
            continue
        rows, flat, turned, made, shape, head, size = (next(names) for _ in range(7))
        weights[rows] = Weight.of(np.array([-1, matrix.shape[0]]))
        weights[turned] = Weight.of(np.ascontiguousarray(matrix.read().T))
        weights[size] = Weight.of(np.array([matrix.shape[1]]))
        begin, end, target = (next(names) for _ in range(3))
        weights[begin], weights[end] = Weight.of(np.array([0])), Weight.of(np.array([-1]))
        old = graph.facts["opsets"]["ai.onnx"] < 10
        cut = Node("Slice", (shape,), (head,), {"starts": (0,), "ends": (-1,)}, f"{node.name} lead")
        instead[id(node)] = [
            Node("Reshape", (node.inputs[0], rows), (flat,), {}, f"{node.name} flat"),
            Node("Gemm", (flat, turned, bias), (made,), {"transB": 1}, node.name),
            Node("Shape", (node.inputs[0],), (shape,), {}, f"{node.name} shape"),
            cut if old else Node("Slice", (shape, begin, end), (head,), {}, f"{node.name} lead"),
            Node("Concat", (head, size), (target,), {"axis": 0}, f"{node.name} target"),
            Node("Reshape", (made, target), after[0].outputs, {}, f"{node.name} back"),
        ]
        gone.add(id(after[0]))
    nodes = [new for node in graph.nodes if id(node) not in gone for new in instead.get(id(node), [node])]
    return replace(graph, nodes=tuple(nodes), weights=weights)


REWRITES: dict[str, Rewrite] = {
    "renamed": renamed,
    "shuffled": shuffled,
    "swapped": swapped,
    "copied": copied,
    "shared": shared,
    "identities": identities,
    "casts": casts,
    "reshapes": reshapes,
    "transposes": transposes,
    "products apart": products_apart,
    "products together": products_together,
}
