"""The stand-alone form of a model: a folder with `fusebert.json`, `model.safetensors` and `tokenizer.json`.

A Network and its Plan in, a folder out, and back. docs/artifact.md is the specification; the version is raised when an
older reader would misread what is written, and every version stays readable."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.files import Tensors, check_shape, read_json, release
from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import ACTIVATIONS
from fusebert.values.blocks import LINEARS, Encoder, Layer, Linear, Norm
from fusebert.values.network import HEADS, Dense, Embeddings, Head, Network
from fusebert.values.plan import PRECISIONS, PRODUCTS, LayerPlan, Plan, Product

VERSION = 1
HEADER = "fusebert.json"
WEIGHTS = "model.safetensors"


def is_artifact(path: Path) -> bool:
    """Whether a folder is an artifact."""
    return (path / HEADER).is_file()


def write(folder: Path, network: Network, plan: Plan, max_length: int) -> None:
    """Writes header and weights into an existing folder."""
    from safetensors.numpy import save_file

    kept: dict[str, Array] = {}
    tied: dict[str, str] = {}
    for name, array in network.weights():
        twin = next((other for other, seen in kept.items() if seen is array), None)
        if twin:
            tied[name] = twin
        else:
            kept[name] = array
    header = {
        "format": "fusebert",
        "version": VERSION,
        "family": network.family,
        "max_length": max_length,
        "labels": list(network.labels),
        "problem": network.problem,
        "embeddings": {"epsilon": network.embeddings.norm.epsilon, "padding_id": network.embeddings.padding_id},
        "layers": [_layer_header(layer) for layer in network.encoder.layers],
        "head": {"kind": network.head.kind, "steps": [_step_header(step) for step in network.head.steps]},
        "plan": asdict(plan),
        "tied": tied,
    }
    save_file({name: np.ascontiguousarray(array) for name, array in kept.items()}, folder / WEIGHTS)
    for array in kept.values():
        release(array)
    (folder / HEADER).write_text(json.dumps(header, indent=1) + "\n")


def _layer_header(layer: Layer) -> dict[str, Any]:
    return {
        "heads": layer.heads,
        "activation": layer.activation,
        "scale": layer.scale,
        "epsilons": [layer.attention_norm.epsilon, layer.output_norm.epsilon],
    }


def _step_header(step: Dense) -> dict[str, Any]:
    return {"activation": step.activation, "epsilon": None if step.norm is None else step.norm.epsilon}


def read(path: Path) -> tuple[Network, Plan, int]:
    """The network, its plan, and the most tokens of a text."""
    header = _Fields(path / HEADER, read_json(path / HEADER))
    if header.values.get("format") != "fusebert":
        raise FusebertError(f"{header.path}: format is not fusebert")
    if (version := header.whole("version", 1, 1 << 30)) > VERSION:
        raise FusebertError(
            f"{header.path}: version {version} is newer than this fusebert reads ({VERSION}); update fusebert"
        )
    weights = _Weights(path, Tensors(path / WEIGHTS), header.mapping("tied"))
    network = _network(header, weights)
    return (
        network,
        _plan(header.section("plan"), len(network.encoder.layers)),
        header.whole("max_length", 1, network.embeddings.longest),
    )


class _Fields:
    """A JSON object with checked access; errors name the file and the field."""

    def __init__(self, path: Path, values: dict[str, Any], where: str = "") -> None:
        self.path, self.values, self._where = path, values, where

    def _wrong(self, name: str, expected: str) -> FusebertError:
        return FusebertError(
            f"{self.path}: {self._where}{name} is {self.values.get(name)!r:.60}, but must be {expected}"
        )

    def whole(self, name: str, low: int, high: int) -> int:
        value = self.values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"a whole number from {low} to {high}")
        return value

    def number(self, name: str, low: float = -3.4e38, high: float = 3.4e38) -> float:
        return self._number(self.values.get(name), name, low, high)

    def numbers(self, name: str, count: int, low: float, high: float) -> list[float]:
        value = self.values.get(name)
        if not isinstance(value, list) or len(value) != count:
            raise self._wrong(name, f"a list of {count} numbers")
        return [self._number(v, name, low, high) for v in value]

    def _number(self, value: Any, name: str, low: float, high: float) -> float:
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not low <= value <= high:
            raise self._wrong(name, f"a number from {low:g} to {high:g}")
        return float(value)

    def choice(self, name: str, choices: Any) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or value not in choices:
            raise self._wrong(name, f"one of {', '.join(choices)}")
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._wrong(name, "a list of strings")
        return tuple(value)

    def mapping(self, name: str) -> dict[str, str]:
        value = self.values.get(name)
        if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
            raise self._wrong(name, "an object of strings")
        return value

    def section(self, name: str) -> _Fields:
        value = self.values.get(name)
        if not isinstance(value, dict):
            raise self._wrong(name, "an object")
        return _Fields(self.path, value, f"{self._where}{name}.")

    def sections(self, name: str) -> list[_Fields]:
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
            raise self._wrong(name, "a list of objects")
        return [_Fields(self.path, v, f"{self._where}{name}[{i}].") for i, v in enumerate(value)]


class _Weights:
    """The artifact's tensors with checked shapes."""

    def __init__(self, path: Path, tensors: Tensors, tied: dict[str, str]) -> None:
        self._path, self._tensors, self._tied = path / WEIGHTS, tensors, tied
        self._read: dict[str, Array] = {}

    def has(self, name: str) -> bool:
        return self._tied.get(name, name) in self._tensors

    def get(self, name: str, shape: tuple[int | None, ...]) -> Array:
        stored = self._tied.get(name, name)
        if stored not in self._tensors:
            raise FusebertError(f"{self._path} has no tensor {stored}")
        array = self._read.setdefault(stored, self._tensors[stored])
        check_shape(self._path, stored, array, shape)
        return array

    def floats(self, name: str, shape: tuple[int | None, ...]) -> Array:
        array = self.get(name, shape)
        if array.dtype == np.int8:
            raise FusebertError(f"{self._path}: tensor {name} is I8, but must be floats")
        return array

    def linear(self, name: str, outputs: int | None, inputs: int | None) -> Linear:
        weight = self.get(f"{name}.weight", (outputs, inputs))
        rows = (weight.shape[0],)
        bias = self.floats(f"{name}.bias", rows) if self.has(f"{name}.bias") else None
        scales = self.floats(f"{name}.scales", rows) if weight.dtype == np.int8 else None
        columns = f"{name}.input_scales"
        return Linear(weight, bias, scales, self.floats(columns, (weight.shape[1],)) if self.has(columns) else None)

    def norm(self, name: str, width: int, epsilon: float) -> Norm:
        return Norm(self.floats(f"{name}.gain", (width,)), self.floats(f"{name}.bias", (width,)), epsilon)


