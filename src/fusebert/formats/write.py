"""Write: files and folders that appear whole or not at all. Everything is made in a hidden folder beside its place and
then put there; what is there already is replaced only if the caller says so, and only if it is of the kind that is
written. What a killed process left is tidied up by the next one that writes in that folder."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from fusebert.errors import FusebertError

Kind = Callable[[Path], bool]
_WORK = ".fusebert-"  # begins the names of folders in which something is made
_OLD = ".replaced"
_NO_REPLACE, _EXCHANGE = 1, 2  # renameat2's flags
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # of a kernel or a file system without renameat2


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
    """A folder beside `path` to make it in, gone at the end; locked meanwhile, so that nobody tidies it up."""
    with _naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        _tidy(path.parent)
        made, lock = _locked_folder(path.parent)
        try:
            yield made
        finally:
            if not any(made.glob(f"*{_OLD}")):  # what could not be put back is all that is left of it
                shutil.rmtree(made, ignore_errors=True)
            os.close(lock)


class _CannotWriteError(FusebertError):
    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path} cannot be written: {error}")
        self.error = error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of the file system named by the place that the caller knows, whatever is written on the way."""
    try:
        yield
    except OSError as error:
        raise _CannotWriteError(path, error) from None
    except _CannotWriteError as inner:
        raise _CannotWriteError(path, inner.error) from None


def check(path: Path, replaces: Kind | None = None) -> None:
    """Refuses a path where something is that may not be replaced. An empty file or folder may, if anything may. A name
    that is not UTF-8 is refused too: frameworks and their libraries cannot open it."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise FusebertError(
            f"{str(path)!r} is not UTF-8, so most programs could not open it; choose another name"
        ) from None
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
            old = made.with_name(f"{made.name}{_OLD}") if replaces and os.path.lexists(path) else None
            _move(made, path) if old is None else _swap(made, path, old)
            done.append((made, path, old))
    except BaseException:  # an interrupt too
        for made, path, old in reversed(done):
            path.rename(made) if old is None else _swap(old, path, made)
        raise
    for _, _, old in done:
        if old is not None:
            _remove(old)


def _swap(made: Path, path: Path, old: Path) -> None:
    """Puts what was made in the place of what is there, which is then `old`. Where the file system can exchange them,
    there is one at `path` at any moment; elsewhere there is none for a moment, and whoever finds it so puts `old`
    back."""
    try:
        _rename(made, path, _EXCHANGE)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        path.rename(old)
        try:
            made.rename(path)
        except BaseException:
            old.rename(path)
            raise
    else:
        made.rename(old)


def _move(made: Path, path: Path) -> None:
    """Moves a file or folder to a place, without replacing what appeared there meanwhile. Where the file system cannot
    promise that, a file is linked or its name claimed first; renaming a folder fails where there is something."""
    try:
        _rename(made, path, _NO_REPLACE)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        if not made.is_dir():
            path.open("xb").close()
        made.rename(path)


def _rename(source: Path, target: Path, flags: int) -> None:
    """Linux's renameat2."""
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # of an old C library
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    here = -100  # paths are relative to the working folder
    if call(here, os.fsencode(source), here, os.fsencode(target), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(source), None, str(target))


def _locked_folder(parent: Path) -> tuple[Path, int]:
    """A new folder, and the descriptor that holds its lock."""
    while True:
        made = Path(tempfile.mkdtemp(prefix=_WORK, dir=parent))
        try:
            lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # it was tidied up before it was locked
            continue
        with suppress(OSError):  # of a file system without locks, where nobody can tell that it is abandoned either
            fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock).st_nlink:
            return made, lock
        os.close(lock)


def _tidy(parent: Path) -> None:
    """Removes the folders of killed processes, and puts back what they had set aside but not yet replaced. One of which
    only some files had been put in place stays as it is, because they belong together."""
    for left in parent.glob(f"{_WORK}*"):
        with suppress(OSError):
            lock = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(lock).st_uid == os.getuid():
                    _clear(left)
            finally:
                os.close(lock)


def _clear(left: Path) -> None:
    for old in left.glob(f"*{_OLD}"):
        path = left.parent / old.name.removesuffix(_OLD)
        if not os.path.lexists(path):
            _move(old, path)
    inside = [one.name.endswith(_OLD) for one in left.iterdir()]
    if all(inside) or not any(inside):
        shutil.rmtree(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()


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
