"""Findings: the frozen values that the finder hands out. A `Finding` says what was found, what came nearest, and which
rule was applied or refused at which nodes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from fusebert.drawing import fragment
from fusebert.match.axes import Group, View, shape_of
from fusebert.match.distances import ANYWHERE, ByDistance
from fusebert.match.probe import Probe
from fusebert.ops.graph import Graph, Node
from fusebert.report import Report, Table

FIRST, MASKED, EACH, SCORE, UNMASKED, UNKNOWN = (
    "first token", "masked mean", "every position by itself", "one score per position", "unmasked reduction", "unknown",
)  # fmt: skip
_SKIPPING = frozenset((FIRST, MASKED))  # they read no hidden row but perhaps the first


class Refused(Exception):  # noqa: N818  (an outcome, not a failure)
    """Raised by a rule that does not apply to a node it was tried on; the node then stays as it is."""

    def __init__(self, reason: str, node: str = "") -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


@dataclass(frozen=True, slots=True)
class RuleRow:
    """One rule at work: its stage (translate, lift, recognise or match), the nodes it was tried on and what became of
    them. `result` is empty where the rule refused, and `reason` says why; else it may say more about the result."""

    stage: str
    rule: str
    nodes: tuple[str, ...]
    result: str
    reason: str = ""


@dataclass(frozen=True)
class Applied:
    """A step in the making of a weight: one operation."""

    op: str

    def __str__(self) -> str:
        return self.op


@dataclass(frozen=True)
class Rows:
    """A step in the making of a weight: `count` rows are chosen, from `first` to before `last`."""

    first: int
    last: int
    count: int

    def __str__(self) -> str:
        gaps = "" if self.count == self.last - self.first else f", {self.count} of them"
        return f"rows {self.first} to {self.last}{gaps}"


TRANSPOSE = Applied("transpose")


@dataclass(frozen=True)
class Provenance:
    """Where a weight comes from: the constant or variable `name` of the graph, the steps that are applied to it, and
    the shape that the weight has after them."""

    name: str
    steps: tuple[Applied | Rows, ...]
    shape: tuple[int, ...]

    def then(self, step: Applied | Rows | None, shape: tuple[int, ...]) -> Provenance:
        """The same after one more step; None only changes the shape."""
        return replace(self, steps=self.steps if step is None else (*self.steps, step), shape=shape)


@dataclass(frozen=True)
class Lifted:
    """A lifted graph and what was learned on the way: the layout of every tensor of the original, and the provenance of
    each weight that is not a constant of the original as it is."""

    graph: Graph
    views: Mapping[str, View]
    origins: Mapping[str, Provenance]
    dims: Mapping[str, tuple[Group, ...]]
    probes: tuple[Probe, Probe]  # with the shapes that were asked for on the way
    content: Set[str]  # tensors that depend on what is in an input, not only on its shape
    fixed_sizes: Mapping[int, int]  # sizes, by dimension, that the graph requires of its inputs without declaring them
    longest: int | None  # the most tokens, where a probe has more
    contradictions: Mapping[str, str]  # nodes whose operands do not fit together, whatever the sizes, and how
    kept: Set[str]  # outputs of nodes that no rule understood; their operations mean what they do in the dialect
    quantized: tuple[str, ...] = ()  # nodes whose 8-bit numbers became floats

    def origin(self, weight: str) -> Provenance:
        """Where a weight of the lifted graph comes from."""
        return self.origins.get(weight) or Provenance(weight, (), self.graph.weights[weight].shape)

    def sizes(self, tensor: str) -> tuple[tuple[int, int], ...] | None:
        """The shape of a tensor of the original under both probes, if it is known."""
        view = self.views.get(tensor)
        return None if view is None else shape_of(view.dims)


@dataclass(frozen=True)
class Mask:
    """`kind` is "none", "rows" (a 0/1 input), "lengths" (an input says how many positions are visible, by its value or
    by its number of ones), "padding" (an input that is not 0 where a position is hidden), "ids" (an input whose
    `hidden_id` is padding) or "additive" (an input that is added).
    `tensor` is that input; `added` is what is added to the scores."""

    kind: str
    tensor: str = ""
    added: str = ""
    hidden_id: int | None = None


@dataclass(frozen=True)
class Match:
    """One block: its form, and what the names in that form stand for. `bindings` has tensors, weights and attributes by
    name, such as `x`, `mask`, `attention.query.weight` and `heads`; `nodes` are those the block is made of; `distances`
    is what is added to its scores beside the mask."""

    form: str
    output: str
    bindings: Mapping[str, Any]
    nodes: tuple[Node, ...]
    distances: ByDistance = ANYWHERE


@dataclass(frozen=True)
class Layer:
    """An attention block and the feed-forward block that reads it."""

    blocks: tuple[Match, ...]

    @property
    def output(self) -> str:
        """What the layer makes."""
        return self.blocks[-1].output

    @property
    def bindings(self) -> Mapping[str, Any]:
        """Those of both blocks; `x` is what the layer reads."""
        return {**self.blocks[1].bindings, **self.blocks[0].bindings}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Those of both blocks."""
        return tuple(node for block in self.blocks for node in block.nodes)


