"""The artifact's header and weights -> Network + Plan. Every field and every shape is checked before it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.artifact import version1
from fusebert.formats.artifact.header import HEADER, VERSION, WEIGHTS, Fields
from fusebert.formats.files import Tensors, check_shape, read_json
from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import ACTIVATIONS
from fusebert.values.blocks import (
    Attention,
    Block,
    Disentangled,
    Encoder,
    FeedForward,
    Linear,
    Norm,
    Position,
    Relative,
    Rotary,
)
from fusebert.values.network import (
    HEAD_POOLING,
    HEADS,
    SCORES,
    SPLADE,
    Dense,
    Embeddings,
    Head,
    Network,
    Sentence,
    TokenHeads,
)
from fusebert.values.plan import BlockPlan, Plan, Product
from fusebert.values.precision import BYTES, PRECISIONS

_TYPES = ("f32", "bf16", "s8")
_MOST = 1 << 16  # blocks that run


def read(path: Path) -> tuple[Network, Plan, int]:
    """The network, its plan, and the most tokens of a text."""
    header = Fields(path / HEADER, read_json(path / HEADER))
    if header.values.get("format") != "fusebert":
        raise FusebertError(f"{header.path}: format is not fusebert")
    version = header.whole("version", 1, 1 << 30)
    if version > VERSION:
        raise FusebertError(
            f"{header.path}: version {version} is newer than this fusebert reads ({VERSION}); update fusebert"
        )
    rename: Callable[[str], str] = str
    if version == 1:
        header, rename = version1.upgrade(header), version1.tensor_name
    network = _network(header, Weights(path, header.mapping("tied"), rename))
    return network, _plan(header), header.whole("max_length", 1, network.embeddings.longest)


class Weights:
    """The artifact's tensors with checked shapes."""

    def __init__(self, path: Path, tied: dict[str, str], rename: Callable[[str], str]) -> None:
        self._path, self._tied, self._rename = path / WEIGHTS, tied, rename
        self._tensors = Tensors(self._path)
        self._read: dict[str, Array] = {}

    def _stored(self, name: str) -> str:
        name = self._rename(name)
        return self._tied.get(name, name)

    def has(self, name: str) -> bool:
        return self._stored(name) in self._tensors

    def get(self, name: str, shape: tuple[int | None, ...]) -> Array:
        stored = self._stored(name)
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


def _network(header: Fields, weights: Weights) -> Network:
    fields = header.section("embeddings")
    word = weights.floats("embeddings.word", (None, None))
    width = word.shape[1]
    project = weights.linear("embeddings.project", None, width) if weights.has("embeddings.project.weight") else None
    hidden = width if project is None else project.weight.shape[0]
    padding = None if fields.values.get("padding_id") is None else fields.whole("padding_id", 0, max(len(word) - 1, 0))
    most = fields.whole("max_positions", 1, 1 << 24) if fields.optional("max_positions") else None

    embeddings = Embeddings(
        word=word,
        position=weights.floats("embeddings.position", (None, width)) if most is None else None,
        kind=weights.floats("embeddings.kind", (None, width)) if weights.has("embeddings.kind") else None,
        norm=_norm(fields, "norm", weights, "embeddings.norm", width),
        project=project,
        padding_id=padding,
        projected_norm=_norm(fields, "projected_norm", weights, "embeddings.projected_norm", hidden),
        scale=fields.number("scale", 1e-6, 1e6) if fields.optional("scale") else 1.0,
        max_positions=most,
    )
    head = header.section("head")
    steps, inputs = _steps(head, weights, "head", hidden)
    kind = head.choice("kind", HEADS)
    pooling = head.choice("pooling", HEAD_POOLING) if head.optional("pooling") else "first"
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
    return Network(
        family, embeddings, _encoder(header, weights, hidden), Head(kind, steps, pooling), labels, problem,
        _sentence(header.section("sentence"), weights, hidden) if header.optional("sentence") else None,
        _token_heads(weights, hidden), header.choice("scores", SCORES) if header.optional("scores") else SCORES[0],
    )  # fmt: skip


def _token_heads(weights: Weights, hidden: int) -> TokenHeads | None:
    if not weights.has("token_heads.weight.weight"):
        return None
    return TokenHeads(
        weights.linear("token_heads.weight", 1, hidden), weights.linear("token_heads.vector", None, hidden)
    )


def _steps(fields: Fields, weights: Weights, path: str, inputs: int) -> tuple[tuple[Dense, ...], int]:
    """Products one after the other, and the outputs of the last."""
    steps = []
    for i, step in enumerate(fields.sections("steps")):
        linear = weights.linear(f"{path}.{i}", None, inputs)
        inputs = linear.weight.shape[0]
        norm = _norm(step, "norm", weights, f"{path}.{i}.norm", inputs)
        steps.append(Dense(linear, step.choice("activation", ACTIVATIONS), norm))
    return tuple(steps), inputs


