"""Operator: what one fused operator in a graph computes, as values. The formats read it off the operator's attributes
and weights; whoever loads or rewrites such a graph has the very numbers that the operator would have used."""

from __future__ import annotations

from dataclasses import dataclass

from fusebert.values.blocks import Encoder, Linear
from fusebert.values.plan import Plan
from fusebert.values.traverse import Part, map_parts, parts


@dataclass(frozen=True)
class Operator:
    """An encoder with its weights as they are stored, the precision of its products, and what becomes of hidden
    positions."""

    encoder: Encoder
    plan: Plan
    padding: str


def is_rounded(encoder: Encoder) -> bool:
    """Whether the weights are int8, so that their floats are gone."""
    return any(isinstance(part, Linear) and part.scales is not None for _, part in parts(encoder))


def unpacked(encoder: Encoder) -> Encoder:
    """The same encoder with the floats that its weights stand for."""

    def floats(_: str, part: Part) -> Part:
        if not isinstance(part, Linear) or part.scales is None:
            return part
        return Linear(part.floats(), part.bias)

    return map_parts(encoder, floats)
