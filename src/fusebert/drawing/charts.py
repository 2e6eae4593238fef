"""Charts: rows of a report's tables as SVG. Every mark has its number beside it or in its title; nothing is told by
colour alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fusebert.drawing.elements import Markup, tag
from fusebert.drawing.text import text

_WIDTH = 640
_BAR = 20
_NAMES = 210  # what names take on the left


def bars(rows: Sequence[Mapping[str, Any]], label: str, value: str, spread: tuple[str, str] | None = None) -> Markup:
    """A bar for each row, from 0; `spread` are the columns of a whisker."""
    most = max(max(_number(row[value]), _number(row[spread[1]]) if spread else 0.0) for row in rows) or 1.0
    room = _WIDTH - _NAMES - 90
    parts = []
    for i, row in enumerate(rows):
        y, width = i * (_BAR + 10) + 4, _number(row[value]) / most * room
        parts += [
            tag("text", str(row[label]), x=_NAMES - 10, y=y + 14, text_anchor="end"),
            tag("rect", tag("title", f"{row[label]}: {text(row[value])}"), x=_NAMES, y=y, width=f"{max(width, 1):.1f}",
                height=_BAR, rx=3, class_="bar" if i else "bar first"),
        ]  # fmt: skip
        end = width
        if spread:
            low, high = (_number(row[name]) / most * room for name in spread)
            end, middle = max(width, high), y + _BAR / 2
            way = f"M{_NAMES + low:.1f} {middle}H{_NAMES + high:.1f}M{_NAMES + low:.1f} {middle - 4}v8"
            way += f"M{_NAMES + high:.1f} {middle - 4}v8"
            what = f"{spread[0]} {text(row[spread[0]])}, {spread[1]} {text(row[spread[1]])}"
            parts.append(tag("path", tag("title", what), d=way, class_="whisker"))
        parts.append(tag("text", text(row[value]), x=f"{_NAMES + end + 8:.1f}", y=y + 14, class_="number"))
    height = len(rows) * (_BAR + 10)
    names = "; ".join(f"{row[label]} {text(row[value])}" for row in rows)
    return tag("svg", parts, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label=f"{value}: {names}")


def columns(counts: Sequence[tuple[str, int]], title: str) -> Markup:
    """A column for each count, as tall as its share, with its name below."""
    total = sum(count for _, count in counts) or 1
    wide = _WIDTH / max(len(counts), 8)
    parts = []
    for i, (name, count) in enumerate(counts):
        share, x = count / total, i * wide
        height = max(share * 90, 1 if count else 0)
        parts += [
            tag("rect", tag("title", f"{name}: {count:,}"), x=f"{x + 6:.1f}", y=f"{100 - height:.1f}",
                width=f"{wide - 12:.1f}", height=f"{height:.1f}", rx=3, class_="bar first"),
            tag("text", f"{share:.0%}" if share >= 0.005 else "<1%" if count else "", x=f"{x + wide / 2:.1f}",
                y=f"{94 - height:.1f}", text_anchor="middle", class_="number"),
            tag("text", name, x=f"{x + wide / 2:.1f}", y=118, text_anchor="middle"),
        ]  # fmt: skip
    told = "; ".join(f"{name} {count:,}" for name, count in counts)
    return tag("svg", parts, viewBox=f"0 -14 {_WIDTH} 140", role="img", aria_label=f"{title}: {told}")


def blocks(parts: Sequence[tuple[str, str, bool]]) -> Markup:
    """A model as blocks in a row: what each is, more about it, and whether it is an encoder."""
    gap, height = 26, 64
    wide = (_WIDTH - gap * (len(parts) - 1)) / len(parts)
    drawn = []
    for i, (name, more, encoder) in enumerate(parts):
        x = i * (wide + gap)
        drawn += [
            tag("rect", x=f"{x + 1:.1f}", y=1, width=f"{wide - 2:.1f}", height=height, rx=9,
                class_="block encoder" if encoder else "block"),
            tag("text", name, x=f"{x + wide / 2:.1f}", y=28, text_anchor="middle", class_="name"),
            tag("text", more, x=f"{x + wide / 2:.1f}", y=48, text_anchor="middle"),
        ]  # fmt: skip
        if i:
            drawn.append(tag("path", d=f"M{x - gap + 4:.1f} 33h{gap - 9}m-5 -4l5 4l-5 4", class_="arrow"))
    told = ", then ".join(f"{name} ({more})" for name, more, _ in parts)
    return tag("svg", drawn, viewBox=f"0 0 {_WIDTH} {height + 2}", role="img", aria_label=told)


def ranges(rows: Sequence[Mapping[str, Any]], title: str) -> Markup:
    """A column for each row, from its `low` to its `high`, around a line at 0; behind it what was seen, where
    that was more."""
    high = max(0.0, *(_number(row.get("seen_high", row["high"])) for row in rows))
    low = min(0.0, *(_number(row.get("seen_low", row["low"])) for row in rows))
    tall, left = 96, 64
    scale = tall / ((high - low) or 1.0)
    wide = min(96.0, (_WIDTH - left) / len(rows))
    every = max(1, round(22 / wide))
    parts = [
        tag("text", text(end), x=left - 10, y=f"{(high - end) * scale + 12:.1f}", text_anchor="end", class_="number")
        for end in dict.fromkeys((high, 0.0, low)) if end == 0 or abs(end) * scale > 14
    ]  # fmt: skip
    for i, row in enumerate(rows):
        x = left + i * wide
        seen = _number(row.get("seen_low", row["low"])), _number(row.get("seen_high", row["high"]))
        told = f"layer {row['layer']}: {text(row['low'])} to {text(row['high'])}"
        for (first, last), kind in ((seen, "bar first"), ((_number(row["low"]), _number(row["high"])), "bar")):
            parts.append(
                tag("rect", tag("title", told), x=f"{x + wide * 0.2:.1f}", y=f"{(high - last) * scale + 8:.1f}",
                    width=f"{wide * 0.6:.1f}", height=f"{max((last - first) * scale, 1):.1f}", rx=2, class_=kind)
            )  # fmt: skip
        if i % every == 0:
            parts.append(tag("text", str(row["layer"]), x=f"{x + wide / 2:.1f}", y=tall + 26, text_anchor="middle"))
    parts.append(tag("path", d=f"M{left} {high * scale + 8:.1f}h{wide * len(rows):.1f}", class_="whisker"))
    said = "; ".join(f"layer {row['layer']} {text(row['low'])} to {text(row['high'])}" for row in rows)
    return tag("svg", parts, viewBox=f"0 0 {_WIDTH} {tall + 32}", role="img", aria_label=f"{title}: {said}")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
