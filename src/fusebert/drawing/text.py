"""Text: a value of a report as people read it. Numbers are rounded; what is exact stands in the JSON."""

from __future__ import annotations

from typing import Any


def text(value: Any) -> str:
    """A cell: numbers rounded for reading, byte counts left to the caller."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        if 1e4 <= abs(value) < 1e15:
            return f"{value:,.0f}"
        return f"{value:.6f}" if 0.9 < abs(value) < 1 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value))
    if isinstance(value, dict):
        return ", ".join(f"{name} {text(inner)}" for name, inner in value.items())
    return str(value)
