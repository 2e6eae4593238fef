"""Workers are placed on NUMA nodes by what the kernel tells of them, here by folders that look like its own."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusebert.engine.topology import Node, nodes, pinned, share, spread


@pytest.fixture
def machine(tmp_path):
    """A machine with such nodes, on which the process may use such cores."""

    def make(allowed, **lists):
        for name, cores in lists.items():
            folder = tmp_path / "sys/devices/system/node" / name
            folder.mkdir(parents=True)
            (folder / "cpulist").write_text(f"{cores}\n")
        status = tmp_path / "proc/self/status"
        status.parent.mkdir(parents=True)
        status.write_text(f"Name:\tpython\nCpus_allowed_list:\t{allowed}\n")
        return str(tmp_path)

    return make


def test_nodes_are_those_with_cores_that_may_be_used(machine):
    root = machine("2-5,8", node0="0-3", node1="4-7", node10="8-11", node2="12-15", node3="")
    assert nodes(root) == [Node(0, (2, 3)), Node(1, (4, 5)), Node(10, (8,))]


def test_without_nodes_there_is_one(machine):
    assert nodes(machine("0-2")) == [Node(0, (0, 1, 2))]


def test_threads_of_a_core_stay_together(machine, tmp_path):
    root = machine("0-7", node0="0-3", node1="4-7")
    for core in range(8):
        folder = tmp_path / f"sys/devices/system/cpu/cpu{core}/topology"
        folder.mkdir(parents=True)
        first = core // 4 * 4 + core % 2
        (folder / "thread_siblings_list").write_text(f"{first},{first + 2}\n")
    found = nodes(root)
    assert [node.cores for node in found] == [(0, 2, 1, 3), (4, 6, 5, 7)]
    assert share(4, found) == [(0, 2), (1, 3), (4, 6), (5, 7)]


def test_this_machine_has_the_cores_that_this_process_may_use():
    assert {core for node in nodes() for core in node.cores} == os.sched_getaffinity(0)


@given(st.lists(st.integers(1, 96), min_size=1, max_size=8), st.integers(1, 64))
def test_workers_are_spread_by_cores_and_none_has_two_nodes(sizes, workers):
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    found = [
        Node(i, tuple(range(start, start + size))) for i, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    places, sets = spread(workers, found), share(workers, found)
    assert len(places) == len(sets) == workers
    assert all(set(cores) <= set(node.cores) and cores for node, cores in zip(places, sets, strict=True))
    for node in found:
        own = [cores for place, cores in zip(places, sets, strict=True) if place == node]
        if own and len(own) <= len(node.cores):
            assert sorted(core for cores in own for core in cores) == sorted(node.cores)
    assert len(set(places)) == min(workers, len(found)) or len(set(sizes)) > 1


def test_a_thread_is_pinned_for_a_while():
    before = os.sched_getaffinity(0)
    with pinned([min(before)]):
        assert os.sched_getaffinity(0) == {min(before)}
    assert os.sched_getaffinity(0) == before
