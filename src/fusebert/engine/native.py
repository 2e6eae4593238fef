"""The only importer of the native module: values in, arrays out. An Engine is a Network packed for one Plan."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import fusebert._native as _native
from fusebert.errors import FusebertError
from fusebert.formats.files import release
from fusebert.ops.graph import Array
from fusebert.values.batch import Batch
from fusebert.values.blocks import Attention, Block, Disentangled, Encoder, Linear, Norm, Position
from fusebert.values.network import Dense, Embeddings, Network
from fusebert.values.plan import BlockPlan, Plan, Product
from fusebert.values.precision import BYTES
from fusebert.values.traverse import layers, weights

Observer = Callable[[int, int, Array], None]
Part = TypeVar("Part", "EncoderEngine", "DenseEngine")


class _Told:
    """Errors of the core as FusebertErrors that say where. Written out, for it is entered several times in a call."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise FusebertError(f"{self._where}: {error}" if self._where else str(error)) from None
        if isinstance(error, MemoryError):
            raise FusebertError(f"{self._where}: not enough memory") from None


def pool(threads: int | None = None, gomp_parallel: int | None = None) -> _native.Pool:
    """Threads to run on: as many as this process may use, unless told. With the address of OpenMP's GOMP_parallel,
    encoders run on OpenMP's threads."""
    if threads is not None and (not isinstance(threads, int) or not 1 <= threads <= 1024):
        raise FusebertError(f"threads: a whole number from 1 to 1024 is expected, not {threads!r:.40}")
    with _Told("threads"):
        return _native.Pool(threads or 0, gomp_parallel)


def folder() -> Path:
    """Where this package's native libraries are."""
    return Path(_native.__file__).parent


def cores() -> int:
    """The cores this process may really use."""
    return int(_native.cores())


def isa() -> str:
    """The instruction set in use: FUSEBERT_ISA, or the best of this machine."""
    with _Told(""):
        return str(_native.isa())


def multiplies_bf16() -> bool:
    """Whether the instruction set in use has products of bf16; elsewhere such weights are held as floats."""
    return isa() == "amx" or isa().endswith("bf16")


def isas() -> list[str]:
    """The instruction sets this machine can run, best first."""
    return list(_native.isas())


def steps() -> list[str]:
    """The names of a layer's steps, in the order of a profile."""
    return list(_native.steps())


def _floats(values: Array | None) -> Array | None:
    return None if values is None else np.ascontiguousarray(_aligned(values), np.float32)


def _aligned(array: Array) -> Array:
    """The array, copied where its elements do not begin at multiples of their size, as those of a file may."""
    if array.flags.aligned:
        return array
    copy = array.copy("K")
    release(array)
    return copy


def _matrix(weight: Array) -> Array:
    """A matrix in a type that the core reads; bfloat16 as its bits, for which NumPy has no name."""
    kind = weight.dtype.name
    if kind not in ("float32", "float16", "bfloat16", "int8"):
        return weight.astype(np.float32)
    return _aligned(weight.view(np.uint16) if kind == "bfloat16" else weight)


def _linear(linear: Linear, product: Product) -> dict[str, Any]:
    return {
        "weight": _matrix(linear.weight),
        "bias": _floats(linear.bias),
        "scales": _floats(linear.scales),
        "input_scales": _floats(linear.input_scales),
        "precision": product.type,
        "low": product.low,
        "high": product.high,
    }


def _norm(norm: Norm) -> dict[str, Any]:
    return {"gain": _floats(norm.gain), "bias": _floats(norm.bias), "epsilon": norm.epsilon, "kind": norm.kind}


def _block(block: Block, plan: BlockPlan) -> dict[str, Any]:
    """A block by the names of the C ABI's fields, which are those of the dataclasses."""
    body = {field.name: getattr(block.body, field.name) for field in fields(block.body)}
    body |= {"position": _position(body["position"])} if body.get("position") else {}
    for names, product in zip(block.body.products(), (plan.first, plan.second), strict=True):
        body |= {name: _linear(body[name], product) for name in names}
    body |= {name: _norm(part) for name, part in body.items() if isinstance(part, Norm)}
    kind = "attention" if isinstance(block.body, Attention) else "feed_forward"
    if kind == "attention":
        body |= {"precision": plan.scores, "bytes": BYTES.index(plan.bytes)}
    norms = {"before": block.before, "branch": block.branch, "after": block.after}
    parts = {name: None if norm is None else _norm(norm) for name, norm in norms.items()}
    return {kind: body, "adds_twice": block.adds_twice, **parts}