def _sentence(fields: Fields, weights: Weights, hidden: int) -> Sentence:
    prompts, pooling = fields.mapping("prompts"), str(fields.values.get("pooling"))
    default = fields.choice("default_prompt", prompts) if fields.optional("default_prompt") else None
    steps, _ = _steps(fields, weights, "sentence", hidden * len(pooling.split("+")))
    normalize, refusal = fields.values.get("normalize") is True, str(fields.values.get("refusal", ""))
    splade = fields.choice("splade", SPLADE) if fields.values.get("splade") else ""
    return Sentence(pooling, steps, normalize, prompts, default, refusal, splade)


def _encoder(header: Fields, weights: Weights, hidden: int) -> Encoder:
    blocks = tuple(_block(fields, weights, f"block.{i}", hidden) for i, fields in enumerate(header.sections("blocks")))
    order = header.values.get("order")
    known = range(len(blocks))
    if not isinstance(order, list) or len(order) > _MOST or not all(type(i) is int and i in known for i in order):
        raise FusebertError(f"{header.path}: order must be a list of block numbers from 0 to {len(blocks) - 1}")
    return Encoder(hidden, blocks, tuple(order), _norm(header, "final", weights, "final", hidden))


def _block(fields: Fields, weights: Weights, path: str, hidden: int) -> Block:
    norms = fields.section("norms")

    def norm(name: str, width: int | None = hidden) -> Norm | None:
        return _norm(norms, name, weights, f"{path}.{name}", width)

    def inward(name: str) -> Linear:
        return weights.linear(f"{path}.{name}", None, hidden)

    def outward(name: str) -> Linear:
        return weights.linear(f"{path}.{name}", hidden, None)

    body: Attention | FeedForward
    if fields.choice("body", ("attention", "feed_forward")) == "attention":
        body = Attention(
            inward("query"), inward("key"), inward("value"), outward("out"), heads=fields.whole("heads", 1, 1 << 16),
            key_heads=fields.whole("key_heads", 1, 1 << 16), scale=fields.number("scale"),
            window=fields.whole("window", 0, 1 << 30) if fields.optional("window") else None,
            position=_position(fields, weights, f"{path}.position"), query_norm=norm("query_norm", None),
            key_norm=norm("key_norm", None),
        )  # fmt: skip
    else:
        gate = inward("gate") if weights.has(f"{path}.gate.weight") else None
        body = FeedForward(inward("up"), gate, outward("down"), fields.choice("activation", ACTIVATIONS))
    twice = fields.values.get("adds_twice") is True  # older ones have no such field
    return Block(norm("before"), body, norm("branch"), norm("after"), twice)


def _position(block: Fields, weights: Weights, path: str) -> Position | None:
    if not block.optional("position"):
        return None
    fields = block.section("position")
    kind = fields.choice("kind", ("rotary", "relative", "disentangled"))
    if kind == "rotary":
        return Rotary(weights.floats(f"{path}.frequencies", (None,)))
    if kind == "relative":
        return Relative(weights.floats(f"{path}.table", (None, None)))
    content, position = (
        weights.floats(f"{path}.{name}", (None, None)) if weights.has(f"{path}.{name}") else None
        for name in ("content_to_position", "position_to_content")
    )
    sizes = fields.whole("buckets", -1, 1 << 24), fields.whole("reach", 1, 1 << 24)
    return Disentangled(content, position, *sizes)


def _norm(parent: Fields, field: str, weights: Weights, name: str, width: int | None) -> Norm | None:
    if not parent.optional(field):
        return None
    fields = parent.section(field)
    has = fields.strings("has")
    gain, bias = (weights.floats(f"{name}.{part}", (width,)) if part in has else None for part in ("gain", "bias"))
    return Norm(gain, bias, fields.number("epsilon", 0, 1), fields.choice("kind", ("layer", "rms")))


def _plan(header: Fields) -> Plan:
    blocks = []
    for fields in header.sections("blocks"):
        products = fields.section("products")
        first, second = (_product(products.section(name)) for name in ("first", "second"))
        in_bytes = (
            fields.choice("bytes", BYTES) if fields.optional("bytes") else "never"
        )  # older ones have no such field
        blocks.append(BlockPlan(first, second, fields.choice("scores", ("f32", "bf16")), in_bytes))
    return Plan(header.choice("precision", PRECISIONS), tuple(blocks), header.choice("decoder", _TYPES))


def _product(fields: Fields) -> Product:
    return Product(fields.choice("type", _TYPES), fields.number("low"), fields.number("high"))
