"""A release, step by step: the version and the day in pyproject.toml and CHANGELOG.md, all tests, the wheels, each
tried in an empty environment, a commit and a tag. Nothing leaves the machine: the last line says how to publish.

    python scripts/release.py 0.2.0 --dry-run

--dry-run checks what can be checked and shows the rest. Whatever is wrong ends it, and puts the two files back."""

from __future__ import annotations

import argparse
import datetime
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from wheels import DIST, interpreter

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "CHANGELOG.md")
_VERSION = re.compile(r'^version = "(.+)"$', re.MULTILINE)
_STEPS = (("make", "test"), ("make", "test-integrations"), ("make", "soak"), ("make", "fuzz"), ("make", "wheels"))


def main() -> None:
    """One release."""
    parser = argparse.ArgumentParser(description="Makes a release of the tree as it is.")
    parser.add_argument("version")
    parser.add_argument("--dry-run", action="store_true", help="Change nothing, and only tell what would be done.")
    asked = parser.parse_args()
    before = {name: (ROOT / name).read_text() for name in FILES}
    tags = told("git", "tag", "--list", "v*").split()
    state = told("git", "status", "--porcelain")
    after = changed(before, asked.version, datetime.date.today().isoformat(), tags)
    if state and not asked.dry_run:
        sys.exit(f"the tree has changes that are not committed:\n{state}")
    for name in FILES:
        say(f"{name}: {'changed' if after[name] != before[name] else 'as it is'}")
    if asked.dry_run:
        for words in (*_STEPS, ("scripts/smoke.py", "WHEEL of this machine"), *commits(asked.version)):
            say(" ".join(words))
        return
    release(asked.version, before, after)


def release(version: str, before: dict[str, str], after: dict[str, str]) -> None:
    """All steps; the files are put back if one fails."""
    write(after)
    try:
        for target in _STEPS:
            do(target)
        for wheel, python in smoked(version, [path.name for path in DIST.iterdir()]):
            do((sys.executable, "scripts/smoke.py", str(DIST / wheel), "--python", python))
        for words in commits(version):
            do(words)
    except BaseException:
        write(before)
        raise
    say(f"v{version} is tagged, and dist/ is ready. To publish: git push --follow-tags; python -m twine upload dist/*")


def changed(files: dict[str, str], version: str, day: str, tags: Sequence[str]) -> dict[str, str]:
    """pyproject.toml with the version, CHANGELOG.md with the day; ends if they are not ready for it."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"{version} is no version: three numbers are expected, such as 0.2.0")
    if late := [tag for tag in tags if numbers(tag[1:]) >= numbers(version)]:
        sys.exit(f"{late[-1]} is a tag already: a new version is expected, not {version}")
    project, log = (files[name] for name in FILES)
    heading = f"## [{version}] - unreleased\n"
    notes = log.partition(heading)[2].partition("\n## [")[0]
    if not re.search(r"^- ", notes, re.MULTILINE):
        sys.exit(f"CHANGELOG.md has nothing under {heading.strip()!r}")
    if not _VERSION.search(project):
        sys.exit("pyproject.toml has no version")
    return {
        "pyproject.toml": _VERSION.sub(f'version = "{version}"', project, count=1),
        "CHANGELOG.md": log.replace(heading, f"## [{version}] - {day}\n"),
    }


def numbers(version: str) -> tuple[int, ...]:
    """A version as what it is ordered by; a tag of another form comes first."""
    return tuple(int(part) for part in version.split(".")) if re.fullmatch(r"\d+(\.\d+)*", version) else ()


def smoked(version: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The wheels that this machine runs, each with its Python; ends unless all that a release has are there."""
    wanted = [f"fusebert-{version}-{tag}-manylinux" for tag in ("cp311-cp311", "cp312-abi3")]
    found = [name for name in names for start in wanted if name.startswith(start)]
    if len(found) != 4 or f"fusebert-{version}.tar.gz" not in names:
        sys.exit(f"dist/ has not the source and four wheels of {version}: {', '.join(sorted(names)) or 'nothing'}")
    here = sorted(name for name in found if name.endswith("x86_64.whl"))
    return list(zip(here, (interpreter({11}), interpreter({12, 13, 14})), strict=True))


def commits(version: str) -> list[tuple[str, ...]]:
    """What ends a release."""
    return [
        ("git", "commit", "--all", "--message", f"Version {version}"),
        ("git", "tag", "--annotate", f"v{version}", "--message", f"fusebert {version}"),
    ]


def write(files: dict[str, str]) -> None:
    """Writes files of the tree."""
    for name, text in files.items():
        (ROOT / name).write_text(text)


def do(step: Sequence[str]) -> None:
    """A step; ends with it if it fails."""
    say(" ".join(step))
    if subprocess.run(step, cwd=ROOT).returncode:
        sys.exit(f"{' '.join(step)} failed; nothing was released")


def told(*words: str) -> str:
    """What a command prints."""
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def say(line: str) -> None:
    """One line of the result."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
