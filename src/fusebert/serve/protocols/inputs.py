"""What clients send as inputs -> texts, pairs or arrays of token ids, within bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
from msgspec import Meta

from fusebert.errors import FusebertError
from fusebert.serve.calls import Input
from fusebert.serve.front import Bounds, StatusError

_TEXT = {"type": "string"}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}


def _either(*schemas: dict[str, Any]) -> Any:
    """A value that the readers below check; the schemas are for the document of the server."""
    return Annotated[Any, Meta(extra_json_schema={"anyOf": list(schemas)})]


def _many(items: dict[str, Any], **more: int) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, **more}


Inputs = _either(_TEXT, _many(_TEXT), _IDS, _many(_IDS))
Texts = _either(_TEXT, _many(_TEXT))
Pairs = _either(_TEXT, _many(_TEXT, maxItems=2), _many(_many(_TEXT, maxItems=2)))
Ids = _either(_IDS, _many(_IDS))


def read_texts(texts: Sequence[Any], bounds: Bounds, name: str = "inputs") -> list[str]:
    """Texts, as many and as long as allowed."""
    check_count(texts, bounds, name)
    for number, text in enumerate(texts):
        _check_text(text, bounds, f"{name}[{number}]")
    return list(texts)


def read_inputs(value: Any, bounds: Bounds, name: str = "inputs") -> tuple[list[Input], bool]:
    """A text, texts, token ids or lists of them, and whether it was a single one."""
    if isinstance(value, str):
        return list(read_texts([value], bounds, name)), True
    if not isinstance(value, list):
        raise FusebertError(f"{name}: a text, a list of texts, token ids or lists of token ids are expected")
    if value and all(type(token) is int for token in value):
        return [_ids(value, name)], True
    check_count(value, bounds, name)
    if all(isinstance(own, list) for own in value):
        return [_ids(own, f"{name}[{number}]") for number, own in enumerate(value)], False
    return list(read_texts(value, bounds, name)), False


def read_pairs(value: Any, bounds: Bounds) -> tuple[list[Input], bool]:
    """As a classifier takes them: a text, a pair of texts, or a list of lists of one or two texts."""
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        return [_pair(value, bounds, "inputs")], True
    if isinstance(value, list):
        check_count(value, bounds, "inputs")
        return [_pair(part, bounds, f"inputs[{number}]") for number, part in enumerate(value)], False
    return read_inputs(value, bounds)


def check_count(values: Any, bounds: Bounds, name: str) -> None:
    """Whether a request has inputs, and not too many."""
    if not isinstance(values, (list, range)) or not values:
        raise FusebertError(f"{name}: a list with at least one text is expected")
    if len(values) > bounds.texts:
        raise StatusError(413, f"{name}: {len(values)} inputs, but a request may have {bounds.texts}; split it")


def _pair(value: Any, bounds: Bounds, name: str) -> Input:
    if not isinstance(value, list) or len(value) not in (1, 2):
        raise FusebertError(f"{name}: one text, or a pair of texts is expected")
    for text in value:
        _check_text(text, bounds, name)
    return value[0] if len(value) == 1 else (value[0], value[1])


def _ids(value: list[Any], name: str) -> Any:
    if not value or len(value) > 1 << 16 or not all(type(token) is int and 0 <= token < 1 << 31 for token in value):
        raise FusebertError(f"{name}: token ids are whole numbers, at least one and not below 0")
    return np.array(value, np.int64)


def _check_text(text: Any, bounds: Bounds, name: str) -> None:
    if not isinstance(text, str):
        raise FusebertError(f"{name}: a text is expected")
    if len(text) > bounds.text or len(text.encode("utf-8", "surrogatepass")) > bounds.text:
        raise StatusError(413, f"{name}: the text is longer than {bounds.text} bytes; shorten it")
