"""Parts: answers to the rows of a large data set, written part by part so that work that was killed goes on where it
was. A manifest tells what the parts are of; each part is whole or absent. In a folder they stay Parquet files; else
they are put together at the end, to one .npy or .jsonl file."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats import write
from fusebert.formats.files import read_json
from fusebert.ops.graph import Array

MANIFEST = "_manifest.json"
REJECTED = "_rejected.jsonl"
_PARTS = "_parts"  # what is gone when all is done: parts of one file, and what was rejected of each part


@dataclass(frozen=True)
class Part:
    """The answers to consecutive rows: their numbers, kept columns and one array or list for each column of answers;
    `rows` counts all, also those in `rejected`, each with its number and the reason."""

    number: int
    rows: int
    numbers: Sequence[int]
    kept: Mapping[str, Sequence[Any]]
    answers: Mapping[str, Array | Sequence[Any]]
    rejected: Sequence[Mapping[str, Any]] = field(default_factory=tuple)


class Output:
    """A place for parts: a folder, or one file whose parts are in a folder beside it until all are there."""

    def __init__(self, out: Path) -> None:
        suffix = out.suffix.lower()
        if suffix in (".parquet", ".csv"):
            raise FusebertError(f"{out}: give a folder for Parquet parts, or a file that ends in .npy or .jsonl")
        self.out, self.suffix = out, suffix if suffix in (".npy", ".jsonl") else ".parquet"
        self.single = self.suffix != ".parquet"
        self.folder = out.with_name(f".{out.name}.parts") if self.single else out

    @contextmanager
    def opened(self, manifest: Mapping[str, Any], overwrite: bool) -> Iterator[set[int] | None]:
        """Claims the place for as long as the work lasts. Yields the numbers of the parts that are there already, if
        the same work was begun before, or None if it was completed; other work is replaced only with `overwrite`."""
        if self.single and not (self.folder / MANIFEST).is_file():
            for path in (self.out, self.rejected):
                write.check(path, self._is_ours if overwrite else None)
        with _told(self.out):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder, os.O_RDONLY)
            try:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise FusebertError(f"{self.out} is being written by another process; wait for it") from None
                yield self._resumed(dict(manifest), overwrite)
            finally:
                os.close(lock)

    def add(self, part: Part) -> None:
        """Writes one part, whole or not at all, after what was rejected of it: a part that is there is complete."""
        _write(self._rejected(part.number), _lines(part.rejected))
        with _written(self._part(part.number)) as file:
            _WRITERS[self.suffix](file, part)

    def add_rendered(self, number: int, rejected: bytes, content: bytes) -> None:
        """Writes one part that `render` made elsewhere."""
        _write(self._rejected(number), rejected)
        _write(self._part(number), content)

    def finish(self, manifest: Mapping[str, Any], parts: int, rows: int) -> dict[str, Any]:
        """Puts everything together; the manifest with what was done."""
        rejected = [self._rejected(number) for number in range(parts)]
        count = sum(path.read_bytes().count(b"\n") for path in rejected)
        done = {**manifest, "complete": True, "parts": parts, "rows": rows, "rejected": count}
        _join(self.rejected, rejected)
        if self.single:
            _JOINERS[self.suffix](self.out, [self._part(number) for number in range(parts)])
        _write(self.folder / MANIFEST, _text(done))
        shutil.rmtree(self.folder if self.single else self.folder / _PARTS)
        return done

    @property
    def rejected(self) -> Path:
        """The file that tells which rows could not be used."""
        return self.out.with_suffix(".rejected.jsonl") if self.single else self.folder / REJECTED

    @property
    def stored(self) -> dict[str, Any]:
        """The manifest as it is on disk."""
        return read_json(self.folder / MANIFEST)

    def _resumed(self, manifest: dict[str, Any], overwrite: bool) -> set[int] | None:
        place = self.folder / MANIFEST
        there = [path.name for path in self.folder.iterdir()]
        if not place.is_file() and not all(name == f".{MANIFEST}" for name in there):
            raise FusebertError(f"{self.folder} holds something of another kind, which is never replaced")
        if place.is_file():
            begun = read_json(place)
            differences = _differences(begun, manifest)
            if differences and not overwrite:
                raise FusebertError(
                    f"{self.out} was begun with other work: {differences}; use --overwrite or another OUT"
                )
            if begun.get("complete") and not overwrite:
                shutil.rmtree(self.folder / _PARTS, ignore_errors=True)
                return None
            if differences or begun.get("complete") or manifest["input"][0]["digest"] is None:
                self._clear()  # standard input cannot be read from where it was
        for litter in (*self.folder.glob(".part-*.parquet"), *self.folder.glob("._*.json*")):  # as _written names them
            litter.unlink()
        if not place.is_file():
            _write(place, _text(manifest))
        (self.folder / _PARTS).mkdir(exist_ok=True)
        names = (path.name.removeprefix("part-").removesuffix(self.suffix) for path in self._part(0).parent.iterdir())
        return {int(name) for name in names if name.isdigit()}

    def _clear(self) -> None:
        for path in (*self.folder.glob("part-*.parquet"), self.folder / REJECTED, self.folder / MANIFEST):
            path.unlink(missing_ok=True)
        shutil.rmtree(self.folder / _PARTS, ignore_errors=True)

    def _part(self, number: int) -> Path:
        folder = self.folder / _PARTS if self.single else self.folder
        return folder / f"part-{number:06d}{self.suffix}"

    def _rejected(self, number: int) -> Path:
        return self.folder / _PARTS / f"{number:06d}.rejected"

    def _is_ours(self, path: Path) -> bool:
        return path.is_file() and path.suffix.lower() in (self.suffix, self.rejected.suffix)


def render(part: Part, suffix: str) -> tuple[bytes, bytes]:
    """The bytes of a part: what was rejected of it, and its answers in the format of an Output with that suffix."""
    file = io.BytesIO()
    _WRITERS[suffix](file, part)
    return _lines(part.rejected), file.getvalue()


def _lines(rejected: Sequence[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, default=str) + "\n" for row in rejected).encode()


def _differences(begun: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What differs between the manifests of two works, by name."""
    names = [name for name in now if begun.get(name) != now[name]]
    return "; ".join(f"{name} was {_brief(begun.get(name))}, now {_brief(now[name])}" for name in names)


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _text(manifest: Mapping[str, Any]) -> bytes:
    return (json.dumps(manifest, indent=1) + "\n").encode()


