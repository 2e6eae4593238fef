"""What the kernel tells of a machine, from folders that stand in for its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from fusebert.verbs.machine import caches, large_pages, machine, memory, memory_limit


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return str(root)


def test_caches_without_the_one_of_instructions(tmp_path: Path) -> None:
    folder = "sys/devices/system/cpu/cpu0/cache"
    told = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K"), ("3", "Unified", "32768K")]
    for number, (level, kind, size) in enumerate(told):
        place = f"{folder}/index{number}"
        write(tmp_path, {f"{place}/level": level, f"{place}/type": kind, f"{place}/size": size})
    assert caches(str(tmp_path)) == ["L1 48 KB", "L2 1 MB", "L3 32 MB"]


@pytest.mark.parametrize(
    ("group", "files", "limit"),
    [
        ("0::/", {"memory.max": "2000000000"}, 2.0),
        ("0::/a/b", {"a/memory.max": "1500000000", "a/b/memory.max": "max"}, 1.5),
        ("0::/gone", {"memory.max": "2000000000"}, 2.0),
        ("4:memory:/a", {"memory/a/memory.limit_in_bytes": "3000000000"}, 3.0),
        ("4:memory:/", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("1:cpu:/", {"memory.max": "2000000000"}, None),
        ("0::/", {"memory.max": "rubbish"}, None),
    ],
)
def test_the_smallest_limit_of_memory(tmp_path: Path, group: str, files: dict[str, str], limit: float | None) -> None:
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    assert memory_limit(write(tmp_path, {"proc/self/cgroup": group, **groups})) == limit


def test_memory_and_large_pages(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        {
            "proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 1 kB",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        },
    )
    assert memory(root) == 16.4
    assert large_pages(root) == "madvise"


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    root = str(tmp_path)
    assert caches(root) == []
    assert memory(root) is memory_limit(root) is large_pages(root) is None


def test_this_machine() -> None:
    facts = machine()
    assert 1 <= facts["cores_usable"] <= facts["cores_allowed"] <= facts["cores_present"]
    assert facts["isa"] in facts["isas"]
    assert facts["memory_gb"] == memory()
