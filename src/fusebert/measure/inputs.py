"""Inputs: what each input of a model is fed with. The inputs that a framework declares and the graph in; for every one
its role, or the number it is filled with, out.

The graph says what an input is for; a name only where the graph does not. Whoever knows better names them. Where name
and graph contradict each other, that is said: whoever feeds such a model by name gets wrong answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusebert.errors import FusebertError, UnsupportedError, suggest
from fusebert.measure.meanings import Limits, Meanings, read_meanings
from fusebert.ops.graph import Array
from fusebert.source import GraphSource

ROLES = ("ids", "mask", "types")
_MASKS = ("mask", "padding", "additive")
_HIDES = -1e4  # fits into halves
OPTIONS = {"ids": "--input-ids", "mask": "--input-mask", "types": "--segment-ids"}
_NAMED = {
    "ids": "the token ids", "mask": "the mask", "padding": "a mask that is 1 where a position is hidden",
    "additive": "what is added to the scores", "types": "the token types", "positions": "the positions",
}  # fmt: skip
_WORDS = {  # the first that a name holds
    "label": "", "position": "positions", "mask(?!ed|ing)": "mask", "segment|type": "types", "ids|token|word": "ids",
}  # fmt: skip

Told = Mapping[str, str | float | None]


class UnknownInputError(FusebertError):
    """The user named an input that the model does not have; `key` is its entry in what was told."""

    def __init__(self, message: str, key: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True)
class Input:
    """An input as its framework declares it: the name to feed it by, and the tensor it is in the graph, if that is
    called otherwise. Sizes that are not settled are None."""

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None = None
    tensor: str = ""


@dataclass(frozen=True)
class Roles(Limits):
    """Every input in the order of the model, with its role (ids, mask, padding, additive, types, positions) or the
    number it is filled with; and what there is to say about them."""

    fed: tuple[tuple[Input, str | float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def inputs(self) -> dict[str, Input]:
        """The inputs by role; those of the first encoder."""
        first: dict[str, Input] = {}
        for given, role in self.fed:
            if role in (*ROLES, *_MASKS):
                first.setdefault("mask" if role in _MASKS else str(role), given)
        return first

    @property
    def more(self) -> tuple[Input, ...]:
        """The inputs of a second encoder."""
        first = self.inputs.values()
        return tuple(given for given, role in self.fed if role in (*ROLES, *_MASKS) and given not in first)


def find_roles(inputs: Sequence[Input], source: GraphSource, told: Told | None = None) -> Roles:
    """The roles of a model's inputs. `told` are names by role that the user gave, and numbers by name."""
    tensors = {given.tensor or given.name: given for given in inputs}
    known = read_meanings(source, tensors.keys())
    chosen, filled = _told(inputs, told or {})
    notes = _against_names(source, tensors, known, chosen)
    found = [{role: tensors[t] for role, t in one.items() if t in tensors} for one in known.encoders]
    taken = {given.name: role for role, given in chosen.items()} | filled
    for number, one in enumerate(found):
        for role, given in one.items():
            if given.name not in taken and (number or role not in chosen):
                taken[given.name] = role
    idle = [given for given in inputs if given.name not in taken and (given.tensor or given.name) in known.idle]
    taken |= {given.name: 0.0 for given in idle}
    _by_name([given for given in inputs if given.name not in taken], taken, guess=not known.encoders)
    _require(inputs, taken)
    notes += [f"No answer depends on input {given.name}; it gets zeros." for given in idle]
    notes += [f"Input {name} gets 0, 1, 2 and so on." for name, role in taken.items() if role == "positions"]
    ids = next(given for given in inputs if taken[given.name] == "ids")
    settled = {place: size for place, size in enumerate((ids.shape or ())[:2]) if size is not None}
    limits = {**vars(known.limits), "settled": {**known.limits.settled, **settled}}
    return Roles(**limits, fed=tuple((given, taken[given.name]) for given in inputs), notes=tuple(notes))


def roles(source: GraphSource) -> dict[str, str]:
    """What the graph uses its inputs for, by name; "nothing" where no answer depends on one."""
    tensors = _served(source)
    known = read_meanings(source, tensors.keys())
    used = {tensors[t].name: role for one in known.encoders for role, t in one.items() if t in tensors}
    return {one.name: "nothing" if tensor in known.idle else used.get(one.name, "?") for tensor, one in tensors.items()}


def contradictions(source: GraphSource) -> tuple[str, ...]:
    """What is to be said of a model whose inputs are called what they are not."""
    tensors = _served(source)
    return tuple(_against_names(source, tensors, read_meanings(source, tensors.keys()), {}))


def _served(source: GraphSource) -> dict[str, Input]:
    """The inputs that whoever calls a model gives, by tensor."""
    served = source.graph.facts.get("served")
    names = served[0] if served else {tensor: tensor for tensor in source.graph.inputs}
    return {tensor: Input(name, "", tensor=tensor) for name, tensor in names.items()}


