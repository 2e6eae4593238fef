"""The ceiling of this machine: Gop/s of multiply-adds in each precision, GB/s of memory. kernels/ceiling.h says how.

It is compiled into build/ when it is asked for, and measured in turns with those that it is a ceiling of."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

KINDS = ("fp32", "bf16", "int8", "memory")
SOURCE = Path(__file__).parent / "kernels" / "ceiling.cc"
LIBRARY = Path(__file__).parents[1] / "build" / "ceiling.so"


class Ceiling:
    """The ceiling on so many threads; `reached` is the best that calls have seen, in giga-operations a second."""

    def __init__(self, threads: int) -> None:
        self._native, self._threads = _native(), threads
        self.reached = dict.fromkeys(KINDS, 0.0)

    def calls(self) -> dict[str, Callable[[], None]]:
        """Calls to take turns with others."""
        return {f"ceiling {kind}": partial(self._measure, i) for i, kind in enumerate(KINDS)}

    def how(self) -> dict[str, str]:
        """What each kind does."""
        return {kind: self._native.ceiling_how(i).decode() for i, kind in enumerate(KINDS)}

    def _measure(self, kind: int) -> None:
        measured = self._native.ceiling_measure(kind, self._threads) / 1e9
        self.reached[KINDS[kind]] = max(self.reached[KINDS[kind]], measured)


@cache
def _native() -> ctypes.CDLL:
    LIBRARY.parent.mkdir(exist_ok=True)
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O3", "-march=native", "-Wno-psabi", "-shared", "-fPIC"]
    subprocess.run([*command, str(SOURCE), "-o", str(LIBRARY), "-pthread"], check=True)
    native = ctypes.CDLL(str(LIBRARY))
    native.ceiling_measure.restype = ctypes.c_double
    native.ceiling_how.restype = ctypes.c_char_p
    return native