@contextmanager
def _told(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FusebertError(
            f"{out} cannot be written: {error}; what is done is kept, and the same command goes on with it"
        ) from None


@contextmanager
def _written(path: Path) -> Iterator[BinaryIO]:
    """A file that appears whole; one of that name is replaced."""
    made = path.with_name(f".{path.name}")
    try:
        with made.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise


def _write(path: Path, content: bytes) -> None:
    with _written(path) as file:
        file.write(content)


def _join(out: Path, files: Sequence[Path], head: bytes = b"") -> None:
    with _written(out) as joined:
        joined.write(head)
        for path in files:
            with path.open("rb") as part:
                shutil.copyfileobj(part, joined, 1 << 20)


def _write_parquet(file: BinaryIO, part: Part) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    columns: dict[str, Any] = {"row": pa.array(part.numbers, pa.int64())}
    columns |= {name: _kept(pa, values) for name, values in part.kept.items()}
    columns |= {name: _answers(pa, values) for name, values in part.answers.items()}
    parquet.write_table(pa.table(columns), file, compression="zstd")


def _kept(pa: Any, values: Sequence[Any]) -> Any:
    """Strings, and whatever else a file holds as JSON, so that every part has the same types."""
    return pa.array([v if v is None or isinstance(v, str) else json.dumps(v, default=str) for v in values], pa.string())


def _answers(pa: Any, values: Array | Sequence[Any]) -> Any:
    if not isinstance(values, np.ndarray):
        if values and isinstance(values[0], np.ndarray):  # rows of tokens
            lengths = np.cumsum([0, *map(len, values)])
            return pa.ListArray.from_arrays(pa.array(lengths, pa.int32()), _answers(pa, np.concatenate(values)))
        return pa.array(values)
    if values.ndim == 1:
        return pa.array(values)
    return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(values).reshape(-1)), values.shape[1])


def _write_npy(file: BinaryIO, part: Part) -> None:
    """All rows of the part, those that were rejected as NaN, or zero where there is no NaN."""
    values = np.asarray(next(iter(part.answers.values())))
    missing = np.nan if values.dtype.kind == "f" else 0
    whole = np.full((part.rows, *values.shape[1:]), missing, values.dtype)
    first = min((*part.numbers, *(row["row"] for row in part.rejected)), default=0)
    whole[np.asarray(part.numbers, np.int64) - first] = values
    np.lib.format.write_array(file, whole)


def _write_jsonl(file: BinaryIO, part: Part) -> None:
    for i, number in enumerate(part.numbers):
        row = {"row": number, **{name: values[i] for name, values in part.kept.items()}}
        row |= {name: _plain(values[i]) for name, values in part.answers.items()}
        file.write(json.dumps(row, default=str).encode() + b"\n")


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _join_npy(out: Path, parts: Sequence[Path]) -> None:
    """The parts' numbers one after the other, behind one header."""
    arrays = [np.load(path, mmap_mode="r", allow_pickle=False) for path in parts]
    with _written(out) as joined:
        first = arrays[0] if arrays else np.zeros((0, 0), np.float32)
        shape = (sum(map(len, arrays)), *first.shape[1:])
        head = {"descr": np.lib.format.dtype_to_descr(first.dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(joined, head)
        for array in arrays:
            joined.write(np.ascontiguousarray(array).data)


_WRITERS = {".parquet": _write_parquet, ".npy": _write_npy, ".jsonl": _write_jsonl}
_JOINERS: dict[str, Callable[[Path, Sequence[Path]], None]] = {".npy": _join_npy, ".jsonl": _join}
