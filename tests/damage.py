"""Files damaged at random, for tests of everything that reads files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hypothesis import strategies as st


@contextmanager
def replaced(path: Path, data: bytes) -> Iterator[None]:
    """The file with other contents, for a while. A new file each time: the old one may still be mapped."""
    aside = path.with_suffix(".aside")
    path.rename(aside)
    path.write_bytes(data)
    try:
        yield
    finally:
        aside.replace(path)


def _position(size: int) -> st.SearchStrategy[int]:
    return st.integers(0, min(size, 400)) | st.integers(0, size)  # beginnings hold lengths and names


@st.composite
def damage(draw: st.DrawFn, data: bytes) -> bytes:
    """The data with one to three places flipped, cut off, inserted, taken out or overwritten."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(_position(len(data)))
        kind = draw(st.sampled_from(("flip", "cut", "insert", "remove", "fill")))
        if kind == "flip" and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        elif kind == "cut":
            data = data[:at]
        elif kind == "insert":
            data = data[:at] + draw(st.binary(min_size=1, max_size=8) | st.just(b"9" * 20)) + data[at:]
        elif kind == "remove":
            data = data[:at] + data[at + draw(st.integers(1, 16)) :]
        elif kind == "fill":
            count = min(draw(st.sampled_from((1, 2, 4, 8, 64))), len(data) - at)
            data = data[:at] + b"\xff" * count + data[at + count :]
    return data
