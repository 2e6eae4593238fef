"""What a server tells of itself: a line about the load, a log without inputs, traces; and how a new model
takes over."""

import json
import shutil
import threading
import time
from collections import Counter, deque
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from checkpoints import make_checkpoint
from serve_process import Served

from fusebert.serve.log import Log
from fusebert.serve.status import Status
from fusebert.serve.trace import Trace

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector():
    """A stand-in for a collector: the bodies that were sent to it."""
    bodies = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            bodies.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, bodies
    server.shutdown()
    server.server_close()


def test_requests_are_traced_and_logged_without_what_they_said(models, tmp_path, collector):
    port, bodies = collector
    server = Served(
        models["none"], "--log", tmp_path / "lines", "--otlp", f"http://127.0.0.1:{port}", log=tmp_path / "log"
    )
    try:
        status, headers, _ = server.ask("/embed", {"inputs": ["the secret cat", "a dog"]}, traceparent=PARENT)
        assert status == 200
        version, trace, span, flags = headers["traceparent"].split("-")
        assert (version, trace, flags) == ("00", PARENT.split("-")[1], "01")
        assert span != PARENT.split("-")[2]
        assert "traceparent" not in server.ask("/embed", {"inputs": "x"}, traceparent="00-zz-1-01")[1]
        assert server.ask("/embed", {"inputs": 7})[0] == 422
    finally:
        assert server.stop() == 0
    text = (tmp_path / "lines").read_text()
    assert "secret" not in text
    first, second, third = map(json.loads, text.splitlines())
    assert (first["path"], first["status"], first["texts"], first["trace"]) == ("/embed", 200, 2, trace)
    assert first["tokens"] > 4
    assert "trace" not in second
    assert third["status"] == 422

    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    assert {path for path, _ in bodies} == {"/v1/traces"}
    spans = [
        span
        for _, body in bodies
        for of in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in of.scope_spans
        for span in scope.spans
    ]
    own = next(each for each in spans if each.span_id.hex() == span)
    assert (own.trace_id.hex(), own.parent_span_id.hex()) == (trace, PARENT.split("-")[2])
    below = {each.name: each for each in spans if each.parent_span_id.hex() == span}
    assert set(below) == {"tokenise", "wait", "compute"}
    for stage in below.values():
        assert own.start_time_unix_nano <= stage.start_time_unix_nano <= stage.end_time_unix_nano
        assert stage.end_time_unix_nano <= own.end_time_unix_nano


def test_a_trace_is_read_as_the_standard_says():
    assert Trace.read({b"traceparent": PARENT.encode()}).parent == PARENT.split("-")[2]
    for wrong in ("", PARENT.upper(), PARENT.replace("0af7", "zzzz"), PARENT[:-1], "ff" + PARENT[2:]):
        assert Trace.read({b"traceparent": wrong.encode()}) is None
    assert Trace.read({b"traceparent": b"00-" + b"0" * 32 + PARENT[35:].encode()}) is None
    assert Trace.read({b"traceparent": b"cc" + PARENT[2:].encode() + b"-more"}).flags == "01"


def test_an_exception_is_logged_without_its_message(tmp_path, caplog):
    import logging

    logger, log = logging.getLogger("fusebert.test"), Log(tmp_path / "lines")
    logger.addHandler(log)
    try:
        raise ValueError("the secret cat")
    except ValueError:
        logger.exception("a request failed")
    logger.removeHandler(log)
    log.close()
    line = json.loads((tmp_path / "lines").read_text())
    assert (line["message"], line["exception"]) == ("a request failed", "ValueError")
    assert line["places"][0].startswith("test_telling.py:")
    assert "secret" not in str(line)


def test_the_line_about_the_load_is_of_the_time_since_the_last_one():
    batcher = SimpleNamespace(counts=Counter(), sequences=0)
    metrics = SimpleNamespace(recent=deque())
    server = SimpleNamespace(metrics=metrics, services={"a": SimpleNamespace(batcher=batcher)})
    status = Status(server)
    assert status.line(1.0) == ""
    metrics.recent.extend([(0.010, 2)] * 99 + [(0.5, 2)])
    batcher.counts.update({("tokens",): 750, ("room",): 1000, ("refused", "wait", "bulk"): 3})
    batcher.sequences = 7
    assert status.line(2.0) == "100 texts/s, p50 10.0 ms, p99 14.9 ms, 7 waiting, batches 75% full, 3 refused"
    batcher.sequences = 0
    assert status.line(1.0) == ""


def test_a_new_model_takes_over_without_a_failed_request(models, tmp_path):
    folder = shutil.copytree(models["none"], tmp_path / "model")
    other = make_checkpoint(tmp_path / "other", head="none", vocab=True, seed=7)
    server = Served(folder, "--watch", log=tmp_path / "log")
    stop, seen = threading.Event(), []

    def ask():
        while not stop.is_set():
            status, headers, vectors = server.ask("/embed", {"inputs": "the cat"})
            seen.append((status, headers["x-fingerprint"], str(vectors)))

    try:
        before = server.ask("/embed", {"inputs": "the cat"})[1]["x-fingerprint"]
        clients = [threading.Thread(target=ask) for _ in range(2)]
        for client in clients:
            client.start()
        (other / "model.safetensors").replace(folder / "model.safetensors")
        wait_for(lambda: "was replaced; on a probe" in server.log.read_text())
        stop.set()
        for client in clients:
            client.join()
        assert {status for status, _, _ in seen} == {200}
        assert {fingerprint for _, fingerprint, _ in seen} == {before, seen[-1][1]}
        assert len({(fingerprint, vectors) for _, fingerprint, vectors in seen}) == 2
        assert seen[-1][1] != before
        (folder / "config.json").write_text("{}")
        wait_for(lambda: "has changed on disk, but the new one is not served" in server.log.read_text())
        shutil.rmtree(folder)  # a model that vanishes is served on
        time.sleep(2.5)
        status, headers, _ = server.ask("/embed", {"inputs": "the cat"})
        assert (status, headers["x-fingerprint"]) == (200, seen[-1][1])
    finally:
        stop.set()
        assert server.stop() == 0


def wait_for(condition):
    for _ in range(400):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen within 20 seconds")
