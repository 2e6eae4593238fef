"""Topology: the NUMA nodes of the machine and their cores, as far as this process may use them -> which cores each of
several workers is pinned to. Memory belongs to the node of the core that first writes it; so weights that are packed by
a pinned thread are local to all that run there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True)
class Node:
    """A NUMA node and its usable cores; hardware threads of one core stand next to each other."""

    number: int
    cores: tuple[int, ...]


def nodes(root: str = "") -> list[Node]:
    """The nodes with cores that this process may use; one, if the kernel tells of none. `root` stands before the
    kernel's paths."""
    allowed = _allowed(root)
    found = []
    for folder in sorted(Path(f"{root}/sys/devices/system/node").glob("node*")):
        own = _read_list(folder / "cpulist") & allowed
        if folder.name[4:].isdigit() and own:
            found.append(Node(int(folder.name[4:]), _ordered(root, own)))
    return sorted(found, key=lambda node: node.number) or [Node(0, _ordered(root, allowed))]


def spread(workers: int, found: Sequence[Node]) -> list[Node]:
    """The node of each worker, in proportion to the cores of the nodes."""
    counts = dict.fromkeys(found, 0)
    for _ in range(workers):
        counts[max(found, key=lambda node: len(node.cores) / (counts[node] + 1))] += 1
    return [node for node, count in counts.items() for _ in range(count)]


def share(workers: int, found: Sequence[Node]) -> list[tuple[int, ...]]:
    """The cores of each worker: all are shared out, and no worker has cores of two nodes. Where there are more workers
    than cores, those of a node share them."""
    places = spread(workers, found)
    sets: list[tuple[int, ...]] = []
    for node in dict.fromkeys(places):
        count, size = places.count(node), len(node.cores)
        cuts = [size * i // count for i in range(count + 1)]
        sets += [node.cores[a:b] or node.cores for a, b in pairwise(cuts)]
    return sets


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """The calling thread, and all that it starts meanwhile, on these cores only."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _allowed(root: str) -> set[int]:
    """The cores that the process was given; with another root, those that its status tells."""
    if not root:
        return os.sched_getaffinity(0)
    status = Path(f"{root}/proc/self/status")
    for line in status.read_text().splitlines() if status.is_file() else ():
        if line.startswith("Cpus_allowed_list:"):
            return _parse(line.partition(":")[2])
    return _read_list(Path(f"{root}/sys/devices/system/cpu/online"))


def _ordered(root: str, cores: set[int]) -> tuple[int, ...]:
    siblings = {
        core: _read_list(Path(f"{root}/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")) or {core}
        for core in cores
    }
    return tuple(sorted(cores, key=lambda core: (min(siblings[core]), core)))


def _read_list(path: Path) -> set[int]:
    try:
        return _parse(path.read_text())
    except OSError:  # containers hide some of them
        return set()


def _parse(text: str) -> set[int]:
    """Cores as the kernel lists them: 0-3,8."""
    cores: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores |= set(range(int(first), int(last or first) + 1))
    return cores
