"""Shows a Report on the terminal, as tables or as JSON. The only file that prints."""

from __future__ import annotations

import json
import math
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from fusebert.drawing import MARK, page, text
from fusebert.formats import write
from fusebert.report import Report

_WIDEST = 8  # columns of a table; a row of more is shown as names and values


def show(report: Report, as_json: bool = False) -> None:
    """Prints a report to standard output."""
    show_text(_json(report.data()) if as_json else _draw(report))


def write_page(report: Report, path: Path | None) -> None:
    """Writes a report as a page, if a path is given; one that is there already is replaced."""
    if path is None:
        return
    from fusebert.verbs.machine import machine

    words = shlex.join(["fusebert", *sys.argv[1:]])
    with write.file(path, _is_page) as file:
        file.write(page(report, words, machine()).encode())


def _is_page(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(MARK)) == MARK.encode()


def show_text(text: str) -> None:
    """Prints a text as it is, to be copied or piped. Names in it may not be Unicode. Whoever reads it may stop reading,
    which ends this command as it ends others."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the very end
        raise SystemExit(128 + signal.SIGPIPE) from None


def show_line(value: Any) -> None:
    """Prints a value as JSON on one line."""
    show_text(json.dumps(_strict(value), ensure_ascii=False, allow_nan=False))


def _json(value: Any) -> str:
    """Strict JSON: what is no number there is null."""
    return json.dumps(_strict(value), indent=2, allow_nan=False)


def _strict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _strict(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _draw(report: Report) -> str:
    """Tables as wide as the terminal, in its colours."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # not markup: texts and paths may hold brackets

    console = Console()
    with console.capture() as drawn:
        console.print(Text(report.title, "bold"))
        if report.facts:
            console.print(_grid(report.facts), soft_wrap=True)
        for table in report.tables:
            if not table.rows or table.detail:
                continue
            if len(table.columns) > _WIDEST:
                for row in table.rows:
                    console.print(Text(table.title.replace("_", " "), "italic"))
                    console.print(_grid(dict(zip(table.columns, row, strict=True))), soft_wrap=True)
                continue
            shown = Table(title=table.title.replace("_", " "), title_justify="left")
            for column in table.columns:
                shown.add_column(column.replace("_", " "))
            for row in table.rows:
                shown.add_row(*(Text(text(cell)) for cell in row))
            console.print(shown)
        for note in report.notes:
            console.print(note, highlight=False, markup=False)
    return drawn.get()


def _grid(facts: Mapping[str, Any]) -> Any:
    """Names and values under each other; what is empty is left out. Lines stay whole, so that a name can be copied."""
    from rich.text import Text

    rows = [(name.replace("_", " "), shown) for name, value in facts.items() if (shown := text(value))]
    width = max((len(name) for name, _ in rows), default=0)
    return Text("\n".join(f"  {name:{width}}  {shown}" for name, shown in rows))


def show_status(sentence: str) -> None:
    """Prints a sentence to standard error, at once; that it cannot be written is no reason to end."""
    with suppress(OSError):
        begin = "\r\x1b[K" if sys.stderr.isatty() else ""  # a line about the load may stand there
        print(f"{begin}fusebert: {sentence}", file=sys.stderr, flush=True)


def load_line() -> Callable[[str], None] | None:
    """What shows a line that the next one replaces; None where standard error is no terminal."""
    if not sys.stderr.isatty():
        return None

    def show(line: str) -> None:
        with suppress(OSError):
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    return show


def show_error(message: str, as_json: bool = False) -> None:
    """Prints an error: a sentence on standard error, or a JSON object on standard output."""
    if as_json:
        show_text(_json({"error": message}))
        return
    from rich.console import Console

    Console(stderr=True, soft_wrap=True).print(f"error: {message}", style="red", highlight=False, markup=False)
