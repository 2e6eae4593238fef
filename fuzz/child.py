"""Child: the process that runs a target's cases, with memory and time limited. A case is its number: the same number is
the same case. The number stands in a file before the case is run, so that whatever ends this process is known."""

from __future__ import annotations

import faulthandler
import json
import mmap
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fuzz.mutate import Mutator
from fuzz.targets import TARGETS, Attack, Target

MEMORY = 4 << 30
SECONDS = 10  # of processor time for a case
_LONGEST = 4300  # characters of an error; longest message and what is around it
_BY_NAME = {target.name: target for target in TARGETS}


class Cases:
    """A target's cases in a folder of its own, with everything of the seeds that it uses."""

    def __init__(self, target: Target, seeds: Path, home: Path) -> None:
        self._target, self._home = target, home
        for top in {attack.used.partition("/")[0] for attack in target.attacks}:
            shutil.copytree(seeds / top, home / top)
        self._sound = {attack.file: (home / attack.file).read_bytes() for attack in target.attacks}
        self._mutator = cache(self._made)

    def _made(self, attack: Attack, kind: int) -> Mutator:
        return attack.kinds[kind](self._sound[attack.file])

    def make(self, number: int) -> tuple[Attack, bytes]:
        """The file that a case replaces, and its bytes."""
        random = Random(f"{self._target.name} {number}")
        attack = random.choice(self._target.attacks)
        return attack, self._mutator(attack, random.randrange(len(attack.kinds)))(random)

    def attack_on(self, name: str) -> Attack:
        """The first attack on a file of that name."""
        return next(attack for attack in self._target.attacks if Path(attack.file).name == name)

    def check_sound(self) -> None:
        """Uses every seed as it is: what is refused already would be no attack."""
        for attack in self._target.attacks:
            self.run(attack, self._sound[attack.file])

    def run(self, attack: Attack, data: bytes) -> None:
        """Uses the seeds with that file instead of the sound one. A new file each time: the old one may be mapped."""
        file = self._home / attack.file
        file.unlink()
        file.write_bytes(data)
        try:
            self._target.use(self._home / attack.used)
        finally:
            file.unlink()
            file.write_bytes(self._sound[attack.file])

    def fault(self, attack: Attack, data: bytes) -> dict[str, str]:
        """What is wrong about what becomes of a file; empty if nothing is."""
        try:
            self.run(attack, data)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            return _fault(error)
        return {}


def _fault(error: BaseException) -> dict[str, str]:
    """What is wrong about an error that a case raised, and where; empty if it is as it should be."""
    if isinstance(error, FusebertError):
        told = str(error)
        if told and len(told) < _LONGEST and told.isprintable():
            return {}
        return {"kind": "message", "where": _where(error), "message": told[:300]}
    cause = error.__cause__ or error
    return {"kind": type(cause).__name__, "where": _where(cause), "message": str(cause)[:300]}


def _where(error: BaseException) -> str:
    """The innermost function of ours that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "fusebert" in frame.filename.split("/")] or frames
    return " < ".join(f"{'/'.join(f.filename.split('/')[-2:])}:{f.lineno} {f.name}" for f in reversed(own[-2:]))


def limit() -> None:
    """Limits this process as a case may at most need."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    faulthandler.register(signal.SIGPROF, chain=True)
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")


def main(name: str, seeds: str, first: str, seconds: str, most: str, status: str) -> None:
    """Runs cases until time or number is used up; findings go out as lines of JSON, each kind once."""
    target, begun, known = _BY_NAME[name], time.monotonic(), set()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as home:
        cases = Cases(target, Path(seeds), Path(home))
        limit()
        with Path(status).open("r+b") as file, mmap.mmap(file.fileno(), 8) as current:
            for number in range(int(first), int(first) + int(most)):
                current[:] = number.to_bytes(8, "little")
                if time.monotonic() - begun > float(seconds):
                    break
                if found := _judged(cases, number):
                    key = found["kind"], found["where"]
                    if key not in known:
                        known.add(key)
                        _tell({**found, "case": number})
            else:
                current[:] = (int(first) + int(most)).to_bytes(8, "little")


def _judged(cases: Cases, number: int) -> dict[str, str]:
    attack, data = cases.make(number)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        found = cases.fault(attack, data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return found and {**found, "file": attack.file}


def _tell(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
