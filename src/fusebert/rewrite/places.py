"""Places: where encoders can be cut out of a graph, and what is put there. For every format that is rewritten."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fusebert.encoder import Encoder
from fusebert.errors import UnsupportedError
from fusebert.graph import Graph
from fusebert.match.assemble import assemble, read_encoder
from fusebert.match.cut import Cut, cut
from fusebert.match.find import Finding, Found, find
from fusebert.match.readers import FIRST
from fusebert.plan import make_plan
from fusebert.quantize import convert_encoder, smooth


@dataclass(frozen=True)
class Rewritten:
    """What was replaced, and what becomes of hidden positions in each place."""

    finding: Finding
    cuts: tuple[Cut, ...]
    padding: tuple[str, ...]


def find_places(source: Path, graph: Graph) -> tuple[Finding, tuple[Cut, ...]]:
    """The encoders of a graph and where each is cut out; raises UnsupportedError if there are none."""
    finding = find(graph)
    if not finding.encoders:
        raise UnsupportedError(f"{source}: no encoder was found: {'; '.join(map(str, finding.misses))}")
    return finding, tuple(cut(finding, found) for found in finding.encoders)


def choose_padding(found: Found, padding: str) -> str:
    """What becomes of hidden positions: "auto" leaves them out where no answer depends on them."""
    if padding != "auto":
        return padding
    if not found.may_skip:
        return "compute"
    return "first" if FIRST in found.readers else "skip"


def packed_encoder(finding: Finding, found: Found, precision: str, threads: int | None) -> Encoder:
    """The encoder with its weights in the types of a precision; int8 is smoothed where the embeddings are known."""
    plan = make_plan(precision, len(found.layers))
    int8 = plan.decoder == "s8"
    encoder = smoothed_encoder(finding, found, threads) if int8 else read_encoder(finding.raised, found)
    return convert_encoder(encoder, plan)


def smoothed_encoder(finding: Finding, found: Found, threads: int | None) -> Encoder:
    """The encoder with input scales for int8; without them where its embeddings are not known."""
    if len(finding.encoders) == 1:
        with suppress(UnsupportedError):
            return smooth(assemble(finding).network, threads).encoder
    return read_encoder(finding.raised, found)
