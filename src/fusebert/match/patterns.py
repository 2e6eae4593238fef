"""Patterns: the block forms that the finder looks for. A form is a Block that has names in place of its weights and
numbers; its pattern is the mathematics of `values.forms`, recorded for that block. What a model may do without, such as
a mask, rotary positions or groups of heads, is in every pattern, and the search passes over it; where norms are, which
kind they are of and whether there is a gate tells the forms apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from fusebert.ops.graph import Node
from fusebert.ops.vocabulary import Record
from fusebert.values.blocks import Attention, Block, FeedForward, Linear, Norm, Rotary
from fusebert.values.forms import block


class NamedLinear(Linear):
    """A linear map whose weight and bias are names."""

    def floats(self) -> Any:
        return self.weight


class _Heads(str):
    """The name of a number of heads; how often heads are repeated to be as many as others is a name too."""

    def __floordiv__(self, other: str) -> str:
        return "repeats"


NORMS = ("layer_norm", "rms_norm")
FREQUENCIES = "attention.frequencies"
_NORMS = {  # where a block has norms, and of which kind
    "post-norm": {"after": "layer"},
    "pre-norm": {"before": "layer"},
    "pre-RMSNorm": {"before": "rms"},
    "RMSNorm before and after": {"before": "rms", "branch": "rms"},
    "norm-free": {},
}


def _linear(path: str) -> Any:
    return NamedLinear(*(f"{path}.{name}" for name in ("weight", "bias")))  # type: ignore[arg-type]


def _norm(path: str, kind: str) -> Norm:
    gain: Any = f"{path}.gain"
    bias: Any = f"{path}.bias" if kind == "layer" else None
    epsilon: Any = f"{path}.epsilon"
    return Norm(gain, bias, epsilon, kind)


def _bodies() -> Iterator[tuple[str, str, Attention | FeedForward]]:
    """Every body with its name and the path of its parts."""
    linears = (_linear(f"attention.{name}") for name in ("query", "key", "value", "out"))
    numbers: Any = (_Heads("heads"), _Heads("key_heads"), "scale")
    attention = Attention(*linears, *numbers, position=Rotary(FREQUENCIES))  # type: ignore[misc,arg-type]
    yield "attention", "attention", attention
    for kind, name in (("rms", "RMSNorm"), ("layer", "LayerNorm")):
        norms: Any = {side: _norm(f"attention.{side}", kind) for side in ("query_norm", "key_norm")}
        yield f"attention with a {name} of queries and keys", "attention", replace(attention, **norms)
    up, gate, down = (_linear(f"feed_forward.{name}") for name in ("up", "gate", "down"))
    yield "feed-forward", "feed_forward", FeedForward(up, None, down, "activation")
    yield "gated feed-forward", "feed_forward", FeedForward(up, gate, down, "activation")


def _forms() -> Iterator[tuple[str, Block]]:
    for where, kinds in _NORMS.items():
        for name, path, body in _bodies():
            norms: Any = {place: _norm(f"{path}.{place}", kind) for place, kind in kinds.items()}
            yield f"{where} {name}", replace(Block(None, body, None, None), **norms)


FORMS: Mapping[str, Block] = dict(_forms())


@dataclass(frozen=True)
class Pattern:
    """The nodes of a form by the tensor that each makes, and the tensor that the block makes."""

    form: str
    nodes: Mapping[str, Node]
    output: str

    @property
    def root(self) -> str:
        """The operation that a block of this form ends with: a norm where it has `after`, else an add."""
        return self.nodes[self.output].op


@cache
def patterns() -> tuple[Pattern, ...]:
    """The pattern of every form in use."""
    return tuple(_record(form, named) for form, named in FORMS.items())


def _record(form: str, named: Block) -> Pattern:
    record = Record()
    output = block(record, "x", "mask", named)
    return Pattern(form, {node.outputs[0]: node for node in record.graph((), ()).nodes}, output)
