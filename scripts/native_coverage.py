"""What share of the lines of native/ the native tests run: the core is built to count lines, the tests are run, and
gcov's counts are added up. A line of a kernel, which is compiled once per instruction set, counts once.

    python scripts/native_coverage.py [--floor 85]

TensorFlow's ops and the Python module are left out: only their frameworks run them, in pytest."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "native-coverage"
TESTS = ("encoder", "tables", "cut", "batch", "ort")
_HOSTED = ("native/hosts/tf_", "native/hosts/bindings.cc")
Counts = dict[str, dict[int, int]]  # of each file, how often a line was run


def main() -> None:
    """Builds, runs and tells; ends with 1 below the floor."""
    parser = argparse.ArgumentParser(description="Tells which lines of native/ the native tests run.")
    parser.add_argument("--floor", type=float, default=85, help="In percent of all lines.")
    floor = parser.parse_args().floor
    build()
    for name in TESTS:
        subprocess.run([BUILD / f"{name}_test"], check=True, stdout=subprocess.DEVNULL)
    counts = counted(reports())
    for name in sorted(counts):
        sys.stdout.write(f"{share(counts[name].values()):6.1f} %  {name}\n")
    total = share(count for lines in counts.values() for count in lines.values())
    sys.stdout.write(f"{total:6.1f} %  of all lines\n")
    if total < floor:
        sys.exit(f"{floor:g} % are expected")


def build() -> None:
    """The core and its tests, afresh: old counts would be added."""
    tools = Path(sys.executable).parent
    options = ["-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS=--coverage -O1", "-DFUSEBERT_EMULATE_TILES=ON"]
    options += ["-DFUSEBERT_PYTHON=OFF", "-DFUSEBERT_TESTS=ON", f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}"]
    for path in BUILD.rglob("*.gcda"):
        path.unlink()
    quietly([tools / "cmake", "-S", ROOT, "-B", BUILD, "-G", "Ninja", *options])
    quietly([tools / "cmake", "--build", BUILD])


def quietly(command: list[Any]) -> None:
    """Runs a command, and shows what it told if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        sys.exit(ended.stdout[-6000:] + ended.stderr)


def reports() -> Iterator[dict[str, Any]]:
    """What gcov tells of every object that was linked; of one that was never run, too."""
    for notes in sorted(BUILD.rglob("*.gcno")):
        words = ["gcov", "--json-format", "--stdout", str(notes)]
        told = subprocess.run(words, capture_output=True, text=True, check=True, cwd=BUILD).stdout
        yield from map(json.loads, told.splitlines())


def counted(reports: Iterable[dict[str, Any]]) -> Counts:
    """The most that any object ran each line of native/."""
    counts: Counts = defaultdict(lambda: defaultdict(int))
    for report in reports:
        for file in report["files"]:
            path = (Path(report["current_working_directory"]) / file["file"]).resolve()
            name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT / "native") else ""
            if not name or name.startswith(_HOSTED):
                continue
            for line in file["lines"]:
                lines = counts[name]
                lines[line["line_number"]] = max(lines[line["line_number"]], line["count"])
    return counts


def share(counts: Iterable[int]) -> float:
    """How many of them are not 0, in percent."""
    every = list(counts)
    return 100 * sum(count > 0 for count in every) / max(len(every), 1)


if __name__ == "__main__":
    main()
