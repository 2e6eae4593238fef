"""Load: a model on disk in any form -> Model. Checkpoints and graphs become a Network, which is packed in a precision;
an artifact has been packed before."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fusebert.engine.memory import check_memory
from fusebert.engine.model import Model
from fusebert.engine.quantize import smooth
from fusebert.engine.tokenizer import Tokenizer
from fusebert.errors import FusebertError, UnsupportedError, border
from fusebert.formats.ranges import read_ranges
from fusebert.source import Artifact, Checkpoint, GraphSource, Source, open
from fusebert.values.network import Head, Network
from fusebert.values.operator import is_rounded
from fusebert.values.plan import make_plan, with_attention
from fusebert.values.traverse import layers


@border
def load(
    path: str | Path | Source,
    precision: str | None = None,
    threads: int | None = None,
    padding: str = "auto",
    head: str | None = None,
    ranges: Any = None,
    attention: str | None = None,
    memory: int | None = None,
) -> Model:
    """Loads a Hugging Face checkpoint folder, a fusebert artifact, an ONNX file, a SavedModel or a frozen graph.

    precision: fp32, bf16, int8 or int8-bf16; the default is fp32, or that of an artifact or of a graph whose encoder is
    a fused operator of fusebert already.
    threads: as many as this process may use, unless given.
    padding: what becomes of hidden positions, see `Model.run`.
    head: "none", "sequence", "token", "question" or "masked" instead of the one the checkpoint names.
    ranges: `[layers, 4, 2]` input ranges, as `Model.observe` returns them, or the path of a file with them, as
    `calibrate` writes it, to make int8 static.
    attention: fp32, bf16 or int8, what attention is computed in, unless as the precision has it: int8 and int8-bf16 use
    int8 where that is known to pay.
    memory: the most bytes that a call takes beside the weights, what it is given and what it gives: batches are cut to
    fit, and a text that cannot fit is refused (docs/memory.md)."""
    source = open(path)
    try:
        if isinstance(source, Artifact):
            model = _load_artifact(source, precision, threads, padding, head, ranges, attention)
        else:
            network = read_network(source, head)
            chosen = precision or own_precision(source)
            model = pack(source, network, chosen, threads, ranges, padding, attention=attention)
    except FusebertError as error:
        raise type(error)(str(error) if str(source.path) in str(error) else f"{source.path}: {error}") from None
    model.memory = check_memory(memory)
    model.origin = partial(load, source.path.absolute(), precision, threads, padding, head, ranges, attention, memory)
    return model


def _load_artifact(
    source: Artifact,
    precision: str | None,
    threads: int | None,
    padding: str,
    head: str | None,
    ranges: Any,
    attention: str | None,
) -> Model:
    if head is not None or ranges is not None:
        raise FusebertError(
            f"{source.path} is an artifact, whose head and ranges are fixed; load its checkpoint instead"
        )
    network, plan, max_length = source.stored
    if precision not in (None, plan.precision):
        raise FusebertError(f"{source.path} was saved as {plan.precision}; for {precision} save its checkpoint again")
    tokenizer = Tokenizer.read(source.path, network.embeddings.longest, max_length)
    return Model(network, with_attention(plan, attention), tokenizer, threads, padding)


def read_network(source: Source, head: str | None = None) -> Network:
    """The Network of a checkpoint or a graph, with its own head or the one given."""
    if isinstance(source, Checkpoint):
        return source.network(head)
    if not isinstance(source, GraphSource):
        raise FusebertError(f"{source.path} is a {source.kind}, which is packed already")
    assembled = source.assembled
    network = assembled.network
    missing = [str(part) for part in assembled.omitted if part.kind == "output"]
    if missing and head is None:
        kind = network.head.kind
        rest = "to get the encoder's rows instead" if assembled.only_rows else "to get the others without it"
        raise UnsupportedError(
            f"{source.path} computes outputs that a stand-alone model cannot: {'; '.join(missing)}, which end at "
            f"{assembled.encoder_output} after {len(layers(network.encoder))} layer(s); ask for head {kind!r} {rest}, "
            "or optimise it for its own framework"
        )
    if head in (None, network.head.kind):
        return network
    if head != "none":
        raise FusebertError(
            f"{source.path} has a head of kind {network.head.kind!r}; only 'none' can be asked for instead"
        )
    return replace(network, head=Head(), labels=())


def own_precision(source: Source) -> str:
    """What a model computes in that says so itself: fp32 unless its encoder is a fused operator already."""
    plan = source.assembled.plan if isinstance(source, GraphSource) else None
    return plan.precision if plan else "fp32"


def pack(
    source: Source,
    network: Network,
    precision: str,
    threads: int | None,
    ranges: Any = None,
    padding: str = "auto",
    like: Model | None = None,
    attention: str | None = None,
) -> Model:
    """A Network of a source as a Model of a precision. `like` is the same Network in fp32, if it is at hand: int8 looks
    at what it computes, and its tokenizer serves both."""
    fixed = read_ranges(ranges, len(layers(network.encoder)))
    plan = make_plan(precision, len(network.encoder.blocks), fixed)
    bytes_read = network.bytes
    own = source.assembled.plan if isinstance(source, GraphSource) and fixed is None else None
    if own is not None and own.precision == precision:
        plan = own
    elif is_rounded(network.encoder):
        raise FusebertError(
            f"{source.path}: the encoder's weights are int8 already, and what was rounded does not come back, so it is "
            f"not loaded as {precision}; load the model that it was made from"
        )
    elif plan.decoder == "s8" and fixed is None:
        network = smooth(network, threads, engine=like.engine if like else None)
    tokenizer = like.tokenizer if like else _tokenizer(source, network.embeddings.longest)
    model = Model(network, with_attention(plan, attention), tokenizer, threads, padding)
    model.bytes_read = bytes_read
    if isinstance(source, GraphSource):
        model.left_out = tuple(map(str, source.assembled.omitted))
    return model


def _tokenizer(source: Source, longest: int) -> Tokenizer | None:
    return None if source.tokenizer_folder is None else Tokenizer.read(source.tokenizer_folder, longest)
