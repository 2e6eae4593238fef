"""Report: what was found, changed or measured, as data. `show` renders it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fusebert.drawing import fragment


@dataclass(frozen=True)
class Table:
    """Rows under named columns; cells are strings or numbers. What is `detail` is in JSON and on pages, and would be
    too much for a terminal."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    detail: bool = False


@dataclass(frozen=True, repr=False)
class Report:
    """A title, single facts, tables, and sentences worth saying."""

    title: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        facts = [f"{name} {value}" for name, value in self.facts.items() if isinstance(value, (str, int, float))][:6]
        tables = [f"{table.title} ({len(table.rows)} rows)" for table in self.tables]
        shown = "; ".join(filter(None, (", ".join(facts), ", ".join(tables), " ".join(self.notes))))
        return f"<Report {self.title!r}: {shown:.300}>"

    def data(self) -> dict[str, Any]:
        """Everything as plain JSON values; a table becomes a list of objects."""
        return {
            "title": self.title,
            **self.facts,
            **{
                table.title: [dict(zip(table.columns, row, strict=True)) for row in table.rows] for table in self.tables
            },
            "notes": list(self.notes),
        }

    def _repr_html_(self) -> str:
        """What notebooks show."""
        return fragment(self)