def _against_names(
    source: GraphSource, tensors: Mapping[str, Input], known: Meanings, chosen: Mapping[str, Input]
) -> list[str]:
    """Sentences on inputs that the graph uses for something else than their names, or the user, say."""
    meant = {tensors[t].name: role for one in known.encoders for role, t in one.items() if t in tensors}
    wrong = {name: role for name, role in meant.items() if role_by_name(name) not in (None, "", role)}
    wrong = {name: role for name, role in wrong.items() if role != "padding" or "pad" not in name.lower()}
    wrong = {name: role for name, role in wrong.items() if (role_by_name(name), role) != ("mask", "additive")}
    notes = []
    if wrong:
        uses = " and ".join(f"{name} as {_NAMED[role]}" for name, role in wrong.items())
        notes.append(
            f"{source.path} uses its input {uses}, against the name: whoever feeds it by name gets wrong answers. "
            "Here inputs are fed by what they are used for."
        )
    for role, given in chosen.items():
        if meant.get(given.name, role) != role:
            used = _NAMED[meant[given.name]]
            notes.append(f"Input {given.name} was fed with {_NAMED[role]}, as told; the graph uses it as {used}.")
    return notes


def _told(inputs: Sequence[Input], told: Told) -> tuple[dict[str, Input], dict[str, str | float]]:
    """What the user said: inputs by role, and numbers by name."""
    chosen: dict[str, Input] = {}
    filled: dict[str, str | float] = {}
    for key, said in told.items():
        if said is None:
            continue
        name = said if isinstance(said, str) else key
        match = next((given for given in inputs if name in (given.name, given.tensor)), None)
        if match is None:
            there = [given.name for given in inputs]
            raise UnknownInputError(
                f"it has no input {name!r}; there are {', '.join(there)}{suggest(name, there)}", key
            )
        if match in chosen.values() or match.name in filled:
            raise FusebertError(f"input {name!r} cannot be two things at once")
        if isinstance(said, str):
            chosen[key] = match
        else:
            filled[match.name] = float(said)
    return chosen, filled


def _by_name(spare: list[Input], taken: dict[str, str | float], guess: bool) -> None:
    """Gives roles to inputs that have none: by name; a mask may be told by its type; where the graph tells nothing, one
    that is left by what is missing. As many encoders as there are ids may each have one of a role."""
    encoders = max(1, list(taken.values()).count("ids"))
    for given in spare:
        role = role_by_name(given.name)
        if role is None:
            role = None if given.dtype.startswith("int") else "mask"
        if role and list(taken.values()).count(role) < encoders:
            taken[given.name] = role
    spare = [given for given in spare if given.name not in taken]
    missing = [role for role in ROLES if role not in taken.values()]
    if guess and len(spare) == 1 and (len(missing) == 1 or "ids" in missing) and role_by_name(spare[0].name) is None:
        taken[spare[0].name] = missing[0]


def _require(inputs: Sequence[Input], taken: Mapping[str, str | float]) -> None:
    declared = ", ".join(f"{given.name} ({given.dtype})" for given in inputs)
    if "ids" not in taken.values() and len(taken) == len(inputs):
        raise FusebertError(f"its inputs are {declared}, and none of them are token ids; say which: {OPTIONS['ids']}")
    strange = [given.name for given in inputs if given.name not in taken]
    if strange:
        raise FusebertError(
            f"its inputs are {declared}; what {' and '.join(strange)} should get is not clear, and answers depend on "
            f"it. Say which are ids, mask and token types with {', '.join(OPTIONS.values())}, or give a number: --fill "
            f"{strange[0]}=0"
        )


def role_by_name(name: str) -> str | None:
    """What a name says its input is; "" if none of the roles, None if it says nothing."""
    return next((role for words, role in _WORDS.items() if re.search(words, name.lower())), None)


def fill(declared: Input, what: Any, shape: tuple[int, ...]) -> Array:
    """An input that has nothing to do with texts: "positions", or a number everywhere; of the declared shape, with the
    sizes of the batch where those are free."""
    free = shape if declared.shape is None else declared.shape
    sizes = [shape[min(place, 1)] if n is None else n for place, n in enumerate(free)]
    if declared.dtype == "string":
        return np.full(sizes, "", object)
    if what == "positions":
        what = np.arange(sizes[-1] if len(sizes) > 1 else shape[1])
        sizes = sizes if len(sizes) > 1 else [shape[1]]
    return np.ascontiguousarray(np.broadcast_to(what, sizes), declared.dtype)


def added(mask: Array, declared: Input) -> Array:
    """What is added to the scores so that a mask hides positions: `[batch, heads, queries, keys]`, with one of heads
    and queries unless more are declared."""
    sizes = declared.shape or (None,) * 4
    if len(sizes) != 4:
        raise UnsupportedError(f"input {declared.name} is added to the scores, and has {len(sizes)} dimensions, not 4")
    count, length = mask.shape
    full = count, sizes[1] or 1, length if sizes[2] is None else sizes[2], length
    values = np.where(mask != 0, 0.0, _HIDES)[:, None, None]
    return np.ascontiguousarray(np.broadcast_to(values, full), declared.dtype)


def sizes_of(shape: Any) -> tuple[int | None, ...] | None:
    """A shape as a framework gives it, with None for what is free."""
    return None if shape is None else tuple(n if isinstance(n, int) and n >= 0 else None for n in shape)
