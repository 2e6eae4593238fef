"""Machine: what this machine is, as its kernel and the native core tell it -> facts for `doctor` and for reports."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fusebert.engine.native import cores, isa, isas

LARGE_PAGES = "/sys/kernel/mm/transparent_hugepage/enabled"
_NO_LIMIT = 1 << 60  # cgroups of version 1 write a number about as large as this for none


def machine() -> dict[str, Any]:
    """Facts about this machine."""
    return {
        "fusebert": version("fusebert"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores_usable": cores(),
        "cores_allowed": len(os.sched_getaffinity(0)),
        "cores_present": os.cpu_count() or 1,
        "isa": isa(),
        "isas": isas(),
        "caches": caches(),
        "memory_gb": memory() or "unknown",
        "memory_limit_gb": memory_limit() or "none",
        "large_pages": large_pages() or "unknown",
    }


def caches(root: str = "") -> list[str]:
    """The caches that the first core has or shares, such as "L2 1 MB"; none where the kernel tells of none."""
    found = []
    for folder in sorted(Path(f"{root}/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (_read(folder / name) for name in ("level", "type", "size"))
        if size.endswith("K") and size[:-1].isdigit() and kind != "Instruction":
            kilobytes = int(size[:-1])
            found.append(f"L{level} {kilobytes // 1024} MB" if kilobytes >= 1024 else f"L{level} {kilobytes} KB")
    return found


def memory(root: str = "") -> float | None:
    """The machine's memory in GB."""
    for line in _read(Path(f"{root}/proc/meminfo")).splitlines():
        if line.startswith("MemTotal:"):
            return round(int(line.split()[1]) * 1024 / 1e9, 1)
    return None


def memory_limit(root: str = "") -> float | None:
    """The least that a cgroup of this process, or one around it, allows, in GB; None without a limit."""
    told = [_read(folder / name) for folder in _groups(root) for name in ("memory.max", "memory.limit_in_bytes")]
    limits = [int(limit) for limit in told if limit.isdigit() and int(limit) < _NO_LIMIT]
    return round(min(limits) / 1e9, 1) if limits else None


def large_pages(root: str = "") -> str | None:
    """Who gets large pages: "always" everybody, "madvise" whoever asks for them, as fusebert does, "never" nobody."""
    _, _, chosen = _read(Path(root + LARGE_PAGES)).partition("[")
    return chosen.partition("]")[0] or None


def _groups(root: str) -> Iterator[Path]:
    """The folders of this process's cgroups and of those around them. A container often sees its own at the top."""
    for line in _read(Path(f"{root}/proc/self/cgroup")).splitlines():
        _, _, named = line.partition(":")
        controllers, _, path = named.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        top = Path(f"{root}/sys/fs/cgroup", "memory" if controllers else "")
        group = top / path.strip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # containers hide some of them
        return ""