@dataclass(frozen=True)
class Miss:
    """A search that failed: how many nodes of a layer matched, what stopped it where, and which block form it was
    for."""

    matched: int
    expected: str
    found: str
    node: str
    function: str = ""
    form: str = ""

    def __str__(self) -> str:
        where = f"at node {self.node}{f' of function {self.function}' if self.function else ''}: " if self.node else ""
        form = f" as part of {self.form}" if self.form else ""
        return f"{where}expected {self.expected}{form}, found {self.found}"


@dataclass(frozen=True)
class FoundEncoder:
    """One encoder in a graph. `input` and `output` are the tensors that go in and come out; `taps` are outputs of inner
    layers that other nodes read, and `inner_taps` other inner tensors that they read; `readers` say what is read of
    the output. `operator` is there where the encoder is one fused operator of ours already."""

    layers: tuple[Layer, ...]
    hidden: int
    mask: Mask
    input: str
    output: str
    taps: tuple[str, ...]
    inner_taps: tuple[str, ...]
    readers: tuple[str, ...]
    function: str
    weights: tuple[Mapping[str, Provenance], ...]
    others: tuple[FoundEncoder, ...] = ()  # the same in other calls of the function it sits in
    operator: Node | None = None
    final: Node | None = None  # the norm after layers that end with a sum
    longest: int | None = None  # tokens, where what depends on positions is not known for any number

    @property
    def calls(self) -> int:
        """How often the function it sits in is called."""
        return 1 + len(self.others)

    @property
    def heads(self) -> int:
        """Of the first layer; layers may differ."""
        return int(self.layers[0].bindings["heads"])

    @property
    def inner(self) -> int:
        """The first layer's intermediate size."""
        return self.weights[0]["feed_forward.up.weight"].shape[0]

    @property
    def activation(self) -> str:
        """The first layer's activation."""
        return str(self.layers[0].bindings["activation"])

    @property
    def epsilon(self) -> float:
        """Of the first layer's norms; 0 if it has none."""
        told = (float(value) for name, value in self.layers[0].bindings.items() if name.endswith(".epsilon"))
        return next(told, 0.0)

    @property
    def scale(self) -> float:
        """The factor of the first layer's scores."""
        return float(self.layers[0].bindings["scale"])

    @property
    def may_skip(self) -> bool:
        """Whether all who read the rows are known, and none reads a hidden one but perhaps the first."""
        return self._read_by(_SKIPPING)

    @property
    def shows_hidden(self) -> bool:
        """Whether hidden positions may be skipped but for outputs that show them to whoever calls."""
        return EACH in self.readers and self._read_by(_SKIPPING | {EACH})

    def _read_by(self, kinds: frozenset[str]) -> bool:
        return self.mask.kind != "none" and kinds.issuperset(self.readers) and not self.inner_taps


@dataclass(frozen=True, repr=False)
class Finding:
    """What was found in a graph: encoders, the nearest misses, and a row for every rule that applied or refused.
    `translated` is the graph in primitive operations, `lifted` has lost its layout, and `raised` is in the words of the
    vocabulary. `unmatched` are the
    norms and sums that end no block of an encoder, by what they make, with what stopped the search."""

    encoders: tuple[FoundEncoder, ...]
    misses: tuple[Miss, ...]
    rows: tuple[RuleRow, ...]
    raised: Lifted
    translated: Graph
    lifted: Graph
    unmatched: Mapping[str, Miss]

    def __repr__(self) -> str:
        found = [f"an encoder of {len(one.layers)} layers of {one.hidden}, {one.heads} heads" for one in self.encoders]
        nearest = f"; nearest miss {self.misses[0]}" if self.misses else ""
        return f"<Finding: {', '.join(found) or 'no encoder'}{nearest:.300}>"

    def _repr_html_(self) -> str:
        """What notebooks show."""
        columns = ("layers", "hidden", "heads", "inner", "activation", "mask", "readers")
        rows = tuple(
            (len(one.layers), one.hidden, one.heads, one.inner, one.activation, one.mask.kind, one.readers)
            for one in self.encoders
        )
        misses = tuple((one.matched, one.expected, one.found, one.node) for one in self.misses)
        tables = Table("encoders", columns, rows), Table("misses", ("matched", "expected", "found", "node"), misses)
        return fragment(Report(f"{len(rows)} encoder{'s' * (len(rows) != 1)} found", {}, tables))


@dataclass(frozen=True)
class Omitted:
    """A part of the graph that a stand-alone model does not have. `kind` is "output" (one that is not computed),
    "part" (one that others contain), "final" (an operation after an output), "padding id" (hiding positions by their
    id), "length" (a mask read as a number of positions), "positions" (an input that has them) or "rounding" (of inputs
    to 8 bits); `what` is the sentence for people."""

    kind: str
    what: str

    def __str__(self) -> str:
        return self.what


_CHOSEN = "whose branch is chosen while the model runs"
_REPEATED = "whose steps are repeated as often as the model says while it runs"
_MEANT = {"If": _CHOSEN, "StatelessIf": _CHOSEN, "Case": _CHOSEN, "Loop": _REPEATED, "Scan": _REPEATED}
_MEANT |= {"While": _REPEATED, "StatelessWhile": _REPEATED}
_MEANT |= {"Dropout": "which is on, so that answers are random: export the model after `model.eval()`"}


def described(op: str) -> str:
    """An operation as a miss names it, with what it means where that keeps it from being understood."""
    return f"{op}, {_MEANT[op]}" if op in _MEANT else op


def label(node: Node) -> str:
    """What a node is called in rows: its name, or that of its first output."""
    return node.name or next(filter(None, node.outputs), "")
