"""Dataset: files of texts, however large -> their rows, one after the other. Parquet, JSON lines, CSV, TSV and plain
text, also compressed (.gz, .zst); a folder or a glob of them is read in the order of names. A row that is not what it
should be comes with the reason."""

from __future__ import annotations

import glob
import hashlib
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from fusebert.errors import FusebertError, unreadable
from fusebert.formats.table import hint, read_cells
from fusebert.values import limits

STDIN = Path("-")
_FORMATS = (".parquet", ".jsonl", ".ndjson", ".csv", ".tsv", ".txt")
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Row:
    """One row: its number in the whole data set, the texts of the columns that were asked for, those that are kept, and
    why it cannot be used, if so."""

    number: int
    texts: tuple[str, ...]
    kept: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


def list_files(given: str | Path) -> list[Path]:
    """The files that a path, a folder or a glob names, in the order of their names; `-` is standard input."""
    path = Path(given)
    if path == STDIN or path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(one for one in path.iterdir() if one.is_file() and _kind(one)[0] and one.name[0] not in "._")
        what = f"{path} has no file that ends in {', '.join(_FORMATS)}"
    else:
        found = sorted(Path(one) for one in glob.iglob(str(given), recursive=True) if Path(one).is_file())  # noqa: PTH207
        what = f"{given} does not exist"
    if not found:
        raise FusebertError(f"{what}; give a file, a folder or a glob")
    return found


def fingerprint(path: Path) -> dict[str, Any]:
    """What tells a file from another: its name, its size and a digest of its bytes."""
    digest, size = hashlib.blake2b(digest_size=16), 0
    if path == STDIN:
        return {"name": "-", "bytes": None, "digest": None}
    with _opened(path) as file:
        while block := file.read(_CHUNK):
            digest.update(block)
            size += len(block)
    return {"name": path.name, "bytes": size, "digest": digest.hexdigest()}


def count_rows(files: Sequence[Path]) -> int | None:
    """About how many rows there are, or None if only reading them all would tell."""
    total = 0
    for path in files:
        suffix, compression = _kind(path)
        if path == STDIN or compression:
            return None
        if suffix == ".parquet":
            with suppress(OSError, ValueError):  # reading it will tell
                total += _arrow("parquet").read_metadata(path).num_rows
            continue
        with _opened(path) as file:
            while block := file.read(_CHUNK):
                total += block.count(b"\n")
    return total


def is_plain(path: Path) -> bool:
    """Whether every line of a file is a text, so that it has no columns."""
    return _kind(path)[0] in ("", ".txt")


def read_rows(
    files: Sequence[Path], columns: Sequence[str], keep: Sequence[str] = (), stdin: str = ".txt"
) -> Iterator[Row]:
    """The rows of all files, numbered from 0 on. Plain text has one column, `text`; `stdin` is the suffix that tells
    the format of standard input."""
    number = 0
    for path in files:
        suffix, compression = (stdin, "") if path == STDIN else _kind(path)
        for values, reason in _READERS.get(suffix, _read_lines)(path, compression, (*columns, *keep)):
            yield _row(number, values, reason, columns, keep)
            number += 1


def _row(number: int, values: Mapping[str, Any], reason: str, columns: Sequence[str], keep: Sequence[str]) -> Row:
    kept = {name: values.get(name) for name in keep}
    texts = [values.get(name) for name in columns]
    for name, text in zip(columns, texts, strict=True):
        reason = reason or _fault(name, text)
    return Row(number, () if reason else tuple(map(str, texts)), kept, reason)


def _fault(name: str, text: Any) -> str:
    if text is None:
        return f"{name} is null"
    if not isinstance(text, str):
        return f"{name} is not a string but a {type(text).__name__}"
    try:
        text.encode()
    except UnicodeEncodeError:  # a byte that did not decode, or half of a surrogate pair
        return f"{name} is not valid UTF-8"
    return ""


Values = Iterator[tuple[Mapping[str, Any], str]]


def _read_lines(path: Path, compression: str, columns: Sequence[str]) -> Values:
    if tuple(columns) != ("text",):
        raise FusebertError(f"{path} is plain text, which has the column text only; omit the names of columns")
    for line, reason in _lines(path, compression):
        yield {"text": line}, reason


