"""The artifact's header and weights -> Network + Plan. Every field and every shape is checked before it is used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fusebert.errors import FusebertError
from fusebert.formats.artifact import version1
from fusebert.formats.artifact.form import Arrays, read_encoder, read_norm
from fusebert.formats.artifact.header import HEADER, VERSION, WEIGHTS, Fields
from fusebert.formats.files import Tensors, read_json
from fusebert.ops.graph import Array
from fusebert.ops.vocabulary import ACTIVATIONS
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


class Weights(Arrays):
    """The artifact's tensors, some of which are stored under another's name."""

    def __init__(self, path: Path, tied: dict[str, str], rename: Callable[[str], str]) -> None:
        tensors = Tensors(path / WEIGHTS)
        read: dict[str, Array] = {}
        super().__init__(path / WEIGHTS, tensors, lambda name: read.setdefault(name, tensors[name]))
        self._tied, self._rename = tied, rename

    def _stored(self, name: str) -> str:
        name = self._rename(name)
        return self._tied.get(name, name)


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
        norm=read_norm(fields, "norm", weights, "embeddings.norm", width),
        project=project,
        padding_id=padding,
        projected_norm=read_norm(fields, "projected_norm", weights, "embeddings.projected_norm", hidden),
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
        family, embeddings, read_encoder(header, weights, hidden), Head(kind, steps, pooling), labels, problem,
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
        norm = read_norm(step, "norm", weights, f"{path}.{i}.norm", inputs)
        steps.append(Dense(linear, step.choice("activation", ACTIVATIONS), norm))
    return tuple(steps), inputs


def _sentence(fields: Fields, weights: Weights, hidden: int) -> Sentence:
    prompts, pooling = fields.mapping("prompts"), str(fields.values.get("pooling"))
    default = fields.choice("default_prompt", prompts) if fields.optional("default_prompt") else None
    steps, _ = _steps(fields, weights, "sentence", hidden * len(pooling.split("+")))
    normalize, refusal = fields.values.get("normalize") is True, str(fields.values.get("refusal", ""))
    splade = fields.choice("splade", SPLADE) if fields.values.get("splade") else ""
    return Sentence(pooling, steps, normalize, prompts, default, refusal, splade)


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
