"""Cut: where one operator would take an encoder's place in its graph: the tensors that go in and come out, and how they
are laid out. Knows no file format; whoever writes files puts the operator there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass

from fusebert.errors import UnsupportedError
from fusebert.match import axes as ax
from fusebert.match.axes import Group
from fusebert.match.embeddings import read_embeddings
from fusebert.match.findings import Finding, FoundEncoder, Lifted, Match
from fusebert.match.patterns import FREQUENCIES
from fusebert.ops.graph import Graph, TensorType

_ANY = sys.maxsize  # so many tokens are any number


@dataclass(frozen=True)
class Cut:
    """`rows` goes in and `outputs` come out: the last layer's and those of `taps`, which are layers by number. All are
    `[batch, length, hidden]`, or `[batch * length, hidden]` where `flat`. `mask` is "" where there is none."""

    found: FoundEncoder
    rows: str
    flat: bool
    mask: str
    mask_kind: str  # "none", "rows", "lengths" or "additive"
    mask_type: TensorType | None
    outputs: tuple[str, ...]
    taps: tuple[int, ...]
    dtype: str  # of the rows
    rounding: tuple[tuple[str, ...], ...]  # scale and zero point of each output that the graph has in 8 bits only


def cut(finding: Finding, found: FoundEncoder) -> Cut:
    """Where an encoder can be cut out; raises UnsupportedError with the reason where it cannot."""
    _check_distances(finding, found)
    if found.inner_taps:
        raise UnsupportedError(
            f"{found.inner_taps[0]} is inside a layer, and other nodes read it; a fused layer gives only its result"
        )
    tensors = _Tensors(finding)
    number = {layer.output: i for i, layer in enumerate(found.layers)}
    outputs, rounding = zip(*(tensors.made(name) for name in (found.output, *found.taps)), strict=True)
    flat = tensors.layout(found.output)
    for tap in found.taps:
        if tensors.layout(tap) != flat:
            raise UnsupportedError(f"{tap} and {found.output} have different layouts")
    rows = tensors.seen(found.input, flat)
    if rows is None:
        raise UnsupportedError(f"no tensor holds the encoder's input ({found.input}) as {_shape(flat)}")
    mask, kind = tensors.mask(found)
    if flat and kind != "rows":
        raise UnsupportedError(
            f"{rows} has batch and length in one dimension, and there is no mask of (batch, length) to divide it by"
        )
    taps = tuple(number[tap] for tap in found.taps)
    dtype = element_types(finding.translated).get(rows, "float32")
    return Cut(found, rows, flat, mask, kind, finding.translated.types.get(mask), outputs, taps, dtype, rounding)


def beyond_bert_layers(found: FoundEncoder) -> tuple[str, ...]:
    """What an encoder has beside layers as BERT's, in words."""
    told = [words for layer in found.layers for block in layer.blocks for words in _unlike(block)]
    told += ["a norm after the last layer"] * (found.final is not None)
    return tuple(dict.fromkeys(told))


def _check_distances(finding: Finding, found: FoundEncoder) -> None:
    """Raises UnsupportedError where the graph takes longer texts than its numbers by distance are known for. A
    stand-alone model refuses those texts; an operator in a graph does not."""
    known = min((block.distances.longest or _ANY for layer in found.layers for block in layer.blocks), default=_ANY)
    if known == _ANY or finding.raised.fixed_sizes.get(1, _ANY) <= known:
        return
    try:
        longest = read_embeddings(finding.raised, found)[0].longest
    except UnsupportedError:
        longest = _ANY
    if longest > known:
        raise UnsupportedError(
            f"what is added to its scores by distance is known for texts of up to {known} tokens, and the graph takes "
            "longer ones; a stand-alone model refuses those: --for standalone"
        )


def _unlike(block: Match) -> Iterator[str]:
    if block.bindings.get(FREQUENCIES):
        yield "rotary positions"
    if block.form not in ("post-norm attention", "post-norm feed-forward"):
        yield f"layers of {block.form}"
    if block.bindings.get("repeats", 1) != 1:
        yield "key heads that several heads share"
    if block.distances.table is not None:
        yield "relative positions"
    if block.distances.window is not None:
        yield f"a window of {block.distances.window} positions"


def embedded(finding: Finding, found: FoundEncoder) -> str | None:
    """The tensor `[batch, length, hidden]` that the embeddings make, if there is one."""
    return _Tensors(finding).seen(found.input, flat=False)


