"""The errors that fusebert raises on purpose, one family: each message is a sentence that names the file or field."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST_WORD = 200  # characters; names in files may be anything
_LONGEST_MESSAGE = 4000


class FusebertError(Exception):
    """Something the user can mend; the message says what and how. What it repeats of a file is cut and escaped."""

    def __init__(self, message: str = "") -> None:
        super().__init__(_printable(message))


class DifferentError(FusebertError):
    """The optimised model answers differently than its precision allows; nothing was written."""


class UnsupportedError(FusebertError):
    """The input is well formed, but asks for something fusebert does not compute."""


def _printable(text: str) -> str:
    """A message as one line that may go to any terminal or log: nothing but printable characters, long words without
    their middles."""
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}…"
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return " ".join(w if len(w) <= _LONGEST_WORD else f"{w[:120]}…{w[-79:]}" for w in text.split(" "))


def unreadable(path: object, error: OSError) -> FusebertError:
    """The error for a file that the system does not give."""
    if isinstance(error, FileNotFoundError):
        return FusebertError(f"{path} does not exist")
    return FusebertError(f"{path} cannot be read: {error.strerror or error}")


def suggest(name: str, names: Iterable[str]) -> str:
    """Names that are similar to one that is missing, as the end of a sentence."""
    names = list(names)
    lower = {other.lower(): other for other in reversed(names)} if len(names) < 20_000 else {}
    found = [lower[other] for other in difflib.get_close_matches(name.lower(), lower, 3, 0.7)]
    last = name.rpartition("/")[2]
    found = found or [other for other in names if other.rpartition("/")[2] == last][:3]
    return f"; did you mean {' or '.join(found)}?" if found else ""


def unknown(what: str, name: object, names: Iterable[str]) -> FusebertError:
    """The error for a name that is none of those that there are."""
    names = list(names)
    there = f"use one of {', '.join(names)}" if names else "there is none"
    return FusebertError(f"{what} {name!r:.60} is unknown; {there}{suggest(str(name), names)}")
