"""A program for tests/test_kills.py: runs one verb in children that are killed at random moments, and then once more to
its end; prints how many kills came before the end, and what was wrong after any of them.

Words: the verb, a folder to work in, how often, and the seed of the moments."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import fusebert
from fusebert.measure.calibrate import calibrate
from fusebert.recipes.replace import replace_pattern
from fusebert.verbs.inspect import inspect

VERB, HOME, KILLS, SEED = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
MODEL, TEXTS = HOME / "checkpoint", HOME / "texts.txt"


def optimize(out: Path) -> None:
    fusebert.optimize(MODEL, out, "int8", verify=False)


def save(out: Path) -> None:
    LOADED.save(out)


def replace(out: Path) -> None:
    replace_pattern(HOME / "model.pb", HOME / "recipe.pb", out)


def calibrated(out: Path) -> None:
    calibrate(MODEL, TEXTS, out, samples=4, threads=1)


def whole(out: Path) -> None:
    """Raises unless the whole answer is there."""
    {"optimize": inspect, "save": inspect, "replace": fusebert.read, "calibrate": lambda p: json.loads(p.read_text())}[
        VERB
    ](out)


def digest(folder: Path) -> str:
    """All that is in a folder, by name and content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return hashlib.sha256(b"".join(str(path).encode() + path.read_bytes() for path in files)).hexdigest()


def main() -> None:
    work: Callable[[Path], None] = {"optimize": optimize, "save": save, "replace": replace, "calibrate": calibrated}[
        VERB
    ]
    place = HOME / f"{VERB}-made"
    place.mkdir()
    out = place / {"optimize": "out", "save": "out", "replace": "out.pb", "calibrate": "factors.json"}[VERB]
    begun = time.perf_counter()
    work(out)
    usual = time.perf_counter() - begun
    sound, draw, unfinished, wrong = digest(MODEL), random.Random(SEED), 0, []
    for number in range(KILLS):
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            try:
                work(out)
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0.0, 1.2 * usual))
        os.kill(child, signal.SIGKILL)
        unfinished += os.waitpid(child, 0)[1] == signal.SIGKILL
        if out.exists():
            try:
                whole(out)
            except Exception as error:
                wrong.append(f"kill {number} left half of it: {error}")
        if digest(MODEL) != sound:
            wrong.append(f"kill {number} harmed the original")
    shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
    work(out)
    wrong += [f"{path.name} was left behind" for path in place.iterdir() if path != out]
    sys.stdout.write(json.dumps({"unfinished": unfinished, "wrong": wrong}))


LOADED = fusebert.load(MODEL, "int8", threads=1)
main()
