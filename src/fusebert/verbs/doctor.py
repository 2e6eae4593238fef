"""What this machine and this Python can do: cores, instruction sets, frameworks and what each one adds."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from fusebert.engine.native import cores, isa, isas, multiplies_bf16
from fusebert.report import Report, Table

# Import name -> (distributions, what it is for).
FRAMEWORKS = {
    "torch": (("torch",), "runs fused models: fusebert.torch; reads pytorch_model.bin"),
    "transformers": (("transformers",), "the models that fusebert.torch optimises"),
    "tensorflow": (("tensorflow", "tensorflow-cpu"), "runs fused models: fusebert.tensorflow"),
    "onnxruntime": (("onnxruntime",), "runs fused models: fusebert.onnxruntime.session"),
    "onnx": (("onnx",), "checks the ONNX files that optimize writes"),
}


def doctor() -> Report:
    """Looks at the machine and tries to import every framework, each in a process of its own."""
    started = {name: _start(name) for name in FRAMEWORKS if find_spec(name)}
    rows = []
    for name, (distributions, purpose) in FRAMEWORKS.items():
        process = started.get(name)
        rows.append((name, _version(distributions), "not installed" if process is None else _state(process), purpose))
    notes: tuple[str, ...] = ()
    if not multiplies_bf16():
        notes = ("No bf16 instructions: bf16 weights are held as floats, neither smaller nor faster than fp32 here.",)
    return Report(
        "fusebert doctor",
        machine(),
        (Table("frameworks", ("framework", "version", "state", "for"), tuple(rows)),),
        notes,
    )


def machine() -> dict[str, Any]:
    """Facts about this machine."""
    return {
        "fusebert": version("fusebert"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores_usable": cores(),
        "cores_present": os.cpu_count() or 1,
        "isa": isa(),
        "isas": isas(),
    }


def _start(name: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", f"import {name}"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


def _state(process: subprocess.Popen[str]) -> str:
    try:
        _, errors = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.kill()
        return "import takes over two minutes"
    if process.returncode == 0:
        return "usable"
    lines = errors.strip().splitlines()
    return f"import fails: {lines[-1][:100] if lines else f'exit code {process.returncode}'}"


def _version(distributions: tuple[str, ...]) -> str:
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return ""
