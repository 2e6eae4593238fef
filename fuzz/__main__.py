"""`python -m fuzz`: every target in processes of its own for so many seconds; a table of what was tried and found, and
the files of every finding in build/fuzz/findings. Ends with 1 if anything was found."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fuzz import seeds
from fuzz.child import Cases
from fuzz.shrink import shrink
from fuzz.targets import TARGETS, Target

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "fuzz"
_STARTING = 300  # seconds that a process may take beyond its time: starting, and a last case, on a busy machine
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TF_CPP_MIN_LOG_LEVEL": "3",
    "PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "2",
}  # fmt: skip


@dataclass
class Result:
    """What became of a target's cases."""

    target: Target
    cases: int = 0
    seconds: float = 0.0
    findings: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, found: dict[str, Any]) -> None:
        """Notes a finding, unless one like it is there."""
        self.findings.setdefault((found["kind"], found["where"]), found)


def attack(target: Target, first: int, seconds: float, most: int) -> Result:
    """Runs a target; a process that ends is a finding, and the next one goes on behind the case that ended it."""
    result, begun = Result(target), time.monotonic()
    number, last = first, first + most
    while number < last and (left := seconds - (time.monotonic() - begun)) > 0:
        with tempfile.NamedTemporaryFile() as status:
            status.write(bytes(8))
            status.flush()
            words = [target.name, str(BUILD / "seeds"), str(number), str(left), str(last - number), status.name]
            ended = _run(words, left + _STARTING)
            reached = int.from_bytes(Path(status.name).read_bytes(), "little") or number
        for line in ended.stdout.splitlines():
            result.add(json.loads(line))
        result.cases += reached - number
        number = reached
        if ended.returncode:
            result.cases += 1
            result.add(_death(ended, number))
            number += 1
    result.seconds = time.monotonic() - begun
    return result


def _run(words: list[str], patience: float) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            [sys.executable, "-m", "fuzz.child", *words], capture_output=True, text=True, errors="replace", cwd=ROOT,
            timeout=patience, env={**os.environ, **_ENVIRONMENT},
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        told = (late.stdout or b"").decode(errors="replace")
        return subprocess.CompletedProcess(words, 124, told, "it stood still")


def _death(ended: subprocess.CompletedProcess[str], number: int) -> dict[str, Any]:
    kind = {-27: "more than 10 seconds", 124: "a standstill", -6: "abort", -11: "segmentation fault", -9: "kill"}
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    own = [line for line in lines if "/src/fusebert/" in line][:2] or lines[-3:]
    where = " < ".join(line.rpartition("/src/")[2] for line in own)
    name = kind.get(ended.returncode, f"exit {ended.returncode}")
    return {"kind": name, "where": where, "message": " / ".join(lines[-3:])[:300], "case": number, "file": ""}


def keep(result: Result) -> None:
    """Writes the file of every finding, and what it is."""
    with tempfile.TemporaryDirectory() as home:
        cases = Cases(result.target, BUILD / "seeds", Path(home)) if result.findings else None
        for key, found in result.findings.items():
            assert cases is not None
            used, data = cases.make(found["case"])
            name = f"{result.target.name}-{hashlib.sha256(repr(key).encode()).hexdigest()[:8]}"
            place = BUILD / "findings" / name
            place.mkdir(parents=True, exist_ok=True)
            (place / Path(used.file).name).write_bytes(data)
            (place / "finding.json").write_text(json.dumps({**found, "file": used.file}, indent=1) + "\n")


def table(results: list[Result]) -> str:
    """Cases, their speed and findings of every target."""
    lines = [f"{'target':24}{'cases':>10}{'a second':>10}{'findings':>10}"]
    for one in results:
        speed = one.cases / max(one.seconds, 1e-9)
        lines.append(f"{one.target.name:24}{one.cases:10,}{speed:10,.0f}{len(one.findings):10}")
    cases, findings = sum(one.cases for one in results), sum(len(one.findings) for one in results)
    return "\n".join([*lines, f"{'all':24}{cases:10,}{'':10}{findings:10}"])


def replay(name: str, number: int, kept: Path | None) -> None:
    """One case in this process, with all that it raises; `kept` gets the smallest file that raises the same."""
    target = next(target for target in TARGETS if target.name == name)
    with tempfile.TemporaryDirectory() as home:
        cases = Cases(target, BUILD / "seeds", Path(home))
        used, data = cases.make(number)
        if kept is None:
            cases.run(used, data)
            return
        wanted = cases.fault(used, data)

        def still(smaller: bytes) -> bool:
            found = cases.fault(used, smaller)
            return [found.get(key) for key in ("kind", "where")] == [wanted["kind"], wanted["where"]]

        kept.mkdir(parents=True)
        (kept / Path(used.file).name).write_bytes(shrink(data, still))


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", help=f"Default: all. {', '.join(target.name for target in TARGETS)}")
    parser.add_argument("--seconds", type=float, default=10, help="Of each target.")
    parser.add_argument("--cases", type=int, default=1 << 40, help="Of each target, at most.")
    parser.add_argument("--jobs", type=int, default=1, help="Targets side by side.")
    parser.add_argument("--first", type=int, default=int(time.time()) * 1000, help="The number of the first case.")
    parser.add_argument("--case", type=int, help="Run this case of one target here, to see its traceback.")
    parser.add_argument("--keep", type=Path, help="With --case: a folder for the smallest file with the same finding.")
    words = parser.parse_args()
    if words.case is not None:
        replay(words.targets[0], words.case, words.keep)
        return 0
    if unknown := set(words.targets) - {target.name for target in TARGETS}:
        parser.error(f"unknown: {', '.join(unknown)}")
    seeds.make(BUILD / "seeds")
    chosen = [target for target in TARGETS if not words.targets or target.name in words.targets]
    one = partial(attack, first=words.first, seconds=words.seconds, most=words.cases)
    results = []
    with ThreadPoolExecutor(words.jobs) as pool:
        for result in pool.map(one, chosen):
            results.append(result)
            keep(result)
            for found in result.findings.values():
                told = f"{found['kind']} at {found['where']}: {found['message']}"
                sys.stdout.write(f"{result.target.name} case {found['case']}: {told}\n")
            sys.stdout.flush()
    sys.stdout.write(table(results) + "\n")
    return int(any(result.findings for result in results))


if __name__ == "__main__":
    sys.exit(main())
