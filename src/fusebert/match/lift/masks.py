"""Masks: what is added to scores, or put in their place, becomes one `mask` with what is added."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fusebert.errors import FusebertError
from fusebert.match import axes as ax
from fusebert.match.axes import Group, View
from fusebert.match.budget import refuse_large
from fusebert.match.lift.state import Lifting
from fusebert.ops.graph import Graph, Node, Weight
from fusebert.ops.vocabulary import evaluate

HIDDEN = -100.0  # added to a score, exp() leaves nothing of it
_MASKED = ("scores", "mask")


def added(lifting: Lifting, node: Node, inputs: tuple[str, ...], canonical: tuple[Group, ...]) -> bool:
    """Something added to scores or taken from them is a mask, unless it is a number or their own maximum."""
    out = node.outputs[0]
    for scores, other in (inputs, inputs[::-1]) if node.op == "add" else (inputs,):
        made = lifting.maker.get(scores)
        if made is None:
            continue
        if node.op == "add" and made.op == "mul" and _instead(lifting, node, made, other, canonical):
            return True
        if made.op not in _MASKED or _is_maximum(lifting.maker.get(other), scores) or lifting.scalar(other) is not None:
            continue
        lifting.view(other)  # a constant has a layout once it is seen
        if node.op == "sub":
            other = lifting.emit("neg", (other,), f"{out} taken", lifting.dims[other], node)
        _mask(lifting, node, scores, other, canonical)
        return True
    return False


def where(lifting: Lifting, node: Node, inputs: tuple[str, ...], canonical: tuple[Group, ...]) -> bool:
    """A negative number in place of scores is a mask that adds it."""
    condition, yes, no = inputs[:3]
    for kept, put in ((yes, no), (no, yes)):
        made = lifting.maker.get(kept)
        number = lifting.scalar(put) if made is not None and made.op in _MASKED else None
        if number is not None and number < 0 and condition in lifting.dims:
            zero, fill = f"factor {0.0!r}", f"factor {number!r}"
            lifting.weights[zero] = Weight.of(np.zeros((), np.float32))
            lifting.weights[fill] = Weight.of(np.array(number, np.float32))
            pair = (zero, fill) if kept == yes else (fill, zero)
            mask = lifting.emit("where", (condition, *pair), f"{node.outputs[0]} put", lifting.dims[condition], node)
            _mask(lifting, node, kept, mask, canonical)
            return True
    return False


def unchanged_attention(lifting: Lifting, node: Node, views: Mapping[str, View]) -> View | None:
    """The attention that a node passes on, but for rows that see nothing, which some exporters make zero
    (docs/masks.md): where it is not a number, or where its scores are hidden anyway."""
    name = next((n for n, view in views.items() if _is_attention(lifting, view)), None)
    if name is None or node.op not in ("where", "mul", "add") or node.inputs.count(name) > 1:
        return None
    view, others = views[name], [other for other in node.inputs if other != name]
    condition, keeps = others[0], node.op == "mul" or node.inputs[1] == name
    if node.op == "add":  # of what a choice puts in place of attention
        pair = lifting.known(condition)
        return None if pair is None or any(array.any() for array in pair) else view
    if node.op == "where":
        tested = lifting.view(condition)
        made = lifting.maker.get(tested.value) if tested else None
        if node.inputs[0] == name or lifting.scalar(others[1]) != 0:
            return None
        if made is not None and made.op == "isnan" and made.inputs[0] == view.value:
            return None if keeps else view
    elif not _is_zero_or_one(lifting, condition):
        return None
    return view if _is_hidden(lifting, view, condition, keeps) else None


def _is_attention(lifting: Lifting, view: View) -> bool:
    made = lifting.maker.get(view.value)
    return made is not None and made.op == "softmax" and view.factor == 1


def _is_hidden(lifting: Lifting, attention: View, condition: str, keeps: bool) -> bool:
    """Whether all that a condition does not keep of attention is hidden before the softmax, for the probes."""
    mask, tested = lifting.maker.get(lifting.maker[attention.value].inputs[0]), lifting.known(condition)
    if mask is None or mask.op != "mask" or tested is None:
        return False
    if ax.settled(attention.dims) != ax.settled(lifting.dims[attention.value]):
        return False
    added = Graph(tuple(lifting.nodes), lifting.source.inputs, (mask.inputs[1],), lifting.weights)
    try:
        for probe, array in zip(lifting.probes, tested, strict=True):
            masked = evaluate(added, probe, refuse_large)[mask.inputs[1]]
            drops, masked = np.broadcast_arrays((array != 0) != keeps, masked)
            if not (masked[drops] <= HIDDEN).all():
                return False
    except (FusebertError, ValueError):  # of a mask that cannot be computed, or has another shape
        return False
    return True


def _is_maximum(made: Node | None, scores: str) -> bool:
    """Whether something is scores' own maximum, as in a softmax that is written out."""
    return made is not None and made.op == "max" and made.inputs[0] == scores


def _instead(lifting: Lifting, node: Node, product: Node, other: str, canonical: tuple[Group, ...]) -> bool:
    """Scores times a 0/1 mask plus something large where it is 0, as exporters write a choice: a mask, if it is."""
    for scores, seen in (product.inputs, product.inputs[::-1]):
        made = lifting.maker.get(scores)
        if made is None or made.op not in _MASKED or seen not in lifting.dims:
            continue
        if not _is_zero_or_one(lifting, seen):
            continue
        lifting.view(other)
        names = {"limit": HIDDEN, "not a number": np.nan}  # which no mask may hold
        for name, number in names.items():
            lifting.weights[name] = Weight.of(np.array(number, np.float32))
        out, dims = node.outputs[0], lifting.dims[other]
        hidden = lifting.emit("less_equal", (other, "limit"), f"{out} hidden", dims, node)
        large = lifting.emit("where", (hidden, other, "not a number"), f"{out} where hidden", dims, node)
        shown = lifting.emit("cast", (seen,), f"{out} shown", lifting.dims[seen], node, to="bool")
        chosen = lifting.emit("where", (shown, other, large), f"{out} chosen", dims, node)
        _mask(lifting, node, scores, chosen, canonical)
        return True
    return False


def _is_zero_or_one(lifting: Lifting, name: str) -> bool:
    while (made := lifting.maker.get(name)) is not None and made.op == "arrange":
        name = made.inputs[0]
    pair = lifting.known(name)
    return pair is not None and all(np.isin(array, (0, 1)).all() for array in pair)


def _mask(lifting: Lifting, node: Node, scores: str, mask: str, canonical: tuple[Group, ...]) -> None:
    """Emits the operation; what is added to masked scores goes into the mask they have."""
    out, made = node.outputs[0], lifting.maker[scores]
    if made.op == "mask":
        scores, before = made.inputs
        shapes = [lifting.dims[before], lifting.dims[mask]]
        rank = max(map(len, shapes))
        padded = [((),) * (rank - len(dims)) + dims for dims in shapes]
        dims = tuple(a or b for a, b in zip(*padded, strict=True))
        mask = lifting.emit("add", (before, mask), f"{out} mask", dims, node)
    lifting.emit("mask", (scores, mask), out, canonical, node)