def element_types(graph: Graph) -> dict[str, str]:
    """The element type of every tensor, as far as operations keep or name it."""
    types = {name: weight.dtype for name, weight in graph.weights.items()}
    types |= {name: declared.dtype for name, declared in graph.types.items()}
    for node in graph.nodes:
        kept = [types[name] for name in node.inputs if name in types]
        made = str(node.attributes["to"]) if "to" in node.attributes else kept[0] if kept else "float32"
        if node.op in ("gather", "add", "sub", "mul", "div", "where", "matmul", "einsum", "layer_norm"):
            made = next((t for t in kept if "float" in t), made)
        types |= dict.fromkeys(node.outputs, made)
    return types


def _shape(flat: bool) -> str:
    return "(batch * length, hidden)" if flat else "(batch, length, hidden)"


def is_flat(raised: Lifted, tensor: str, value: str) -> bool | None:
    """Whether a tensor that shows a value has batch and length in one dimension; None if it does not show it."""
    view = raised.views.get(tensor)
    if view is None or view.value != value or view.factor != 1:
        return None
    return _flat(ax.settled(view.dims), ax.settled(raised.dims[value]))


def shown_as_is(raised: Lifted, value: str) -> Iterator[str]:
    """The tensors of the original that show a value in its own layout."""
    dims = ax.settled(raised.dims[value])
    for tensor, view in raised.views.items():
        if view.value == value and view.factor == 1 and ax.settled(view.dims) == dims:
            yield tensor


class _Tensors:
    """The original's tensors by the value that each is a view of."""

    def __init__(self, finding: Finding) -> None:
        self._raised = raised = finding.raised
        self._maker = {name: node for node in raised.graph.nodes for name in node.outputs}
        self._views: dict[str, list[tuple[str, tuple[Group, ...]]]] = {}
        translated = finding.translated
        there = {*translated.inputs, *(name for node in translated.nodes for name in node.outputs)}
        there -= translated.facts["emitted"]
        self._rounded = {
            node.inputs[0]: (node.outputs[0], node.inputs[1:])
            for node in translated.nodes
            if node.op == "quantize" and node.inputs[0] not in there and node.outputs[0] in there
        }
        self._there = there | self._rounded.keys()
        for tensor, view in raised.views.items():
            if view.factor == 1 and tensor in there and tensor not in raised.graph.weights:
                self._views.setdefault(view.value, []).append((tensor, ax.settled(view.dims)))

    def made(self, value: str) -> tuple[str, tuple[str, ...]]:
        """The tensor that is to be made for a value: itself, or what an operation of ONNX Runtime rounds it to, with
        scale and zero point."""
        return self._rounded.get(value, (value, ()))

    def layout(self, value: str) -> bool:
        """Whether a value is flat as it is made; raises where it is laid out in neither way."""
        flat = is_flat(self._raised, value, value) if value in self._there else None
        if flat is None:
            raise UnsupportedError(f"the layout of {value} is neither {_shape(False)} nor {_shape(True)}")
        return flat

    def seen(self, value: str, flat: bool) -> str | None:
        """A tensor that shows a value in this layout. An arrangement of something that only adds or drops dimensions of
        size 1, such as the batch where that is one sequence, shows the same."""
        canonical = ax.settled(self._raised.dims[value])
        made = self._maker.get(value)
        same = (value, made.inputs[0]) if made is not None and made.op == "arrange" else (value,)
        views = (view for name in same for view in self._views.get(name, ()))
        fitting = [name for name, dims in views if _flat(dims, canonical) is flat]
        return value if value in fitting else fitting[0] if fitting else None

    def mask(self, found: FoundEncoder) -> tuple[str, str]:
        """The mask as it can be given: 0/1 rows or lengths of an input, or what is added to the scores."""
        mask = found.mask
        if mask.kind == "none":
            return "", "none"
        if mask.kind in ("rows", "lengths", "additive"):
            return mask.tensor, mask.kind
        added = mask.added
        while (made := self._maker.get(added)) is not None and made.op == "arrange":
            added = made.inputs[0]
        fitting = [name for name, dims in self._views.get(added, ()) if len(dims) == 4]
        if not fitting:
            raise UnsupportedError(
                f"no tensor holds the mask that is added to the scores ({mask.added}) in four dimensions"
            )
        return fitting[0], "additive"


def _flat(dims: tuple[Group, ...], canonical: tuple[Group, ...]) -> bool | None:
    """Whether tokens are one dimension or two; None where it is something else."""
    if not dims or dims[-1] != canonical[-1] or ax.flat(dims) != ax.flat(canonical):
        return None
    return {2: True, 3: False}.get(len(dims))
