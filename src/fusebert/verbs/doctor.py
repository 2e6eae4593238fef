"""What this machine and this Python can do: cores, caches, memory, instruction sets, whether the fused operator runs in
each framework that is installed, and what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from importlib.util import find_spec
from typing import Any

from fusebert.engine.native import multiplies_bf16
from fusebert.report import Report, Table
from fusebert.verbs.machine import LARGE_PAGES, machine

TRIAL = "fusebert.verbs.trial"
PATIENCE = 120.0  # seconds

# Import name -> (distributions, what it is for, the extra it comes with).
FRAMEWORKS = {
    "torch": (("torch",), "runs fused models: fusebert.torch; reads pytorch_model.bin", "torch"),
    "transformers": (("transformers",), "the models that fusebert.torch optimises", "torch"),
    "tensorflow": (("tensorflow", "tensorflow-cpu"), "runs fused models: fusebert.tensorflow", "tensorflow"),
    "onnxruntime": (("onnxruntime",), "runs fused models: fusebert.onnxruntime.session", "onnxruntime"),
    "onnx": (("onnx",), "checks the ONNX files that optimize writes", None),
}
# Whose fused operator is tried once all these are there.
TRIED = {"torch": ("torch", "transformers"), "tensorflow": ("tensorflow",), "onnxruntime": ("onnxruntime",)}
EXTRAS = {
    "serve": "fusebert serve and load-test",
    "embed": "Parquet and compressed files",
    "ray": "embed and serve on a cluster",
    "plot": "load-test --plot",
    "trace": "serve --otlp",
}


def doctor() -> Report:
    """Looks at the machine, and runs the fused operator in every framework, each in a process of its own."""
    installed = {name for name in FRAMEWORKS if find_spec(name)}
    started = {name: _start(name, installed) for name in FRAMEWORKS if name in installed}
    rows = []
    for name, (distributions, purpose, extra) in FRAMEWORKS.items():
        if name in installed:
            state = _state(started[name], _good(name, installed))
        else:
            state = f"not installed: {_command(extra) if extra else f'pip install {name}'}"
        rows.append((name, _version(distributions), state, purpose))
    facts = machine()
    frameworks = Table("frameworks", ("framework", "version", "state", "for"), tuple(rows))
    return Report("fusebert doctor", facts, (frameworks, _extras()), tuple(_notes(facts)))


def _tried(name: str, installed: set[str]) -> bool:
    return name in TRIED and installed.issuperset(TRIED[name])


def _start(name: str, installed: set[str]) -> subprocess.Popen[str]:
    words = ["-m", TRIAL, name] if _tried(name, installed) else ["-c", f"import {name}"]
    return subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, errors="replace",
    )  # fmt: skip


def _good(name: str, installed: set[str]) -> str:
    """What a process that ended well has shown."""
    if _tried(name, installed):
        return "runs the fused operator"
    missing = sorted(set(TRIED.get(name, ())) - installed)
    return f"is imported; its operator needs {' and '.join(missing)}" if missing else "is imported"


def _state(process: subprocess.Popen[str], good: str) -> str:
    try:
        _, errors = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"stood still for {PATIENCE:.0f} seconds"
    if process.returncode == 0:
        return good
    lines = errors.strip().splitlines()
    return f"fails: {lines[-1][:200] if lines else f'exit code {process.returncode}'}"


def _version(distributions: tuple[str, ...]) -> str:
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""


def _extras() -> Table:
    """What each extra still lacks, and the command that installs it."""
    rows = []
    for extra, purpose in EXTRAS.items():
        missing = ", ".join(name for name in _needed(extra) if not _version((name,)))
        rows.append((extra, purpose, missing or "nothing", _command(extra) if missing else ""))
    return Table("extras", ("extra", "for", "missing", "install"), tuple(rows))


def _needed(extra: str) -> Iterator[str]:
    """The distributions of an extra, as our own metadata lists them."""
    for requirement in requires("fusebert") or ():
        if re.search(rf"""extra == ["']{extra}["']""", requirement):
            yield re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]


def _command(extra: str) -> str:
    return f"pip install 'fusebert[{extra}]'"


def _notes(facts: Mapping[str, Any]) -> Iterator[str]:
    if not multiplies_bf16():
        yield "No bf16 instructions: bf16 weights are held as floats, neither smaller nor faster than fp32 here."
    if facts["cores_usable"] < facts["cores_allowed"]:
        yield f"A cgroup's quota allows {facts['cores_usable']} of {facts['cores_allowed']} cores."
    if facts["large_pages"] == "never":
        yield "Large pages are off, which makes reading weights slower; as root: echo madvise > " + LARGE_PAGES
