"""What goes wrong while requests are under way: workers that are killed, requests that kill them, clients that leave,
signals, a full disk, a model's file that vanishes. Nothing that was taken in is lost without a word."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from serve_process import Served

import fusebert
from fusebert.serve import crew
from fusebert.serve.batcher import Limits
from fusebert.serve.server import plan
from fusebert.serve.service import LostError, NotReadyError, Request, Service, Task

TEXTS = ["the cat sat", "the dog ran on the mat .", "unable", "cats , dogs !"]


@pytest.fixture
def model(models):
    return fusebert.load(models["none"], threads=1)


def workers(server):
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def in_service(service, work):
    """Runs `work(service)` on a loop that the service was started on."""

    async def run():
        await service.start()
        try:
            return await work(service)
        finally:
            await service.close()

    return asyncio.run(run())


def ask(service, inputs):
    return service.run(Task(0, 0, inputs=list(inputs)), Request())


def test_killed_workers_are_replaced_without_a_failed_request(models, model, tmp_path):
    """Even with the model's folder gone: a worker needs no file."""
    folder = shutil.copytree(models["none"], tmp_path / "model")
    server = Served(folder, log=tmp_path / "log")
    try:
        shutil.rmtree(folder)
        alone = model.encode(TEXTS).tolist()
        with ThreadPoolExecutor(4) as clients:
            asked = [clients.submit(server.ask, "/embed", {"inputs": TEXTS}) for _ in range(150)]
            for _ in range(2):  # a sequence that is lost three times is given up
                for pid in workers(server):
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.2)
            answers = [one.result() for one in asked]
        assert {status for status, _, _ in answers} == {200}
        assert all(body == alone for _, _, body in answers)
        for _ in range(100):
            if server.ask("/health")[0] == 200:
                break
            time.sleep(0.05)
        assert server.ask("/health")[0] == 200
        told = server.ask("/metrics")[2].decode().split("fusebert_worker_crashes_total{")[1].split("\n")[0]
        assert float(told.split()[-1]) >= 2
        assert "was lost (-9)" in server.log.read_text()
    finally:
        assert server.stop() == 0


def test_a_request_that_ends_workers_fails_alone(model, monkeypatch):
    real = model.rows
    bad = model.tokenizer(["unable"])[0].ids[1]

    def rows(ids, *more):
        if bad in ids:
            os._exit(9)
        return real(ids, *more)

    monkeypatch.setattr(model, "rows", rows)
    alone = [model.encode([text], normalize=False)[0].tolist() for text in TEXTS]

    async def work(service):
        return await asyncio.gather(*(ask(service, [text]) for text in TEXTS), return_exceptions=True)

    service = Service("model", model)
    answers = in_service(service, work)
    assert isinstance(answers[2], LostError)
    for i in (0, 1, 3):
        assert answers[i].outputs[0].tolist() == alone[i]
    assert service.crashes >= 2


def test_a_model_that_does_not_run_at_all_is_refused(model, monkeypatch):
    monkeypatch.setattr(model, "rows", lambda *_: os._exit(3))
    with pytest.raises(fusebert.FusebertError, match="ends on its first batch"):
        asyncio.run(Service("model", model).start())


def test_a_model_that_runs_no_more_fails_what_waits_and_serves_again_later(model, monkeypatch, tmp_path):
    broken, real = tmp_path / "broken", model.rows

    def rows(*given):
        if broken.exists():
            os._exit(4)
        return real(*given)

    monkeypatch.setattr(model, "rows", rows)

    async def work(service):
        broken.touch()
        with pytest.raises((NotReadyError, LostError)):
            await ask(service, TEXTS)
        assert not service.healthy
        broken.unlink()
        while not service.healthy:
            await asyncio.sleep(0.02)
        return await ask(service, TEXTS)

    assert in_service(Service("model", model), work).outputs[0] is not None


def test_a_worker_that_is_stuck_is_ended_and_its_batch_runs_again(model, monkeypatch, tmp_path):
    stuck, real = tmp_path / "stuck", model.rows

    def rows(*given):
        if stuck.exists():
            stuck.unlink()
            time.sleep(60)
        return real(*given)

    monkeypatch.setattr(model, "rows", rows)
    monkeypatch.setattr(crew, "_STUCK", 0.5)

    async def work(service):
        stuck.touch()
        return await asyncio.wait_for(ask(service, TEXTS), 20)

    service = Service("model", model)
    assert in_service(service, work).outputs[0] is not None
    assert service.crashes == 1


def test_a_client_that_leaves_is_dropped_before_it_costs_anything(model, monkeypatch, tmp_path):
    gate, log, real = tmp_path / "gate", tmp_path / "ran", model.rows
    gate.touch()

    def rows(ids, offsets, types):
        with log.open("a") as file:
            file.write(f"{len(offsets) - 1}\n")
        while not gate.exists():
            time.sleep(0.01)
        return real(ids, offsets, types)

    monkeypatch.setattr(model, "rows", rows)

    async def work(service):
        gate.unlink()
        log.write_text("")
        first = asyncio.ensure_future(ask(service, ["the cat"]))
        while not log.read_text():
            await asyncio.sleep(0.01)
        others = [asyncio.ensure_future(ask(service, TEXTS)) for _ in range(3)]
        await asyncio.sleep(0.05)
        for other in others:
            other.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        gate.touch()
        await first
        return log.read_text()

    service = Service("model", model, limits=Limits(batch_tokens=4096))
    assert in_service(service, work) == "1\n"
    assert service.batcher.sequences == 0


def test_a_second_signal_ends_at_once(models, tmp_path):
    server = Served(models["none"], log=tmp_path / "log")
    with socket.create_connection(("127.0.0.1", server.port)) as slow:  # a request that is never complete
        slow.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        time.sleep(0.3)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(5) == 1


def test_a_full_disk_for_its_log_does_not_stop_a_server(models):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["serve", str(models["none"]), "--port", str(port), "--no-grpc", "--threads", "1", "--log", "/dev/full"]
    with Path("/dev/full").open("wb") as full:
        process = subprocess.Popen([sys.executable, "-m", "fusebert", *words], stderr=full, stdout=full)
    try:
        server = Served.__new__(Served)
        server.process, server.port = process, port
        for _ in range(400):
            try:
                if server.ask("/health")[0] == 200:
                    break
            except OSError:
                assert process.poll() is None
            time.sleep(0.05)
        for pid in workers(server):
            os.kill(pid, signal.SIGKILL)  # which it would like to log
        assert server.ask("/embed", {"inputs": "the cat"})[0] == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_replicas_and_threads_are_planned_from_the_cores():
    assert plan(None, None, 2) == (2, 1)
    assert plan(None, 4, 16) == (4, 4)
    assert plan(2, None, 16) == (2, 8)
    assert plan(3, 2, 2) == (3, 2)
    assert plan(None, 8, 2) == (1, 8)
