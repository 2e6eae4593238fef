"""Tables in text files: characters -> rows of cells. A file's name tells the separator: a comma, and quotes, in .csv; a
tab, and no quotes, elsewhere. Where that finds no columns, `hint` tells what the file looks like."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from fusebert.errors import FusebertError

_LONGEST_CELL = 64 << 20


def is_csv(path: Path) -> bool:
    """Whether commas separate the cells of this file, whatever compresses it."""
    return ".csv" in (suffix.lower() for suffix in path.suffixes[-2:])


def read_cells(path: Path, text: TextIO) -> Iterator[tuple[int, list[str]]]:
    """The number of a row's last line, and its cells, of every line that is not empty. `text` keeps line ends."""
    csv.field_size_limit(_LONGEST_CELL)
    reader = csv.reader(text) if is_csv(path) else csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    try:
        for cells in reader:
            if cells:
                yield reader.line_num, cells
    except csv.Error as error:
        raise FusebertError(f"{path}, line {reader.line_num}: {error}; mend that line") from None


def hint(path: Path, cells: Sequence[str]) -> str:
    """What to do where a row has too few cells, or a header not the right ones: the separator may be another."""
    if len(cells) != 1:
        return ""
    if is_csv(path):
        return "; it has tabs where commas are expected: call it .tsv" if "\t" in cells[0] else ""
    return "; commas separate columns only in a file that is called .csv" if "," in cells[0] else ""
