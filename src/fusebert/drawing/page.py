"""Page: a Report -> HTML: a whole page that opens from disk without a network and prints on A4, or part of a notebook.
It has no scripts; whatever it shows stands in the JSON of the same report."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fusebert.drawing.charts import bars, blocks, columns, ranges
from fusebert.drawing.elements import Markup, join, tag
from fusebert.drawing.text import text
from fusebert.web import read

if TYPE_CHECKING:
    from fusebert.report import Report, Table

MARK = "<!doctype html><!-- fusebert report -->"
_TILES = ("precision", "for", "layers", "samples", "bytes_before", "bytes_after", "nodes_before", "nodes_after")
_SETTING = ("engine", "size", "threads")
_WIDE = 9  # columns of a table; a row of more is shown as names and values


def page(report: Report, command: str, machine: Mapping[str, Any]) -> str:
    """The whole page. `command` is what made the report; `machine` are facts about where."""
    style = read("report.css").decode()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    head = tag(
        "head", tag("meta", charset="utf-8"), tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", f"fusebert: {report.title}"), tag("style", Markup(style)),
    )  # fmt: skip
    data = json.dumps(report.data(), indent=1, default=str)
    body = tag(
        "body",
        tag("main", _body(report), _section("Machine", _facts(machine)),
            _section("Again", tag("pre", command, tabindex="0"), tag("p", "The command that made this report.")),
            tag("details", tag("summary", "Everything as JSON"), tag("pre", data, id="data", tabindex="0")),
            class_="fusebert"),
    )  # fmt: skip
    return MARK + tag("html", head, body, lang="en")


def fragment(report: Report) -> str:
    """A part of another page, with its own style."""
    style = read("report.css").decode()
    return tag("div", tag("style", Markup(style)), _body(report), class_="fusebert")


def _body(report: Report) -> Markup:
    tables = {table.title: table for table in report.tables if table.rows}
    tiles = {name: report.facts[name] for name in _TILES if report.facts.get(name) not in (None, "")}
    rest = {
        name: value for name, value in report.facts.items() if name not in tiles and name not in ("verdict", "same")
    }
    notes = tag("ul", [tag("li", note) for note in report.notes], class_="notes") if report.notes else None
    return join(
        [
            tag("header", tag("h1", report.title), _verdict(report.facts)),
            tag("ul", [tag("li", tag("b", _size(name, value)), " ", tag("span", _words(name))) for name, value in
                       tiles.items()], class_="tiles") if tiles else None,
            _model(report.facts, tables),
            _facts(rest) if any(text(value) for value in rest.values()) else None,
            *(_drawn(table, tables) for table in tables.values()),
            _section("Notes", notes) if notes else None,
        ]
    )  # fmt: skip


def _verdict(facts: Mapping[str, Any]) -> Markup | None:
    """The verdict, with a sign that needs no colour."""
    if "verdict" not in facts:
        return None
    told = str(facts["verdict"])
    good = facts.get("same", not told.startswith(("different", "not ")))
    return tag(
        "p",
        ("✓ " if good else "✗ " if "same" in facts else "") + told,
        class_="verdict" + (" good" if good else " bad"),
    )


def _model(facts: Mapping[str, Any], tables: Mapping[str, Table]) -> Markup | None:
    """The model as blocks, where its encoders are told."""
    found = [dict(zip(tables["encoders"].columns, row, strict=True)) for row in tables["encoders"].rows] if (
        "encoders" in tables
    ) else [dict(facts)] if "layers" in facts else []  # fmt: skip
    if not found:
        return None
    parts = [("Embeddings", "words, positions", False)]
    for one in found[:2]:
        sizes = f"{one['hidden']} wide, {one['heads']} heads" if "heads" in one else str(one.get("family", ""))
        parts.append((f"Encoder × {one['layers']}", sizes, True))
    parts.append(("Head", str(facts.get("head", found[0].get("readers", "")))[:26], False))
    return _section("Model", blocks(parts))


def _drawn(table: Table, tables: Mapping[str, Table]) -> Markup | None:
    """A table, with a chart where one says more."""
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    title = _words(table.title)
    if table.title == "distribution":
        return _section("How far apart", _distribution(rows))
    if table.title == "ranges":
        return _section("Input ranges of the products, by layer", _ranges(rows), _folded("Every range", _table(table)))
    chart = None
    if table.title == "speed":
        spread = tables.get("percentiles_ms")
        chart = _speed(rows, [dict(zip(spread.columns, row, strict=True)) for row in spread.rows] if spread else [])
    return _section(title, chart, _table(table))


def _distribution(rows: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Differences of each output by size, all kinds of padding together and then one by one."""
    drawn = []
    for output, own in itertools.groupby(rows, lambda row: row["output"]):
        listed = list(own)
        sizes = dict.fromkeys(row["up_to"] for row in sorted(listed, key=lambda row: row["place"]))
        drawn.append(tag("h3", output))
        counts = [(_up_to(size), sum(row["elements"] for row in listed if row["up_to"] == size)) for size in sizes]
        drawn.append(_scrolling(columns(counts, f"differences of {output}, by size"), f"chart of {output}"))
        kinds = dict.fromkeys(row["padding"] for row in listed)
        if len(kinds) > 1:
            cells = {(row["padding"], row["up_to"]): row["elements"] for row in listed}
            head = tag(
                "tr", tag("th", "padding", scope="col"), [tag("th", _up_to(size), scope="col") for size in sizes]
            )
            body = [tag("tr", tag("th", kind, scope="row"), [_cell(cells.get((kind, size), 0)) for size in sizes])
                    for kind in kinds]  # fmt: skip
            drawn.append(
                _scrolling(tag("table", tag("thead", head), tag("tbody", body)), f"differences of {output} by padding")
            )
    return drawn


