"""Elements: tags of HTML and SVG with attributes and children; what is text is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

_VOID = frozenset(("meta", "rect", "line", "path"))


class Markup(str):
    """HTML already; every other string is text."""


def tag(name: str, /, *children: Any, **attributes: Any) -> Markup:
    """An element. Attributes are named as in Python: `class_`, `data_value`; those that are None are left out."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    head = "".join(f' {key}="{html.escape(str(value))}"' for key, value in given.items())
    inner = join(children)
    return Markup(f"<{name}{head}/>" if name in _VOID and not inner else f"<{name}{head}>{inner}</{name}>")


def join(children: Iterable[Any]) -> Markup:
    """Children in a row, lists among them flattened, nothing for None."""
    parts: list[str] = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, (list, tuple)):
            parts.append(join(child))
        elif child is not None:
            parts.append(html.escape(str(child)))
    return Markup("".join(parts))
