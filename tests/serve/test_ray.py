"""The server as a Ray Serve deployment: stock clients get the answers that they get here, replicas come and go without
a lost request, and one that is killed costs at most what it was computing."""

import http.client
import json
import os
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager

import numpy as np
import pytest
from ray_processes import processes
from serve_process import speak

import fusebert
from fusebert.errors import FusebertError
from fusebert.serve.ray import NAME, app, read_range

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
PORT = 18724
TEXT = "the dog ran on the mat ."


@pytest.fixture(scope="module")
def ray_serve(local_ray):
    from ray import serve

    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield serve
    serve.shutdown()


@contextmanager
def deployed(serve, **options):
    serve.run(app(options), name=NAME, route_prefix="/")
    try:
        yield
    finally:
        serve.delete(NAME)


def ask(path="/embed", body=None):
    """Status and answer."""
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=60)
    try:
        connection.request("POST", path, json.dumps(body or {"inputs": TEXT}))
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if answer.status == 200 else content
    finally:
        connection.close()


def running(serve):
    """How many replicas answer."""
    (deployment,) = serve.status().applications[NAME].deployments.values()
    return deployment.replica_states.get("RUNNING", 0)


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.2)


class Load:
    """Clients that ask again and again; `failed` are statuses, in the order in which they came."""

    def __init__(self, clients):
        self.wanted, self.stop, self.answers, self.failed = None, threading.Event(), Counter(), []
        self.threads = [threading.Thread(target=self._ask) for _ in range(clients)]

    def _ask(self):
        while not self.stop.is_set():
            status, answer = ask()
            if status == 200:
                self.answers[np.float32(answer).tobytes()] += 1
                continue
            self.failed.append(status)
            status, answer = ask()  # once more
            assert status == 200
            self.answers[np.float32(answer).tobytes()] += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()


def test_stock_clients_get_the_answers_that_they_get_here(ray_serve, served, models, ranker, tmp_path):
    here = speak("apis.py", tmp_path / "here.json", f"http://127.0.0.1:{served.port}")
    paths = {name: str(path) for name, path in {**models, "ranker": ranker}.items()}
    with deployed(ray_serve, model=paths, bounds={"texts": 64}):
        assert speak("apis.py", tmp_path / "ray.json", f"http://127.0.0.1:{PORT}") == here
        for path, body in (("/predict", "sequence"), ("/tag", "token"), ("/nothing", "none")):
            asked = {"inputs": TEXT, "model": body}
            assert ask(path, asked)[1] == (served.ask(path, asked)[2] if path != "/nothing" else ask(path, asked)[1])
        assert ask("/nothing")[0] == 404
        assert ask("/embed", {"inputs": []})[0] == served.ask("/embed", {"inputs": []})[0]


def test_replicas_come_and_go_without_a_lost_request(ray_serve, models):
    quick = {"max_replicas": 2, "upscale_delay_s": 1, "downscale_delay_s": 2, "look_back_period_s": 2}
    with deployed(ray_serve, model=str(models["none"]), autoscale=quick, ongoing=2, drain=10):
        assert running(ray_serve) == 1
        with Load(1) as light:
            with Load(8) as heavy:
                wait_for(lambda: running(ray_serve) == 2)
            wait_for(lambda: running(ray_serve) == 1)
            assert len(processes("ray::ServeReplica")) >= 1
    assert light.failed == heavy.failed == []
    wanted = fusebert.load(models["none"], threads=1).encode([TEXT])
    assert set(light.answers) | set(heavy.answers) == {wanted.tobytes()}


def test_a_killed_replica_costs_no_more_than_what_it_was_computing(ray_serve, models):
    clients = 8
    with deployed(ray_serve, model=str(models["none"]), replicas=2):
        with Load(clients) as load:
            wait_for(lambda: sum(load.answers.values()) > 50)
            before = processes("ray::ServeReplica")
            assert len(before) == 2
            os.kill(before[0], signal.SIGKILL)
            wait_for(lambda: running(ray_serve) == 2 and before[0] not in processes("ray::ServeReplica"))
            count = sum(load.answers.values())
            wait_for(lambda: sum(load.answers.values()) > count + 50)
        assert len(load.failed) <= clients
        assert set(load.failed) <= {500, 503}
        assert len(load.answers) == 1, "a request that was asked again got other bits"


def test_arguments_are_checked(models):
    for options, message in (
        ({}, "model is missing"),
        ({"model": "m", "thread": 2}, "threads"),
        ({"model": "m", "limits": {"batch_token": 2}}, "batch_tokens"),
        ({"model": "m", "replicas": 2, "autoscale": "1:2"}, "choose one"),
        ({"model": "m", "autoscale": "8"}, "such as 1:8"),
    ):
        with pytest.raises(FusebertError, match=message):
            app(options)
    assert read_range("1:8") == (1, 8)
