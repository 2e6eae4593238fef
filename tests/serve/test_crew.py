"""On a machine with several NUMA nodes, workers live on all of them, each with weights and cores of its own node."""

import asyncio
import os

import numpy as np
import pytest
from checkpoints import make_checkpoint

import fusebert
from fusebert.engine.topology import Node
from fusebert.serve import crew
from fusebert.serve.crew import settle
from fusebert.serve.service import Request, Service, Task


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("model") / "model", head="none", vocab=True)


@pytest.fixture
def two_nodes(monkeypatch):
    """A node for the first core and one for the last; on a machine with one core, both have it."""
    cores = sorted(os.sched_getaffinity(0))
    found = [Node(0, (cores[0],)), Node(1, (cores[-1],))]
    monkeypatch.setattr(crew, "nodes", lambda: found)
    return found


def test_workers_are_pinned_to_their_nodes_and_share_its_weights(path, two_nodes):
    loaded = []

    def load():
        loaded.append(os.sched_getaffinity(0))
        return fusebert.load(path, threads=1)

    homes = settle(load)
    assert loaded == [set(node.cores) for node in two_nodes], "weights are packed once on every node, by its own cores"
    assert os.sched_getaffinity(0) != loaded[0] or len(os.sched_getaffinity(0)) == 1

    async def work():
        service = Service("model", homes[0].model, replicas=4, homes=homes)
        await service.start()
        places = sorted(tuple(os.sched_getaffinity(pid)) for pid in service.crew.processes)
        task = Task(0, 0, inputs=["the cat sat"], want="pooled")
        await service.run(task, Request())
        service.release(task)
        os.kill(service.crew.processes[0], 9)
        while service.crew.crashes == 0 or not service.healthy:
            await asyncio.sleep(0.01)
        again = sorted(tuple(os.sched_getaffinity(pid)) for pid in service.crew.processes)
        await service.close()
        return places, again, task.outputs[0]

    places, again, vector = asyncio.run(work())
    assert places == again == sorted([two_nodes[0].cores, two_nodes[1].cores] * 2)
    wanted = fusebert.load(path, threads=1).encode("the cat sat")
    assert np.allclose(vector / np.linalg.norm(vector), wanted, atol=1e-6)


def test_one_node_pins_nothing_and_a_share_of_a_machine_neither(path, two_nodes, monkeypatch):
    model = fusebert.load(path, threads=1)
    (home,) = settle(lambda: model, 3)
    assert (home.cores, home.width) == ((), 3)
    monkeypatch.setattr(crew, "nodes", lambda: two_nodes[:1])
    assert settle(lambda: model)[0].cores == ()