def _network(header: _Fields, weights: _Weights) -> Network:
    fields = header.section("embeddings")
    word = weights.floats("embeddings.word", (None, None))
    width = word.shape[1]
    project = weights.linear("embeddings.project", None, width) if weights.has("embeddings.project.weight") else None
    hidden = width if project is None else project.weight.shape[0]
    padding = None if fields.values.get("padding_id") is None else fields.whole("padding_id", 0, max(len(word) - 1, 0))
    embeddings = Embeddings(
        word=word,
        position=weights.floats("embeddings.position", (None, width)),
        kind=weights.floats("embeddings.kind", (None, width)) if weights.has("embeddings.kind") else None,
        norm=weights.norm("embeddings.norm", width, fields.number("epsilon", 0, 1)),
        project=project,
        padding_id=padding,
    )
    layers = tuple(_layer(layer, weights, i, hidden) for i, layer in enumerate(header.sections("layers")))
    head = header.section("head")
    steps: list[Dense] = []
    inputs = hidden
    for i, step in enumerate(head.sections("steps")):
        linear = weights.linear(f"head.{i}", None, inputs)
        inputs = linear.weight.shape[0]
        has_norm = step.values.get("epsilon") is not None
        norm = weights.norm(f"head.{i}.norm", inputs, step.number("epsilon", 0, 1)) if has_norm else None
        steps.append(Dense(linear, step.choice("activation", ACTIVATIONS), norm))
    kind = head.choice("kind", HEADS)
    labels = header.strings("labels")
    if kind in ("sequence", "token") and (not steps or len(labels) != inputs):
        raise FusebertError(f"{header.path}: {len(labels)} labels for a head with {inputs} outputs")
    if (
        (kind == "question" and inputs != 2)
        or (kind == "masked" and inputs != len(word))
        or (kind != "none" and not steps)
    ):
        raise FusebertError(f"{header.path}: head.steps do not end as a {kind} head must")
    problem = header.choice("problem", ("single_label", "multi_label", "regression"))
    family = str(header.values.get("family", ""))
    return Network(family, embeddings, Encoder(hidden, layers), Head(kind, tuple(steps)), labels, problem)


def _layer(fields: _Fields, weights: _Weights, number: int, hidden: int) -> Layer:
    name = f"layer.{number}"
    linears = {n: weights.linear(f"{name}.{n}", hidden if n in ("attention_out", "ffn_out") else None,
                                 None if n in ("attention_out", "ffn_out") else hidden) for n in LINEARS}  # fmt: skip
    first, second = fields.numbers("epsilons", 2, 0, 1)
    return Layer(
        **linears,
        attention_norm=weights.norm(f"{name}.attention_norm", hidden, first),
        output_norm=weights.norm(f"{name}.output_norm", hidden, second),
        heads=fields.whole("heads", 1, 1 << 16),
        activation=fields.choice("activation", ACTIVATIONS),
        scale=fields.number("scale"),
    )


def _plan(fields: _Fields, layers: int) -> Plan:
    plans = fields.sections("layers")
    if len(plans) != layers:
        raise FusebertError(f"{fields.path}: plan.layers has {len(plans)} entries for {layers} layers")
    parsed = []
    for plan in plans:
        products = {name: _product(plan.section(name)) for name in PRODUCTS}
        parsed.append(LayerPlan(**products, attention=plan.choice("attention", ("f32", "bf16"))))
    return Plan(fields.choice("precision", PRECISIONS), tuple(parsed), fields.choice("decoder", ("f32", "bf16", "s8")))


def _product(fields: _Fields) -> Product:
    return Product(fields.choice("type", ("f32", "bf16", "s8")), fields.number("low"), fields.number("high"))
