"""Layout: an encoder of any form as a fused operator carries it: a text that says what each block is and which weight
each input of the node holds, and those weights. docs/onnxruntime-op.md has the grammar; native/hosts/layout.cc reads
the same text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.artifact.form import Arrays, describe_block, describe_norm, read_encoder
from fusebert.formats.artifact.header import Fields
from fusebert.ops.graph import Array
from fusebert.values.blocks import Encoder
from fusebert.values.traverse import weights

_MOST_BYTES = 1 << 22
_BODIES = ("attention", "feed_forward")
_SIZES = ("buckets", "reach")  # of a position, which stand on the line of its block
_KNOWN = {
    "encoder": {"hidden", "order"}, "norm": {"kind", "epsilon"}, "final": {"kind", "epsilon"}, "input": set(),
    "attention": {"heads", "key_heads", "scale", "window", "position", *_SIZES, "adds_twice"},
    "feed_forward": {"activation", "adds_twice"},
}  # fmt: skip
_KERNEL, _WEIGHT = ".kernel", ".weight"  # a matrix [inputs, outputs], and one [outputs, inputs]


def write_layout(encoder: Encoder, inputs: Sequence[str] | None = None) -> str:
    """The text of an encoder's layout, whose inputs are all its weights in their order, unless others are given."""
    order = {} if encoder.order == tuple(range(len(encoder.blocks))) else {"order": ",".join(map(str, encoder.order))}
    lines = [_line("encoder", hidden=encoder.hidden_size, **order)]
    for block in map(describe_block, encoder.blocks):
        lines += _block_lines(**block)
    if encoder.final is not None:
        lines.append(_norm_line("final", describe_norm(encoder.final) or {}))
    names = [name for name, _ in weights(encoder)] if inputs is None else inputs
    return "\n".join((*lines, *(f"input {name}" for name in names))) + "\n"


def _block_lines(
    body: str,
    norms: Mapping[str, Any],
    window: int | None = None,
    position: Mapping[str, Any] | None = None,
    adds_twice: bool = False,
    **own: Any,
) -> list[str]:
    sizes = {} if position is None else {"position": position["kind"]}
    sizes |= {name: max(position[name], 0) for name in _SIZES if position is not None and name in position}
    more = {**({"window": window} if window else {}), **sizes, **({"adds_twice": 1} if adds_twice else {})}
    return [_line(body, **own, **more), *(_norm_line(f"norm {name}", norm) for name, norm in norms.items())]


def _norm_line(first: str, norm: Mapping[str, Any]) -> str:
    return _line(first, kind=norm["kind"], epsilon=norm["epsilon"])


def _line(first: str, **values: Any) -> str:
    return " ".join((first, *(f"{name}={value}" for name, value in values.items())))


def read_layout(where: str, text: str, names: Sequence[str], array: Callable[[str], Array]) -> Encoder:
    """The encoder of a layout; `names` are the node's weights, which `array` reads."""
    fields, inputs, hidden = _fields(where, text)
    if len(inputs) != len(names):
        raise FusebertError(f"{where}: the layout names {len(inputs)} inputs, but there are {len(names)} weights")
    given = dict(zip(inputs, names, strict=True))
    turned = {name[: -len(_KERNEL)] + _WEIGHT: name for name in given if name.endswith(_KERNEL)}
    if len(given) != len(inputs) or not turned.keys().isdisjoint(given):
        raise FusebertError(f"{where}: the layout names an input twice")
    used: set[str] = set()

    def read(name: str) -> Array:
        own = turned.get(name, name)
        used.add(own)
        read = array(given[own])
        return read.T if name in turned else read

    made = read_encoder(fields, Arrays(where, {*given, *turned}, read), hidden)
    for name in given:
        if name not in used:
            raise FusebertError(f"{where}: the layout has an input {name!r:.80}, which none of its blocks reads")
    return made


def has_window(text: str) -> bool:
    """Whether a layout says that some attention sees only so far."""
    return any(word.startswith("window=") for line in text.splitlines() for word in line.split(" "))


def layout_inputs(where: str, text: str) -> tuple[str, ...]:
    """What the weights of a layout are called."""
    return tuple(_fields(where, text)[1])


def _fields(where: str, text: str) -> tuple[Fields, list[str], int]:
    """The form as fields, the inputs, and the hidden size."""
    if len(text) > _MOST_BYTES:
        raise FusebertError(f"{where}: the layout has {len(text)} bytes; at most {_MOST_BYTES} are read")
    encoder: dict[str, Any] | None = None
    blocks: list[dict[str, Any]] = []
    final: dict[str, Any] | None = None
    inputs: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line:
            continue
        kind, name, values = _words(f"{where}: line {number} of the layout", line)
        if encoder is None and kind != "encoder":
            raise FusebertError(f"{where}: line {number} of the layout stands before the line 'encoder'")
        if kind == "encoder" and encoder is None:
            encoder = values
        elif kind in _BODIES:
            blocks.append(_block(kind, values))
        elif kind == "norm" and blocks and name and name not in blocks[-1]["norms"]:
            blocks[-1]["norms"][name] = {**values, "has": []}
        elif kind == "final" and final is None:
            final = {**values, "has": []}
        elif kind == "input" and name:
            inputs.append(name)
        else:
            raise FusebertError(f"{where}: line {number} of the layout, {line!r:.80}, means nothing there")
    given = set(inputs)
    for i, block in enumerate(blocks):
        for name, norm in block["norms"].items():
            norm["has"] = _has(given, f"block.{i}.{name}")
    if final is not None:
        final["has"] = _has(given, "final")
    if encoder is None or not blocks:
        raise FusebertError(f"{where}: the layout has no {'blocks' if encoder else 'line encoder'}")
    order = encoder.get("order")
    numbers = range(len(blocks)) if order is None else (_number(word) for word in str(order).split(","))
    fields = Fields(Path(where), {"blocks": blocks, "order": list(numbers), "final": final}, "layout ")
    return fields, inputs, Fields(Path(where), encoder, "layout ").whole("hidden", 1, 1 << 24)


def _words(where: str, line: str) -> tuple[str, str, dict[str, Any]]:
    """The first word of a line, the name behind it, and values by name."""
    kind, *words = line.split(" ")
    pairs = [word.partition("=")[::2] if "=" in word else ("", word) for word in words]
    values: dict[str, Any] = {name: _number(value) for name, value in pairs}
    if len(values) != len(pairs):
        raise FusebertError(f"{where} says something twice")
    name = str(values.pop("", ""))
    if kind not in _KNOWN or not values.keys() <= _KNOWN[kind]:
        raise FusebertError(f"{where}, {line!r:.80}, means nothing there")
    return kind, name, values


def _number(word: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def _block(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """A block's fields as an artifact has them."""
    sizes = {name: values.pop(name) for name in _SIZES if name in values}
    position = {"kind": values.pop("position"), "buckets": 0, **sizes} if "position" in values else None
    twice = {"adds_twice": True} if values.pop("adds_twice", 0) == 1 else {}
    return {"body": kind, **values, "position": position, "norms": {}, **twice}


def _has(inputs: set[str], path: str) -> list[str]:
    return [name for name in ("gain", "bias") if f"{path}.{name}" in inputs]
