"""Write: files and folders that appear whole or not at all. Everything is made beside its place and then put there;
what is there already is replaced only if the caller says so, and only if it is of the kind that is written."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fusebert.errors import FusebertError

Kind = Callable[[Path], bool]
_OLD = ".replaced"


@contextmanager
def file(path: Path, replaces: Kind | None = None) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` at the end, or vanishes if anything goes wrong on the way.
    `replaces` tells of what is there already whether it may be replaced; without it nothing is. A link is followed."""
    path = path.resolve() if path.is_symlink() else path
    check(path, replaces)
    with beside(path) as folder:
        made = folder / path.name
        with made.open("xb") as opened:
            yield opened
        put({made: path}, replaces)


@contextmanager
def folder(path: Path, replaces: Kind | None = None) -> Iterator[Path]:
    """A folder to write into that becomes `path` at the end, or vanishes if anything goes wrong on the way."""
    check(path, replaces)
    with beside(path) as outer:
        made = outer / path.name
        made.mkdir()
        yield made
        put({made: path}, replaces)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """A folder beside `path` to make it in, gone at the end."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise FusebertError(f"{path} cannot be written: {error}") from None
    try:
        yield made
    except OSError as error:
        raise FusebertError(f"{path} cannot be written: {error}") from None
    finally:
        if not any(made.glob(f"*{_OLD}")):  # what could not be put back is all that is left of it
            shutil.rmtree(made, ignore_errors=True)


def check(path: Path, replaces: Kind | None = None) -> None:
    """Refuses a path where something is that may not be replaced. An empty file or folder may, if anything may."""
    if not os.path.lexists(path):
        return
    if replaces is None:
        raise FusebertError(f"{path} exists; choose another place or allow overwriting (--overwrite)")
    if not _is_empty(path) and not replaces(path):
        raise FusebertError(f"{path} holds something of another kind, which is never replaced; choose another place")


def put(places: Mapping[Path, Path], replaces: Kind | None = None) -> None:
    """Moves what was made (in a folder `beside`) to its places, in order; if a move fails, all are taken back."""
    for made in places:
        _settle(made)
    for path in places.values():
        check(path, replaces)
    done: list[tuple[Path, Path, Path | None]] = []
    try:
        for made, path in places.items():
            old = None if replaces is None else _set_aside(path, made.with_name(f"{made.name}{_OLD}"))
            try:
                _move(made, path, over=old is not None)
            except BaseException:  # an interrupt too
                _put_back(old, path)
                raise
            done.append((made, path, old))
    except BaseException:
        for made, path, old in reversed(done):
            path.rename(made)
            _put_back(old, path)
        raise
    for _, _, old in done:
        if old is not None and old.is_dir() and not old.is_symlink():
            shutil.rmtree(old, ignore_errors=True)
        elif old is not None:
            old.unlink()


def _set_aside(path: Path, old: Path) -> Path | None:
    """Keeps what is there under another name until what replaces it is in place: a file by a second link, so that there
    is always one, a folder by moving it. None if nothing is there."""
    if not os.path.lexists(path):
        return None
    if path.is_file() and not path.is_symlink():
        with suppress(OSError):  # of a file system without links
            os.link(path, old)
            return old
    return path.rename(old)


def _put_back(old: Path | None, path: Path) -> None:
    """Undoes _set_aside. If that fails, the old one stays where it is, and the error names that place."""
    if old is not None and old.is_dir():
        old.rename(path)
    elif old is not None:
        old.replace(path)
        old.unlink(missing_ok=True)  # renaming one link of a file to another leaves both


def _move(made: Path, path: Path, over: bool) -> None:
    """Moves a file or folder to a place without replacing what appeared there meanwhile, unless it goes `over` a file
    that is kept. Renaming a folder fails where there is a file, or a folder with something in it. Renaming a file would
    replace another one, so it is linked, which does not; where there are no links, its name is claimed first."""
    if made.is_dir() or over:
        made.rename(path)
        return
    try:
        os.link(made, path)
    except FileExistsError:
        raise
    except OSError:
        path.open("xb").close()
        made.rename(path)
    else:
        made.unlink()


def _settle(made: Path) -> None:
    """Brings files to the disk before they get their names, with the usual permissions, whatever library wrote them."""
    for one in filter(Path.is_file, made.rglob("*") if made.is_dir() else (made,)):
        if one.stat().st_nlink > 1:  # a link to somebody else's file
            continue
        one.chmod(0o666 & ~_umask())
        with one.open("rb") as opened:
            os.fsync(opened.fileno())


def _is_empty(path: Path) -> bool:
    if path.is_symlink():
        return False
    return not any(path.iterdir()) if path.is_dir() else path.is_file() and not path.stat().st_size


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
