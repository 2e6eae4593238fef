"""The errors that fusebert raises on purpose, one family: each message is a sentence that names the file or field.
Whatever else comes out of a public verb is a defect of ours and becomes an InternalError at its border."""

from __future__ import annotations

import difflib
import hashlib
import traceback
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")
_HOME = Path(__file__).parent

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


class InternalError(Exception):
    """A defect in fusebert, whatever it was given. `reference` is the same wherever and whenever the same defect is
    met; the cause has the traceback."""

    def __init__(self, error: BaseException) -> None:
        self.reference = _reference(error)
        super().__init__(
            _printable(
                f"this is a defect in fusebert, please report it with its reference {self.reference}, as SECURITY.md "
                f"says: {type(error).__name__}: {error} (FUSEBERT_TRACEBACK=1 shows where it happened)"
            )
        )
        self.__cause__ = error


def border(verb: Callable[_P, _T]) -> Callable[_P, _T]:
    """The same verb, out of which come answers, FusebertErrors, what the system says (OSError, MemoryError) and
    InternalErrors. Arguments that it does not take are a TypeError, as of any function."""

    @wraps(verb)
    def called(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return verb(*args, **kwargs)
        except (FusebertError, InternalError, OSError, MemoryError):
            raise
        except Exception as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is None:  # the call itself
                raise
            raise InternalError(error) from error

    return called


def _reference(error: BaseException) -> str:
    """A digest of the kind of an error and of our functions that it came through."""
    frames = (frame for frame in traceback.extract_tb(error.__traceback__) if _HOME in Path(frame.filename).parents)
    places = [f"{Path(frame.filename).relative_to(_HOME).as_posix()}:{frame.name}" for frame in frames]
    return hashlib.sha256("\n".join([type(error).__name__, *places]).encode()).hexdigest()[:8]


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