def _position(position: Position) -> dict[str, Any]:
    kind = type(position).__name__.lower()
    values = {field.name: getattr(position, field.name) for field in fields(position)}
    arrays = {name: _floats(np.atleast_2d(value)) for name, value in values.items() if isinstance(value, np.ndarray)}
    if isinstance(position, Disentangled):
        values["buckets"] = max(position.buckets, 0)
    return {"kind": kind, **values, **arrays}


class EncoderEngine:
    """The packed encoder. Threads share it; each call may use all threads of the pool."""

    def __init__(self, encoder: Encoder, plan: Plan, pool: _native.Pool) -> None:
        self._pool = pool
        self._taps = [places[-1] for places in layers(encoder)]
        bodies = [block.body for block in encoder.blocks]
        self._placed = any(isinstance(b, Attention) and (b.position or b.window) for b in bodies)
        with _Told("encoder"):
            blocks = [_block(block, own) for block, own in zip(encoder.blocks, plan.blocks, strict=True)]
            final = None if encoder.final is None else _norm(encoder.final)
            self._native = _native.Encoder(encoder.hidden_size, blocks, list(encoder.order), final, pool)
        for _, array in weights(encoder):
            release(array)

    @property
    def bytes(self) -> int:
        """Memory held by the packed weights."""
        return int(self._native.bytes)

    def run(
        self,
        rows: Array,
        batch: Batch,
        hidden_states: bool = False,
        profile: Array | None = None,
        observer: Observer | None = None,
    ) -> tuple[Array, list[Array]]:
        """Rows `[rows, hidden]` in, rows out, with the rows after every layer if asked for.

        `profile` gains seconds per step; `observer(place, product, inputs)` sees the input rows of the first (0) and
        second (1) product of the block at each place in the encoder's order."""
        output = np.empty_like(rows)
        taps = self._taps if hidden_states else []
        states = [np.empty_like(rows) for _ in taps]
        with _Told("encoder"):
            self._native.run(
                rows, output, batch.offsets, self._pool, visible=batch.visible, bias=batch.bias, taps=taps,
                states=states, profile=profile, observer=observer, positions=self._positions(batch),
            )  # fmt: skip
        return output, states

    def run_padded(
        self, rows: Array, output: Array, batch: Batch, states: list[Array], pool: _native.Pool | None = None
    ) -> None:
        """All rows of a padded batch `[sequences * length, hidden]` in; the rows that the batch keeps are written to
        the same places of `output` and, after every layer, of `states`, if there are any. Nothing is copied."""
        index = None if len(batch.index) == len(rows) else batch.index
        with _Told("encoder"):
            self._native.run(
                rows, output, batch.offsets, pool or self._pool, visible=batch.visible, bias=batch.bias,
                taps=self._taps if states else [], states=states, index=index, positions=self._positions(batch),
            )  # fmt: skip

    def _positions(self, batch: Batch) -> Array | None:
        return batch.positions() if self._placed else None


class DenseEngine:
    """One packed product of a head."""

    def __init__(self, dense: Dense, precision: str, pool: _native.Pool, name: str) -> None:
        self._pool, self._name = pool, name
        with _Told(name):
            parts = {
                "linear": _linear(dense.linear, Product(precision)),
                "activation": dense.activation,
                "norm": None if dense.norm is None else _norm(dense.norm),
            }
            self._native = _native.Dense(parts, pool)

    @property
    def bytes(self) -> int:
        """Memory held by the packed weights."""
        return int(self._native.bytes)

    def run(self, rows: Array) -> Array:
        """Rows in, rows out."""
        with _Told(self._name):
            output = np.empty((len(rows), self._native.outputs), np.float32)
            self._native.run(np.ascontiguousarray(rows), output, self._pool)
        return output


def _moved(part: Part, pool: _native.Pool) -> Part:
    """The same packed weights on another pool."""
    other = copy(part)
    other._pool = pool
    return other