_PRODUCTS = {
    "qkv": "query, key and value", "attention_out": "attention output", "ffn_in": "feed-forward, in",
    "ffn_out": "feed-forward, out",
}  # fmt: skip


def _ranges(rows: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Columns for each product."""
    drawn = []
    for product in dict.fromkeys(row["product"] for row in rows):
        name = _PRODUCTS.get(product, _words(product))
        chart = ranges([row for row in rows if row["product"] == product], f"ranges of {name}")
        drawn += [tag("h3", name), _scrolling(chart, f"chart of {name}")]
    return drawn


def _folded(title: str, inner: Markup) -> Markup:
    """What is shown to those who ask."""
    return tag("details", tag("summary", title), inner)


def _up_to(size: float | str) -> str:
    return "equal" if size == 0 else "more" if isinstance(size, str) else f"≤ {size:g}"


def _speed(rows: Sequence[Mapping[str, Any]], spread: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Bars of each setting: milliseconds, with the median and the 99th percentile as whiskers."""
    drawn = []
    spreads = {tuple(row[name] for name in _SETTING): row for row in spread}
    merged = [{**row, **spreads.get(tuple(row[name] for name in _SETTING), {})} for row in rows]
    for (size, threads), own in itertools.groupby(merged, lambda row: (row["size"], row["threads"])):
        listed = list(own)
        whiskers = ("p50", "p99") if all("p99" in row for row in listed) else None
        drawn.append(tag("h3", f"{size} on {threads} thread{'s' * (threads != 1)}: milliseconds, less is better"))
        drawn.append(bars(listed, "engine", "mean_ms", whiskers))
    return drawn


def _table(table: Table) -> Markup:
    if len(table.columns) > _WIDE:
        return join([_facts(dict(zip(table.columns, row, strict=True))) for row in table.rows])
    head = tag("tr", [tag("th", _words(name), scope="col") for name in table.columns])
    body = [tag("tr", [_cell(value) for value in row]) for row in table.rows]
    return _scrolling(tag("table", tag("thead", head), tag("tbody", body)), _words(table.title))


def _scrolling(inner: Markup, label: str) -> Markup:
    return tag("div", inner, class_="scrolling", tabindex="0", role="region", aria_label=label)


def _cell(value: Any) -> Markup:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    kind = "number" if number else "short" if len(text(value)) < 24 else None
    return tag("td", text(value), class_=kind, data_value=value if number else None)


def _facts(facts: Mapping[str, Any]) -> Markup:
    rows = [(name, value) for name, value in facts.items() if text(value)]
    return tag("dl", [(tag("dt", _words(name)), tag("dd", _size(name, value))) for name, value in rows])


def _size(name: str, value: Any) -> str:
    """A value as text; bytes in larger units."""
    if name.startswith("bytes") and isinstance(value, int) and value >= 1 << 20:
        return f"{value / (1 << 20):,.1f} MiB"
    return text(value)


def _section(title: str, *inner: Any) -> Markup:
    return tag("section", tag("h2", title), *inner)


def _words(name: str) -> str:
    return name.replace("_", " ")