def _read_json_lines(path: Path, compression: str, columns: Sequence[str]) -> Values:  # noqa: ARG001
    for line, reason in _lines(path, compression):
        if not reason and not line.strip():
            continue
        try:
            value = json.loads(line) if not reason else {}
        except (ValueError, RecursionError):
            value, reason = {}, "the line is not JSON"
        if not isinstance(value, dict):
            value, reason = {}, "the line is not a JSON object"
        yield value, reason


def _read_table(path: Path, compression: str, columns: Sequence[str]) -> Values:
    with io.TextIOWrapper(_opened(path, compression), "utf-8-sig", "surrogateescape", newline="") as text:
        rows = read_cells(path, text)
        _, header = next(rows, (0, []))
        _check_columns(path, columns, header)
        for _, cells in rows:
            reason = "" if len(cells) == len(header) else f"the row has {len(cells)} cells, not {len(header)}"
            yield dict(zip(header, cells, strict=False)), reason


def _read_parquet(path: Path, compression: str, columns: Sequence[str]) -> Values:  # noqa: ARG001
    parquet = _arrow("parquet")
    try:
        with parquet.ParquetFile(path) as file:
            _check_columns(path, columns, file.schema_arrow.names)
            for batch in file.iter_batches(1024, columns=list(dict.fromkeys(columns))):
                cells = [_cells(column) for column in batch.columns]
                for row in zip(*cells, strict=True):
                    yield dict(zip(batch.schema.names, row, strict=True)), ""
    except (OSError, ValueError) as error:  # Arrow's own errors are of these
        raise FusebertError(f"{path} is not a readable Parquet file: {error}") from None


def _cells(column: Any) -> list[Any]:
    """A column's values; strings byte by byte, since a file may say that they are UTF-8 where they are not."""
    if str(column.type) not in ("string", "large_string", "string_view"):
        return list(column.to_pylist())
    values = column.cast("large_binary").to_pylist()
    return [None if value is None else value.decode("utf-8", "surrogateescape") for value in values]


_READERS = {
    ".parquet": _read_parquet,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".csv": _read_table,
    ".tsv": _read_table,
}


def _check_columns(path: Path, wanted: Sequence[str], there: Sequence[str]) -> None:
    for name in wanted:
        if name not in there:
            have = ", ".join(f"{one!r:.40}" for one in there[:20]) or "none"
            raise FusebertError(f"{path} has no column {name!r}; its columns are {have}{hint(path, there)}")


def _lines(path: Path, compression: str) -> Iterator[tuple[str, str]]:
    """The lines of a file without their ends; one that is too long is passed over, and that is said."""
    with _opened(path, compression) as file:
        while line := file.readline(limits.LINE_BYTES):
            too_long = len(line) == limits.LINE_BYTES and not line.endswith(b"\n")
            while too_long and (rest := file.readline(limits.LINE_BYTES)) and not rest.endswith(b"\n"):
                pass
            if too_long:
                yield "", f"the line is longer than {limits.LINE_BYTES >> 20} MB"
            else:
                yield line.rstrip(b"\r\n").decode("utf-8", "surrogateescape"), ""


def _opened(path: Path, compression: str = "") -> IO[bytes]:
    if path == STDIN:
        return sys.stdin.buffer
    try:
        raw = path.open("rb")
    except OSError as error:
        raise unreadable(path, error) from None
    if not compression:
        return raw
    return io.BufferedReader(_Decompressed(path, raw, compression), _CHUNK)


class _Decompressed(io.RawIOBase):
    """A compressed file's bytes, with an error that names the file."""

    def __init__(self, path: Path, raw: IO[bytes], compression: str) -> None:
        super().__init__()
        self._path, self._raw = path, raw
        self._stream = _arrow("lib").CompressedInputStream(raw, compression)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            block = self._stream.read(len(buffer))
        except (OSError, ValueError) as error:
            raise FusebertError(f"{self._path} is damaged: {error}") from None
        buffer[: len(block)] = block
        return len(block)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _kind(path: Path) -> tuple[str, str]:
    """The suffix that tells the format, empty if there is none, and how the file is compressed."""
    compression = _COMPRESSED.get(path.suffix.lower(), "")
    suffix = (Path(path.stem) if compression else path).suffix.lower()
    return (suffix if suffix in _FORMATS else ""), compression


def _arrow(module: str) -> Any:
    try:
        from importlib import import_module

        return import_module(f"pyarrow.{module}")
    except ImportError:
        raise FusebertError("Parquet and compressed files need pyarrow: pip install 'fusebert[embed]'") from None
