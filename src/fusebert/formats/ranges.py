"""Ranges: the lowest and highest input of the four products of every layer, as a file. Ranges `[layers, 4, 2]` in, a
file out, and back. docs/calibration.md describes both forms: our JSON, and the text that the TensorFlow op reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError, unknown, unreadable
from fusebert.formats import write
from fusebert.formats.files import read_json
from fusebert.ops.graph import Array
from fusebert.values import limits
from fusebert.values.plan import PRODUCTS, check_ranges

FORMS = ("ours", "bert-op")
VERSION = 1
_FORMAT = "fusebert-factors"


def default_form(path: Path) -> str:
    """Ours if the file is called .json, else the TensorFlow op's."""
    return "ours" if path.suffix == ".json" else "bert-op"


def write_factors(
    path: Path,
    ranges: Array,
    form: str | None = None,
    about: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes ranges `[layers, 4, 2]`, whole or not at all; `about` are more fields for the JSON form. Only a file with
    ranges is ever replaced."""
    form = form or default_form(path)
    if form not in FORMS:
        raise unknown("form of factors", form, FORMS)
    values = np.asarray(ranges, np.float32).reshape(-1, len(PRODUCTS), 2)
    with write.file(path, is_factors if overwrite else None) as file:
        file.write((_json(values, about or {}) if form == "ours" else _text(values)).encode())


def is_factors(path: Path) -> bool:
    """Whether there is a file with ranges, of either form."""
    with suppress(FusebertError):
        return len(read_factors(path)) > 0
    return False


def read_factors(path: Path, layers: int | None = None, forms: Sequence[str] = FORMS) -> Array:
    """The ranges `[layers, 4, 2]` of a file in one of `forms`. If the number of layers is known, 8 numbers per layer
    are taken from the beginning of the text form, and the rest is ignored."""
    try:
        if path.stat().st_size > limits.RANGES_BYTES:
            raise FusebertError(
                f"ranges: {path} is larger than {limits.RANGES_BYTES >> 20} MB, too large for a file of ranges"
            )
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(f"ranges: {path}", error) from None
    form = "ours" if content.lstrip()[:1] == b"{" else "bert-op"
    if form not in forms:
        raise FusebertError(f"ranges: {path} has the form {form!r}; write it with --format {' or '.join(forms)}")
    values = _from_json(path) if form == "ours" else _from_text(path, content, layers)
    if layers is not None and len(values) != layers:
        raise FusebertError(f"ranges: {path} is for {len(values)} layers, but the model has {layers}")
    check_ranges(values, f"ranges: {path}")
    return values


def read_ranges(given: Any, layers: int) -> Any:
    """Ranges as a caller gives them: the path of a file is read, anything else stays as it is."""
    return read_factors(Path(given), layers) if isinstance(given, (str, Path)) else given


def _text(values: Array) -> str:
    """Nine digits tell all floats apart; one layer on a line."""
    return "".join(" ".join(f"{number:11.9g}" for number in layer.ravel()) + "\n" for layer in values)


def _from_text(path: Path, content: bytes, layers: int | None) -> Array:
    words = content.split()[: None if layers is None else layers * 8]
    try:
        numbers = np.array([float(word) for word in words], np.float64)
    except ValueError:
        raise FusebertError(f"ranges: {path} is neither JSON nor numbers") from None
    if not len(numbers) or len(numbers) % 8 or (layers is not None and len(numbers) != layers * 8):
        needed = "8 for every layer" if layers is None else f"{layers * 8} for {layers} layers"
        raise FusebertError(f"ranges: {path} holds {len(numbers)} numbers, but there must be {needed}")
    with np.errstate(over="ignore"):  # what no float holds is infinite, and refused as such
        return numbers.astype(np.float32).reshape(-1, len(PRODUCTS), 2)


def _json(values: Array, about: Mapping[str, Any]) -> str:
    layers = [
        {name: [float(f"{number:.9g}") for number in pair] for name, pair in zip(PRODUCTS, layer, strict=True)}
        for layer in values
    ]
    head = json.dumps({"format": _FORMAT, "version": VERSION, **about}, indent=1).removesuffix("\n}")
    return f'{head},\n "layers": [\n  ' + ",\n  ".join(map(json.dumps, layers)) + "\n ]\n}\n"


def _from_json(path: Path) -> Array:
    head = read_json(path)
    if head.get("format") != _FORMAT:
        raise FusebertError(f"ranges: {path}: format must be {_FORMAT}")
    if not isinstance(version := head.get("version"), int) or version > VERSION:
        raise FusebertError(
            f"ranges: {path}: version {version!r:.20} is newer than this fusebert reads ({VERSION}); update fusebert"
        )
    layers = head.get("layers")
    if not isinstance(layers, list) or not layers:
        raise FusebertError(f"ranges: {path}: layers must be a list")
    values = np.empty((len(layers), len(PRODUCTS), 2), np.float32)
    for number, layer in enumerate(layers):
        for place, name in enumerate(PRODUCTS):
            pair = layer.get(name) if isinstance(layer, dict) else None
            if not isinstance(pair, list) or len(pair) != 2 or not all(_is_number(value) for value in pair):
                raise FusebertError(f"ranges: {path}: layers[{number}].{name} must be a low and a high")
            values[number, place] = pair
    return values


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 3e38
