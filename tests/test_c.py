"""The C library as others build against it: found by CMake where the package is installed, and called from C alone."""

import re
import subprocess
import sys
from pathlib import Path

import fusebert._native as native

EXAMPLES = Path(__file__).parents[1] / "examples"
CMAKE = Path(sys.executable).with_name("cmake")
PACKAGE = Path(native.__file__).parent


def done(*command):
    ended = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_cmake_finds_the_package_and_the_example_runs(tmp_path):
    warnings = "-DCMAKE_C_FLAGS=-std=c11 -Wall -Wextra -Wpedantic -Werror"
    done(CMAKE, "-S", EXAMPLES, "-B", tmp_path, f"-Dfusebert_DIR={PACKAGE / 'cmake'}", warnings)
    done(CMAKE, "--build", tmp_path)
    told = done(tmp_path / "embed")
    assert told.startswith(native.isa())
    assert "first row begins with" in told


def test_the_library_has_a_number_and_shows_the_c_interface_only():
    told = done("readelf", "-dW", PACKAGE / "libfusebert.so.1")
    assert "Library soname: [libfusebert.so.1]" in told
    rows = [row.split() for row in done("nm", "-D", "--defined-only", PACKAGE / "libfusebert.so.1").splitlines()]
    shown = {name for _, _, name in rows if not name.startswith("_ZZNSt")}  # which GCC's own headers insist on
    header = (PACKAGE / "include" / "fusebert.h").read_text()
    assert shown == set(re.findall(r"^FB_API [^(]*?(fb_\w+)\(", header, re.MULTILINE))
