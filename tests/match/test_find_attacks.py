"""Graphs that mean harm: reading and finding them gives a Finding, mostly an empty one, or raises FusebertError.
Nothing else is raised, nothing hangs, and no small graph costs much memory."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
import zoo
from costs import assert_in_proportion, little_memory, no_hang
from damage import damage
from fuzz.graphs import mutated
from fuzz.mutate import HUGE
from hypothesis import HealthCheck, given, settings
from small import Small

import fusebert
from fusebert import FusebertError
from fusebert.match import Finding, assemble
from fusebert.ops.graph import Graph, Node, TensorType, Weight

SECONDS = 1800  # generous: only what would never end is ended
MODELS = ("onnx-bert-14-sdpa", "onnx-bert-dynamo-eager", "tf1-frozen", "tf-bert", "ort-fused-bert", "int8-dynamic-bert")
PATIENT = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    with no_hang(SECONDS):
        yield


def survive(graph: Graph) -> Finding | None:
    """A finding, or nothing where it was refused as it should be."""
    with little_memory():
        try:
            finding = fusebert.find(graph)
            assemble(finding)
        except FusebertError:
            return None
    return finding


@cache
def sound(name: str) -> Graph:
    return fusebert.read(zoo.get(name).make())


def graph_of(*nodes: Node, weights: dict[str, Any] | None = None, shape: Any = (None, None), **more: Any) -> Graph:
    """A small ONNX graph with one input `x`."""
    held = {name: Weight.of(np.asarray(value)) for name, value in (weights or {}).items()}
    last = nodes[-1].outputs if nodes else ("x",)
    types = {"x": TensorType(more.pop("dtype", "int64"), shape)}
    facts = {"format": "onnx", "opsets": {"ai.onnx": 17}}
    return Graph(nodes, ("x",), last, held, types, more.pop("functions", {}), facts)


# Structure


def test_cycles_and_missing_tensors():
    survive(graph_of(Node("Add", ("x", "b"), ("a",)), Node("Add", ("a", "x"), ("b",))))
    survive(graph_of(Node("Add", ("b", "b"), ("b",))))
    survive(graph_of(Node("Add", ("x", "nowhere"), ("a",))))
    survive(replace(graph_of(Node("Relu", ("x",), ("a",))), outputs=("nowhere", "a", "")))
    survive(graph_of())


def test_tensors_that_are_made_twice():
    survive(graph_of(Node("Relu", ("x",), ("a",)), Node("Erf", ("x",), ("a",)), Node("Add", ("a", "a"), ("b",))))
    survive(graph_of(Node("Relu", ("x",), ("x",))))
    survive(graph_of(Node("Split", ("x",), ("a", "a", "")), Node("Add", ("a", "a"), ("b",))))


def test_functions_that_call_themselves_or_too_deep():
    body = Graph((Node("f", ("i",), ("o",)),), ("i",), ("o",), {})
    with pytest.raises(FusebertError, match="calls itself"):
        fusebert.find(graph_of(Node("f", ("x",), ("y",)), functions={"f": body}))
    deep = {f"f{i}": Graph((Node(f"f{i + 1}", ("i",), ("o",)),), ("i",), ("o",), {}) for i in range(5000)}
    deep["f5000"] = Graph((Node("Relu", ("i",), ("o",)),), ("i",), ("o",), {})
    with pytest.raises(FusebertError, match="through more than"):
        fusebert.find(graph_of(Node("f0", ("x",), ("y",)), functions=deep))
    wide = {f"f{i}": Graph(tuple(Node(f"f{i + 1}", ("i",), (f"o{j}",)) for j in range(10)), ("i",),
                           tuple(f"o{j}" for j in range(10)), {}) for i in range(20)}  # fmt: skip
    wide["f20"] = Graph((Node("Relu", ("i",), ("o",)),), ("i",), ("o",), {})
    with pytest.raises(FusebertError, match="become"):
        fusebert.find(graph_of(Node("f0", ("x",), ("y",)), functions=wide))


def test_inner_graphs_in_inner_graphs():
    inner = Graph((Node("Relu", ("x",), ("r",)),), (), ("r",), {})
    for i in range(3000):
        branch = Node("If", ("x",), (f"r{i}",), {"then_branch": inner})
        inner = Graph((branch,), (), (f"r{i}",), {})
    survive(graph_of(Node("If", ("x",), ("y",), {"then_branch": inner})))
    survive(graph_of(Node("If", ("c",), ("y",), {"then_branch": inner}), weights={"c": True}))


def test_words_of_ours_mean_nothing_in_a_file():
    """A custom operation that is called `layer_norm` or `softmax` is not ours."""
    graph = sound("onnx-bert-14-eager")
    nodes = tuple(replace(node, op="softmax") if node.op == "Softmax" else node for node in graph.nodes)
    assert not fusebert.find(replace(graph, nodes=nodes)).encoders


# Sizes


@pytest.mark.parametrize(
    ("word", "weights", "attributes"),
    [
        ("ConstantOfShape", {"s": [HUGE, HUGE]}, {}),
        ("ConstantOfShape", {"s": [1 << 17, 1 << 17]}, {}),
        ("ConstantOfShape", {"s": [-1, 5]}, {}),
        ("Reshape", {"a": np.ones(6), "s": [HUGE, -1]}, {}),
        ("Reshape", {"a": np.ones(6), "s": [-1, -1, 0]}, {}),
        ("Expand", {"a": np.ones(1), "s": [HUGE, 3]}, {}),
        ("Expand", {"a": np.ones(1), "s": [1 << 16, 1 << 16]}, {}),
        ("Tile", {"a": np.ones(4), "s": [1 << 33]}, {}),
        ("Tile", {"a": np.ones(4), "s": [-(1 << 33)]}, {}),
        ("Range", {"a": 0, "l": HUGE, "d": 1}, {}),
        ("Range", {"a": 0.0, "l": np.inf, "d": 1.0}, {}),
        ("Range", {"a": 0, "l": 5, "d": 0}, {}),
        ("OneHot", {"a": np.arange(100), "d": HUGE, "v": [0, 1]}, {}),
        ("Pad", {"a": np.ones((2, 2)), "p": [HUGE, 0, 0, HUGE]}, {}),
        ("Add", {"a": np.ones((1 << 18, 1), np.int64), "b": np.ones((1, 1 << 18), np.int64)}, {}),
        ("MatMul", {"a": np.ones((1 << 18, 1), np.int64), "b": np.ones((1, 1 << 18), np.int64)}, {}),
        ("Einsum", {"a": np.ones(1 << 18, np.int64), "b": np.ones(1 << 18, np.int64)}, {"equation": "i,j->ij"}),
        ("Einsum", {"a": np.ones((4, 4)), "b": np.ones(4)}, {"equation": "ij...,->->"}),
        ("Gather", {"a": np.ones((2, 1 << 18), np.int64), "i": np.zeros(1 << 18, np.int64)}, {"axis": 0}),
        ("Gather", {"a": np.ones((2, 2)), "i": [HUGE]}, {"axis": 9}),
        ("Concat", {"a": np.ones((2, 2)), "b": np.ones(3)}, {"axis": 7}),
        ("Slice", {"a": np.ones((2, 2)), "s": [0], "e": [1], "x": [9]}, {}),
        ("Slice", {"a": np.ones((2, 2)), "s": [0], "e": [1], "x": [0], "t": [0]}, {}),
        ("Transpose", {"a": np.ones((2, 2))}, {"perm": (7, 7, 7)}),
        ("Split", {"a": np.ones((2, 2)), "s": [-HUGE, HUGE]}, {"axis": -9}),
        ("Softmax", {"a": np.ones((2, 2))}, {"axis": "three"}),
        ("LayerNormalization", {"a": np.ones((2, 2)), "g": np.ones(2)}, {"epsilon": "small", "axis": (1,)}),
        ("Cast", {"a": np.ones(2)}, {"to": b"float"}),
        ("Trilu", {"a": np.ones((3, 3)), "k": HUGE}, {}),
        ("CumSum", {"a": np.ones(3), "x": [HUGE]}, {}),
        ("Mod", {"a": np.ones(3, np.int64), "b": np.zeros(3, np.int64)}, {}),
        ("Div", {"a": np.ones(3, np.int64), "b": np.zeros(3, np.int64)}, {}),
        ("Pow", {"a": np.ones(3, np.int64), "b": np.array([-1, HUGE, 2])}, {}),
        ("Unsqueeze", {"a": np.ones(3), "x": list(range(80))}, {}),
    ],
)
def test_one_node_that_asks_for_too_much(word, weights, attributes):
    """On constants, on an input in the first place, and on what depends on the input's shape."""
    outputs = ("y", "z") if word == "Split" else ("y",)
    survive(graph_of(Node(word, tuple(weights), outputs, attributes), weights=weights))
    survive(graph_of(Node(word, ("x", *list(weights)[1:]), outputs, attributes), weights=weights))
    shape = Node("Shape", ("x",), ("shape",))
    for place in range(len(weights)):
        names = [*weights]
        names[place] = "shape"
        survive(graph_of(shape, Node(word, tuple(names), outputs, attributes), weights=weights))
    tensors = (Node(word, ("x", *list(weights)[1:]), outputs, attributes), Node("Add", ("y", "x"), ("w",)))
    survive(graph_of(*tensors, weights=weights, shape=(HUGE, 1 << 17), dtype="float32"))


