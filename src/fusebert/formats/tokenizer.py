"""Tokenizer files: tokenizer.json -> its text, once it is known what its steps may make of a text. A file may chain
steps that each double a text, and where memory ends the tokenizers library ends the process: so the growth is bounded
before the library sees the file."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.files import read_json
from fusebert.values import limits

_STEPS = ("normalizers", "pretokenizers", "processors", "decoders")


def read_tokenizer(path: Path) -> str:
    """The text of a tokenizer.json that makes texts at most 1024 times as long."""
    content = read_json(path)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        growth = _growth(content.get(name), f"{path}: its {name}")
        if growth > limits.TEXT_GROWTH:
            raise FusebertError(
                f"{path}: its {name} may make a text {growth:.0f} times as long, and {limits.TEXT_GROWTH} is allowed; "
                "take the model's own tokenizer"
            )
    return json.dumps(content)


def _growth(step: Any, where: str) -> float:
    """How many times as long as a text its result can be, in bytes."""
    if not isinstance(step, Mapping):
        return 1
    match step.get("type"):
        case "Sequence":
            lists = [step[name] for name in _STEPS if isinstance(step.get(name), list)]
            return math.prod(_growth(one, where) for steps in lists for one in steps)
        case "Replace":
            return _replacement(step.get("pattern"), step.get("content"))
        case "Precompiled":
            return _longest_entry(step.get("precompiled_charsmap"), where)
        case "TemplateProcessing":
            return max(1, *(len(step[name]) for name in ("single", "pair") if isinstance(step.get(name), list)))
        case "Prepend":
            return 1 + len(str(step.get("prepend")).encode(errors="replace"))
        case "ByteLevel" | "BertNormalizer":
            return 2
        case "Metaspace":
            return 4
        case _:
            return 1


def _replacement(pattern: Any, content: Any) -> float:
    """A regular expression may match between any two bytes."""
    replaced = pattern.get("String") if isinstance(pattern, Mapping) else pattern
    inserted = len(str(content).encode(errors="replace"))
    if isinstance(replaced, str) and replaced:
        return max(1, inserted / len(replaced.encode(errors="replace")))
    return 1 + inserted


def _longest_entry(table: Any, where: str) -> int:
    """The longest string of a sentencepiece table: an index behind its length, then strings that end with a zero. The
    library makes room for as long an index as is said."""
    try:
        data = base64.b64decode(table if isinstance(table, str) else "", validate=True)
    except (binascii.Error, ValueError):
        return 1  # which the library refuses
    if len(data) < 4 or int.from_bytes(data[:4], "little") > len(data) - 4:
        raise FusebertError(f"{where} has a table that ends before its index does; take the model's own tokenizer")
    strings = data[4 + int.from_bytes(data[:4], "little") :]
    return max(1, *map(len, strings.split(b"\0")))
