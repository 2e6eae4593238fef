"""A small BERT spelled out in ONNX operations, every part of which a variant may spell otherwise; and the judge of what
the finder makes of it, with ONNX Runtime as the truth."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import fusebert
from fusebert.engine.model import Model
from fusebert.errors import UnsupportedError
from fusebert.match import Finding, FoundEncoder, assemble, read_encoder
from fusebert.ops.graph import Graph
from fusebert.ops.vocabulary import evaluate
from fusebert.values.forms import reference
from fusebert.values.plan import make_plan

VOCABULARY, POSITIONS = 50, 96
LOWEST = float(np.finfo(np.float32).min)


class Small:
    """One model; a variant is a subclass. Sizes are class attributes, parts are methods that give a tensor's name."""

    opset = 13
    layers, hidden, heads, inner = 2, 24, 3, 40
    epsilon = 1e-12
    batch: int | str = "batch"
    length: int | str = "length"
    longest = POSITIONS
    inputs = ("ids", "mask", "types")
    mask_type: Any = TensorProto.INT64
    mask_shape: tuple[Any, ...] | None = None
    dtype: Any = np.float32

    def __init__(self) -> None:
        self.random = np.random.default_rng(11)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.outputs: list[tuple[str, int]] = []
        self.masked: str | None = None
        self.number = 0

    # Writing

    def op(self, word: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        made = [f"{word}_{len(self.nodes)}_{i}" for i in range(outputs)]
        name = f"node_{len(self.nodes)}"
        self.nodes.append(helper.make_node(word, list(inputs), made, name=name, domain=domain, **attributes))
        return made[0] if outputs == 1 else tuple(made)

    def const(self, value: Any, dtype: Any = None) -> str:
        array = np.asarray(value, dtype)
        if dtype is None:
            array = array.astype(np.int64 if array.dtype.kind in "iu" else array.dtype)
            array = array.astype(self.dtype) if array.dtype.kind == "f" else array
        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name))
        return name

    def weight(self, *shape: int, size: float = 0.3, mean: float = 0.0) -> str:
        return self.const((self.random.standard_normal(shape) * size + mean).astype(self.dtype))

    def shape(self, x: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", x), self.const(axis), axis=0)

    def axes(self, word: str, x: str, axes: list[int]) -> str:
        """Squeeze or Unsqueeze, in the form of the opset."""
        if self.opset < 13:
            return self.op(word, x, axes=axes)
        return self.op(word, x, self.const(axes))

    def mean(self, x: str, word: str = "ReduceMean", axis: int = -1, keepdims: int = 1) -> str:
        if self.opset >= 18 or (word == "ReduceSum" and self.opset >= 13):
            return self.op(word, x, self.const([axis]), keepdims=keepdims)
        return self.op(word, x, axes=[axis], keepdims=keepdims)

    # Parts

    def positions(self) -> str:
        length = self.shape("ids", 1)
        return self.op(
            "Gather", self.weight(self.longest, self.hidden), self.op("Range", self.const(0), length, self.const(1))
        )

    def embeddings(self) -> str:
        x = self.op("Gather", self.weight(VOCABULARY, self.hidden, size=1), "ids")
        x = self.op("Add", x, self.positions())
        if "types" in self.inputs:
            x = self.op("Add", x, self.op("Gather", self.weight(2, self.hidden), "types"))
        return self.normed(x)

    def normed(self, x: str, width: int | None = None) -> str:
        width = width or self.hidden
        return self.layer_norm(x, self.weight(width, mean=1), self.weight(width))

    def layer_norm(self, x: str, gain: str, bias: str) -> str:
        centred = self.op("Sub", x, self.mean(x))
        variance = self.mean(self.op("Pow", centred, self.const(2.0)))
        root = self.op("Sqrt", self.op("Add", variance, self.const(self.epsilon)))
        return self.op("Add", self.op("Mul", self.op("Div", centred, root), gain), bias)

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(inputs, outputs)), self.weight(outputs))

    def split(self, x: str, heads: int, transposed: bool = False) -> str:
        x = self.op("Reshape", x, self.const([0, 0, heads, -1]))
        return self.op("Transpose", x, perm=[0, 2, 3, 1] if transposed else [0, 2, 1, 3])

    def merge(self, x: str) -> str:
        return self.op("Reshape", self.op("Transpose", x, perm=[0, 2, 1, 3]), self.const([0, 0, -1]))

    def additive(self) -> str | None:
        """What is added to the scores, once for all layers."""
        if "mask" not in self.inputs:
            return None
        if self.masked is None:
            wide = self.axes("Unsqueeze", "mask", [1, 2])
            kind = TensorProto.FLOAT if self.dtype == np.float32 else TensorProto.FLOAT16
            hidden = self.op("Sub", self.const(1.0), self.op("Cast", wide, to=kind))
            self.masked = self.op("Mul", hidden, self.const(-10000.0))
        return self.masked

    def scale(self) -> float:
        return 1 / math.sqrt(self.hidden // self.heads)

    def scores(self, query: str, key: str) -> str:
        return self.op("Mul", self.op("MatMul", query, key), self.const(self.scale()))

    def mask(self, scores: str) -> str:
        added = self.additive()
        return scores if added is None else self.op("Add", scores, added)

    def softmax(self, x: str) -> str:
        return self.op("Softmax", x, axis=-1)

    def projections(self, x: str) -> tuple[str, str, str]:
        query, key, value = (self.linear(x, self.hidden, self.hidden) for _ in range(3))
        return (
            self.split(query, self.heads),
            self.split(key, self.heads, transposed=True),
            self.split(value, self.heads),
        )

    def attention(self, x: str) -> str:
        query, key, value = self.projections(x)
        context = self.op("MatMul", self.softmax(self.mask(self.scores(query, key))), value)
        return self.linear(self.merge(context), self.hidden, self.hidden)

    def activation(self, x: str) -> str:
        half = self.op("Add", self.op("Erf", self.op("Div", x, self.const(math.sqrt(2)))), self.const(1.0))
        return self.op("Mul", self.op("Mul", x, half), self.const(0.5))

    def feed(self, x: str) -> str:
        return self.linear(self.activation(self.linear(x, self.hidden, self.inner)), self.inner, self.hidden)

    def residual(self, x: str, y: str) -> str:
        return self.op("Add", y, x)

    def layer(self, x: str) -> str:
        x = self.normed(self.residual(x, self.attention(x)))
        return self.normed(self.residual(x, self.feed(x)))

    def stack(self, x: str) -> str:
        for self.number in range(self.layers):  # noqa: B020
            x = self.layer(x)
        return x

    def head(self, x: str) -> None:
        self.outputs.append((x, 3))

    # The whole

    def build(self) -> onnx.ModelProto:
        self.head(self.stack(self.embeddings()))
        kinds = {"mask": self.mask_type}
        shapes = {"mask": self.mask_shape or (self.batch, self.length)}
        inputs = [
            helper.make_tensor_value_info(
                name, kinds.get(name, TensorProto.INT64), shapes.get(name, (self.batch, self.length))
            )
            for name in self.inputs
        ]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        outputs = [helper.make_tensor_value_info(name, kind, [None] * rank) for name, rank in self.outputs]
        graph = helper.make_graph(self.nodes, "small", inputs, outputs, self.weights)
        domains = {node.domain for node in self.nodes} - {""}
        opsets = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(d, 1) for d in sorted(domains))]
        return helper.make_model(graph, opset_imports=opsets, ir_version=min(8, 10 if self.opset > 18 else 8))

    def feeds(self, kind: str, batch: int, length: int) -> dict[str, np.ndarray]:
        """Inputs with padding of some kind; every row sees something."""
        batch = self.batch if isinstance(self.batch, int) else batch
        length = self.length if isinstance(self.length, int) else min(length, self.longest)
        random = np.random.default_rng([ord(kind[0]), batch, length])
        seen = np.ones((batch, length), np.int64)
        for row in range(batch):
            cut = random.integers(0, length)
            if kind == "right" and cut:
                seen[row, -cut:] = 0
            elif kind == "left":
                seen[row, :cut] = 0
            elif kind == "holes":
                seen[row] = random.random(length) < 0.6
                seen[row, random.integers(0, length)] = 1
        ids = random.integers(0, VOCABULARY, (batch, length))
        ids = ids if "mask" in self.inputs else np.maximum(ids, 2) * seen  # the padding id says what is hidden
        given = {"ids": ids, "mask": self.given_mask(seen), "types": random.integers(0, 2, (batch, length))}
        return {name: given[name] for name in self.inputs}

    def given_mask(self, seen: np.ndarray) -> np.ndarray:
        """The 0/1 mask in the form that the model takes."""
        return seen.astype(helper.tensor_dtype_to_np_dtype(self.mask_type))


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """ONNX Runtime's answers, without its optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def judge(small: Small, path: Path, cases: tuple[tuple[str, int, int], ...] | None = None) -> Finding:
    """The finding in a small model, after everything in it was held against the truth: what was raised computes the
    same as ONNX Runtime, every encoder makes of its input what the graph does, and so does the stand-alone model."""
    model = small.build()
    path = path / "model.onnx"
    onnx.save(model, path)
    graph = fusebert.read(path)
    finding = fusebert.find(graph)
    for case in cases or (("full", 2, 9), ("right", 3, 6), ("left", 2, 7), ("holes", 4, 11), ("holes", 2, 70)):
        feeds = small.feeds(*case)
        wanted = run(model, feeds)
        close(finding, graph, feeds, wanted, 2e-2 if small.dtype == np.float16 else 1e-4)
    return finding


def close(
    finding: Finding, graph: Graph, feeds: dict[str, np.ndarray], wanted: list[np.ndarray], tolerance: float
) -> None:
    """Everything that a finding says about a graph, compared with the answers the framework gives to one input."""
    raised = finding.raised.graph
    ends = [name for found in finding.encoders for name in (found.input, found.output)]
    from dataclasses import replace

    made = evaluate(replace(raised, outputs=(*raised.outputs, *ends)), feeds)
    for name, want in zip(raised.outputs, wanted, strict=True):
        assert error(made[name], want) < tolerance, "raised"
    for found in finding.encoders:
        x = made[found.input].astype(np.float32)
        x = x.reshape(-1, *x.shape[-2:])
        got = reference(read_encoder(finding.raised, found), x, bias(found, feeds))
        assert error(got, made[found.output].reshape(got.shape)) < tolerance, "encoder"
    try:
        whole = assemble(finding)
    except UnsupportedError:
        return
    standalone = Model(whole.network, make_plan("fp32", len(whole.network.encoder.blocks)))
    named = {role: feeds[name] for role, name in whole.inputs.items()}
    if any("give a mask" in text for text in map(str, whole.omitted)):
        named["mask"] = feeds[whole.inputs["ids"]] != finding.encoders[0].mask.hidden_id
    mask = 1 - named["padding"] if "padding" in named else named.get("additive", named.get("mask"))
    if mask is not None and mask.ndim == 2:
        mask = mask.astype(bool)
    answers = standalone.run(named["ids"], mask, named.get("types"), padding="compute", output_hidden_states=True)
    for name, (place, after) in whole.outputs.items():
        assert after or error(answers[name], wanted[place]) < tolerance, f"stand-alone {name}"


def bias(found: FoundEncoder, feeds: dict[str, np.ndarray]) -> np.ndarray | None:
    """What an encoder's mask says is to be added to the scores."""
    if found.mask.kind == "none":
        return None
    given = feeds[found.mask.tensor]
    if found.mask.kind == "additive":
        return given.astype(np.float32)
    if found.mask.kind == "padding":
        given = given == 0
    if found.mask.kind == "ids":
        given = given != found.mask.hidden_id
    if found.mask.kind == "lengths":
        counts = given if given.ndim == 1 else (given != 0).sum(1)
        given = np.arange(given.shape[-1] if given.ndim > 1 else counts.max()) < counts[:, None]
    return np.where(given.astype(bool), 0, np.float32(-1e9))[:, None, None, :].astype(np.float32)


def error(got: np.ndarray, want: np.ndarray) -> float:
    """The largest difference as a share of the largest number."""
    assert got.shape == want.shape, (got.shape, want.shape)
    return float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max() / max(np.abs(want).max(), 1e-9))
