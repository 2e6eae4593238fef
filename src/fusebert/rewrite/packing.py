"""Places: where encoders can be cut out of a graph, and what is put there. For every format that is rewritten."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine.quantize import convert_encoder, smooth
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.ranges import read_ranges
from fusebert.match import FIRST, Cut, Finding, FoundEncoder, assemble, cut, find, read_embeddings, read_encoder
from fusebert.ops.graph import Array, Graph
from fusebert.values.blocks import Encoder
from fusebert.values.plan import make_plan


@dataclass(frozen=True)
class Wanted:
    """How encoders are to be replaced. `ranges` of their inputs make int8 static. `fast_gelu` and `multi_head` are for
    stock kernels: the tanh GELU for every GELU, MultiHeadAttention instead of Attention. With `int32` an ONNX model's
    int64 ids and masks become int32, with `float16` its weights and graph become halves, with `length` its inputs take
    that many tokens only."""

    precision: str = "fp32"
    padding: str = "auto"
    threads: int | None = None
    ranges: Any = None
    fast_gelu: bool = False
    int32: bool = False
    float16: bool = False
    length: int | None = None
    multi_head: bool = False


@dataclass(frozen=True)
class Rewritten:
    """What was replaced, what becomes of hidden positions in each place, and what else there is to tell."""

    finding: Finding
    cuts: tuple[Cut, ...]
    padding: tuple[str, ...]
    notes: tuple[str, ...] = ()


def find_places(source: Path, graph: Graph) -> tuple[Finding, tuple[Cut, ...]]:
    """The encoders of a graph and where each is cut out; raises UnsupportedError if there are none."""
    finding = find(graph)
    if not finding.encoders:
        raise UnsupportedError(f"{source}: no encoder was found: {'; '.join(map(str, finding.misses))}")
    return finding, tuple(cut(finding, found) for found in finding.encoders)


def choose_padding(found: FoundEncoder, padding: str) -> str:
    """What becomes of hidden positions: "auto" leaves them out where no answer depends on them."""
    if padding != "auto":
        return padding
    if not found.may_skip:
        return "compute"
    return "first" if FIRST in found.readers else "skip"


def row_inputs(finding: Finding) -> tuple[str, ...]:
    """The inputs that are ids, types or masks `[batch, length]`."""
    types = finding.translated.types
    shapes = {name: types[name].shape for name in finding.translated.inputs if name in types}
    return tuple(name for name, shape in shapes.items() if shape is not None and len(shape) == 2)


def check_length(source: Path, finding: Finding, length: int | None) -> None:
    """Refuses a length that a model does not take."""
    types = finding.translated.types
    declared = [size for name in row_inputs(finding) for size in types[name].shape[1:] if isinstance(size, int)]  # type: ignore[index]
    settled = next((size for size in (finding.raised.fixed_sizes.get(1), *declared) if size is not None), None)
    if length is None or length == settled:
        return
    if length < 1 or settled is not None:
        raise FusebertError(f"{source}: a sequence has {settled or 'at least 1'} tokens, not {length}")
    for found in finding.encoders:
        with suppress(UnsupportedError):  # of embeddings that are not known
            embeddings, _ = read_embeddings(finding.raised, found)
            if embeddings.longest is not None and length > embeddings.longest:
                raise FusebertError(f"{source}: a sequence has up to {embeddings.longest} tokens, not {length}")


def settle_ranges(finding: Finding, ranges: Any) -> Array | None:
    """The input ranges `[layers, 4, 2]` of the only encoder, from numbers or a file; None stays None."""
    if ranges is None:
        return None
    if len(finding.encoders) != 1:
        raise UnsupportedError(f"ranges are for one encoder, but there are {len(finding.encoders)}")
    layers = len(finding.encoders[0].layers)
    fixed = read_ranges(ranges, layers)
    make_plan("int8", 2 * layers, fixed)  # refuses what does not fit
    return np.asarray(fixed, np.float32).reshape(layers, -1, 2)


def packed_encoder(
    finding: Finding, found: FoundEncoder, precision: str, threads: int | None, ranges: Array | None = None
) -> Encoder:
    """The encoder with its weights in the types of a precision; int8 is smoothed where the embeddings are known and no
    ranges are fixed."""
    plan = make_plan(precision, 2 * len(found.layers), ranges)
    smoothed = plan.decoder == "s8" and ranges is None
    encoder = smoothed_encoder(finding, found, threads) if smoothed else read_encoder(finding.raised, found)
    return convert_encoder(encoder, plan)


def smoothed_encoder(finding: Finding, found: FoundEncoder, threads: int | None, floats: bool = False) -> Encoder:
    """The encoder smoothed, in int8 unless its `floats` are to stay; as it is where its embeddings are not known."""
    if len(finding.encoders) == 1:
        with suppress(UnsupportedError):
            return smooth(assemble(finding).network, threads, floats).encoder
    return read_encoder(finding.raised, found)
