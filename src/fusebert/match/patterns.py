"""Patterns: the block forms that the finder looks for. A form is a Block that has names in place of its weights and
numbers; its pattern is the mathematics of `values.forms`, recorded for that block. Another form, such as a pre-norm or
a gated one, is another entry in FORMS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from fusebert.ops.graph import Node
from fusebert.ops.vocabulary import Record
from fusebert.values.blocks import Block, Linear, Norm
from fusebert.values.forms import block
from fusebert.values.traverse import is_norm, post_norm_layer


class NamedLinear(Linear):
    """A linear map whose weight and bias are names."""

    def floats(self) -> Any:
        return self.weight


def _named(path: str) -> Any:
    """The part of a form at a path, such as `attention.query`."""
    names: Any = (f"{path}.gain", f"{path}.bias", f"{path}.epsilon")
    return Norm(*names) if is_norm(path) else NamedLinear(*(f"{path}.{name}" for name in ("weight", "bias")))  # type: ignore[arg-type]


_ATTENTION, _FEED_FORWARD = post_norm_layer(_named, "heads", "activation", "scale")
FORMS: Mapping[str, Block] = {"post-norm attention": _ATTENTION, "post-norm feed-forward": _FEED_FORWARD}


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
