"""Shows a Report on the terminal, as tables or as JSON. The only file that prints."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from fusebert.report import Report

_WIDEST = 8  # columns of a table; a row of more is shown as names and values


def show(report: Report, as_json: bool = False) -> None:
    """Prints a report to standard output."""
    if as_json:
        print(json.dumps(report.data(), indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # not markup: texts and paths may hold brackets

    console = Console()
    console.print(Text(report.title, "bold"))
    if report.facts:
        console.print(_grid(report.facts))
    for table in report.tables:
        if len(table.columns) > _WIDEST:
            for row in table.rows:
                console.print(Text(table.title.replace("_", " "), "italic"))
                console.print(_grid(dict(zip(table.columns, row, strict=True))))
            continue
        if not table.rows:
            continue
        drawn = Table(title=table.title.replace("_", " "), title_justify="left")
        for column in table.columns:
            drawn.add_column(column.replace("_", " "))
        for row in table.rows:
            drawn.add_row(*(Text(text(cell)) for cell in row))
        console.print(drawn)
    for note in report.notes:
        console.print(note, highlight=False, markup=False)


def _grid(facts: Mapping[str, Any]) -> Any:
    """Names and values under each other; what is empty is left out."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if shown := text(value):
            grid.add_row(f"  {name.replace('_', ' ')}", Text(shown))
    return grid


def show_text(text: str) -> None:
    """Prints a text as it is, to be copied or piped."""
    print(text, end="" if text.endswith("\n") else "\n")


def show_status(sentence: str) -> None:
    """Prints a sentence about what happens to standard error, at once."""
    print(f"fusebert: {sentence}", file=sys.stderr, flush=True)


def show_error(message: str, as_json: bool = False) -> None:
    """Prints an error: a sentence on standard error, or a JSON object on standard output."""
    if as_json:
        print(json.dumps({"error": message}, indent=2))
        return
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(f"error: {message}", style="red", highlight=False, markup=False)


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