@pytest.mark.parametrize(
    "shape",
    [
        (HUGE, HUGE), (1 << 20, 1 << 20), (-5, -7), (0, 0), (1, 1), (3,) * 10, (1,) * 70, (), ("a", -1, HUGE), None,
        (1 << 62, 1 << 62, 1 << 62),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["int64", "float32", "string", "complex128", "", "nonsense"])
@pytest.mark.parametrize("name", ["onnx-bert-14-sdpa", "tf1-frozen"])
def test_inputs_of_any_declared_shape(name, dtype, shape):
    graph = sound(name)
    types = {**graph.types, **{tensor: TensorType(dtype, shape) for tensor in graph.inputs}}
    survive(replace(graph, types=types))


def test_weights_that_are_not_what_they_say():
    def wrong() -> np.ndarray:
        raise FusebertError("the file ends before this weight does")

    graph = sound("onnx-bert-14-eager")
    for weight in (
        Weight((HUGE, HUGE), "float32", wrong),
        Weight((-3, 4), "int64", wrong),
        Weight((3,), "string", lambda: np.array([b"a", b"b", b"c"], object)),
        Weight((), "nonsense", wrong),
        Weight((2, 2), "float32", lambda: np.full((2, 2), np.nan, np.float32)),
        Weight((), "float32", lambda: np.float32("inf").reshape(())),
        Weight((1,), "int64", lambda: np.array([-(1 << 62)])),
    ):
        for name in list(graph.weights)[::9]:
            survive(replace(graph, weights={**graph.weights, name: weight}))


# Length


def _chain(count: int, word: str = "Relu", extra: tuple[str, ...] = ()) -> Graph:
    names = ["x", *(f"t{i}" for i in range(count))]
    nodes = [Node(word, (names[i], *extra), (names[i + 1],), {}, f"n{i}") for i in range(count)]
    return graph_of(*nodes, weights={"c": np.float32(1.5), "m": np.ones((2, 2), np.float32)}, dtype="float32")


@pytest.mark.parametrize(
    ("word", "extra"),
    [("Relu", ()), ("Add", ("c",)), ("Mul", ("x",)), ("Erf", ()), ("Transpose", ()), ("Identity", ())],
)
def test_a_long_chain_takes_work_in_proportion(word, extra):
    assert_in_proportion(lambda length: survive(_chain(length, word, extra)), 200)


def test_a_very_long_chain():
    survive(_chain(20_000))


def _norms(count: int) -> Graph:
    nodes, last = [], "x"
    for i in range(count):
        nodes.append(Node("MatMul", (last, "w"), (f"p{i}",), {}, f"product {i}"))
        nodes.append(Node("Add", (f"p{i}", last), (f"s{i}",), {}, f"sum {i}"))
        nodes.append(Node("LayerNormalization", (f"s{i}", "g"), (f"l{i}",), {}, f"norm {i}"))
        last = f"l{i}"
    weights = {"w": np.ones((8, 8), np.float32), "g": np.ones(8, np.float32)}
    return graph_of(*nodes, weights=weights, shape=(None, None, 8), dtype="float32")


def test_many_products_sums_and_norms_take_work_in_proportion():
    assert_in_proportion(lambda count: survive(_norms(count)), 50)


def test_many_large_constants_are_not_all_computed():
    nodes, last = [], "c"
    for i in range(2000):
        nodes.append(Node("Add", (last, "c"), (f"t{i}",), {}, f"n{i}"))
        last = f"t{i}"
    survive(graph_of(*nodes, weights={"c": np.ones(1 << 19, np.int64)}))


# Anything at once


@pytest.mark.parametrize("name", MODELS)
def test_graphs_that_are_wrong_here_and_there(name):
    for seed in range(100):
        survive(mutated(sound(name), Random(seed)))


@pytest.mark.parametrize("name", ["tf-bert", "tf-official"])
def test_functions_that_are_wrong_here_and_there(name):
    graph = sound(name)
    largest = max(graph.functions, key=lambda f: len(graph.functions[f].nodes) if "traced" not in f else 0)
    for seed in range(50):
        wrong = mutated(graph.functions[largest], Random(seed))
        survive(replace(graph, functions={**graph.functions, largest: wrong}))


# Files


@cache
def _copied(name: str) -> Path:
    """A model of the zoo in a place of its own, where it can be damaged."""
    source = zoo.get(name).make()
    place = Path(tempfile.mkdtemp()) / source.name
    (shutil.copytree if source.is_dir() else shutil.copy)(source, place)
    return place


@pytest.mark.parametrize("name", ["onnx-bert-dynamo-sdpa", "ort-fused-bert", "tf1-frozen", "tf-official", "tf1-text"])
def test_damaged_files(name):
    path = _copied(name)
    file = path / "saved_model.pb" if path.is_dir() else path
    data = file.read_bytes()

    @PATIENT
    @given(damage(data))
    def check(wrong: bytes) -> None:
        file.unlink()
        file.write_bytes(wrong)
        with little_memory():
            try:
                fusebert.find(fusebert.read(path))
            except FusebertError:
                return

    check()


def test_inspect_says_one_sentence(run, tmp_path):
    class Cyclic(Small):
        layers = 1

    model = Cyclic().build()
    model.graph.node[5].input[0] = model.graph.node[9].output[0]
    onnx.save(model, tmp_path / "model.onnx")
    assert "Traceback" not in run("inspect", tmp_path / "model.onnx", "--json", code=2)
    onnx.save(Small().build(), tmp_path / "sound.onnx")
    assert json.loads(run("inspect", tmp_path / "sound.onnx", "--json"))["encoders"][0]["layers"] == 2