class Engine:
    """A Network ready to run: embeddings, encoder and head on one pool of threads."""

    def __init__(self, network: Network, plan: Plan, threads: int | None = None) -> None:
        self._pool = pool(threads)
        e = network.embeddings
        _check_tables(e)
        self._width, self._counts = e.word.shape[1], e.position is not None
        with _Told("embeddings"):
            position, token_type = (None if table is None else _matrix(table) for table in (e.position, e.kind))
            tables = {"word": _matrix(e.word), "position": position, "token_type": token_type}
            norm = None if e.norm is None else _norm(e.norm)
            self._embedding = _native.Embedding({**tables, "norm": norm, "scale": e.scale})
        project = None if e.project is None else Dense(e.project, norm=e.projected_norm)
        self._project = None if project is None else DenseEngine(project, "f32", self._pool, "embeddings.project")
        self.encoder = EncoderEngine(network.encoder, plan, self._pool)
        self._head = [
            DenseEngine(step, head_precision(network, plan, i), self._pool, f"head.{i}")
            for i, step in enumerate(network.head.steps)
        ]
        self._sentence = [
            DenseEngine(step, "f32", self._pool, f"sentence.{i}")
            for i, step in enumerate(network.sentence.steps if network.sentence else ())
        ]

        heads = network.token_heads
        self._of_tokens = {} if heads is None else {
            name: DenseEngine(Dense(linear), "f32", self._pool, f"token_heads.{name}")
            for name, linear in (("weight", heads.weight), ("vector", heads.vector))
        }  # fmt: skip

    def with_threads(self, threads: int) -> Engine:
        """The same packed weights on a pool of their own, with so many threads."""
        other = copy(self)
        other._pool = pool(threads)
        other.encoder = _moved(self.encoder, other._pool)
        other._project = self._project and _moved(self._project, other._pool)
        other._head = [_moved(step, other._pool) for step in self._head]
        other._sentence = [_moved(step, other._pool) for step in self._sentence]
        other._of_tokens = {name: _moved(step, other._pool) for name, step in self._of_tokens.items()}
        return other

    @property
    def threads(self) -> int:
        """Threads of the pool."""
        return int(self._pool.threads)

    @property
    def bytes(self) -> int:
        """Memory held by packed weights; the embedding tables stay in the file."""
        others = *self._head, *self._sentence, *self._of_tokens.values()
        return self.encoder.bytes + sum(step.bytes for step in others)

    def embed(self, ids: Array, positions: Array, kinds: Array | None) -> Array:
        """One row per token; all arguments are flat int64."""
        rows = np.empty((len(ids), self._width), np.float32)
        with _Told("input"):
            self._embedding.run(ids, positions if self._counts else None, kinds, rows, self._pool)
        return rows if self._project is None else self._project.run(rows)

    def head(self, rows: Array) -> Array:
        """The head's steps, one after the other."""
        return _through(self._head, rows)

    def sentence(self, rows: Array) -> Array:
        """The steps behind pooling, one after the other."""
        return _through(self._sentence, rows)

    def token_head(self, name: str, rows: Array) -> Array:
        """What a head of TokenHeads makes of every row."""
        return self._of_tokens[name].run(rows)


def _through(steps: list[DenseEngine], rows: Array) -> Array:
    for step in steps:
        rows = step.run(rows)
    return rows


def head_precision(network: Network, plan: Plan, step: int) -> str:
    """Heads are small and stay f32; only the product with a whole vocabulary follows the plan."""
    return plan.decoder if network.head.kind == "masked" and step == len(network.head.steps) - 1 else "f32"


def _check_tables(embeddings: Embeddings) -> None:
    tables = {"word": embeddings.word, "position": embeddings.position, "kind": embeddings.kind}
    if embeddings.norm is not None:
        tables |= {f"norm.{name}": array for name, array in embeddings.norm.arrays()}
    for name, table in tables.items():
        if table is None:
            continue
        for first in range(0, len(table), 4096):  # in parts, not to hold a large table twice
            if not np.isfinite(np.asarray(table[first : first + 4096], np.float32)).all():
                raise FusebertError(f"embeddings.{name}: a value in rows {first} to {first + 4095} is not finite")
        release(table)


def quantize(weight: Array) -> tuple[Array, Array]:
    """A float weight `[outputs, inputs]` as int8 values and their scales per output."""
    values, scales = np.empty(weight.shape, np.int8), np.empty(len(weight), np.float32)
    with _Told("quantize"):
        _native.quantize(_matrix(weight), values, scales, pool())
    return values, scales
