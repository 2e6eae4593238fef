"""Ray in the tests' own process, and the processes of its actors."""

import os
from pathlib import Path


def processes(title):
    """The ids of processes of this Ray whose title begins so. A process that one of them forked is not told."""
    parents, titles = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            titles[int(folder.name)] = (folder / "cmdline").read_bytes().decode("utf-8", "replace")
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid for pid in titles if titles[pid].startswith(title)]
    return [pid for pid in found if parents[pid] not in found and _is_ours(pid, parents)]


def _is_ours(pid, parents):
    while pid in parents:
        if pid == os.getpid():
            return True
        pid = parents[pid]
    return False
