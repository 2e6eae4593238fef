"""The load generator: what it counts and what it does not, when a latency begins, what it says of itself and leaves."""

import asyncio
import json
import math
import threading
import time
from contextlib import closing

import pytest
from hdrh.log import HistogramLogReader

import fusebert
from fusebert.cli.load_test import read_seconds
from fusebert.serve.load.connection import HttpCaller
from fusebert.serve.load.files import Files
from fusebert.serve.load.loops import Load, closed, open_loop
from fusebert.serve.load.outcome import Outcome, histogram
from fusebert.serve.load.protocols import Facts
from fusebert.serve.load.search import highest_rate
from fusebert.serve.load_test import _doubts

OK = b"HTTP/1.1 200 OK\r\nx-queue-time: 2.5\r\ncontent-length: 2\r\n\r\n[]"
FULL = b"HTTP/1.1 429 Too Many Requests\r\ncontent-length: 0\r\n\r\n"
CHUNKS = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n[]"


class Fake:
    """A server that answers request number i, one after the other over all connections, with what `answer(i)` says:
    seconds to wait first, and bytes; None closes the connection."""

    def __init__(self, answer):
        self._answer, self._count, self._turn = answer, 0, threading.Lock()
        self._ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        assert self._ready.wait(10)

    async def _serve(self):
        self._turn = asyncio.Lock()
        server = await asyncio.start_server(self._talk, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._ready.set()
        await asyncio.Event().wait()

    async def _talk(self, reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(size or 0))
                async with self._turn:
                    number, self._count = self._count, self._count + 1
                    pause, said = self._answer(number)
                    await asyncio.sleep(pause)
                if said is None:
                    break
                writer.write(said)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


def offer(fake, loop, bound=None):
    async def run():
        caller = HttpCaller(fake.url, 5)
        try:
            return await loop(Load(caller, [caller.payload("POST", "/", b"{}", {})], None, bound))
        finally:
            await caller.close()

    return asyncio.run(run())


def test_a_closed_loop_sends_what_was_asked_for_and_counts_refusals_and_failures_apart():
    answers = {0: (0.3, FULL), 1: (0, None), 2: (0, CHUNKS), 3: (0, CLOSING)}
    outcome = offer(Fake(lambda i: answers.get(i, (0, OK))), lambda load: closed(load, 4, 10))
    assert outcome.requests == 40
    assert (outcome.statuses[200], outcome.refusals, outcome.failures) == (38, 1, 1)
    assert outcome.answered.get_total_count() == 38
    assert outcome.refused.get_min_value() >= 290_000  # and no answer took as long as that refusal did
    assert outcome.stages["queue"] == pytest.approx(36 * 2.5)


def test_a_closed_loop_for_a_time_ends():
    outcome = offer(Fake(lambda _: (0.01, OK)), lambda load: closed(load, 3, None, 0.3))
    assert 0.25 < outcome.seconds < 10
    assert outcome.requests > 5


def test_an_open_loop_counts_from_when_a_request_was_due():
    """A server that stands still for half a second makes all late that were due meanwhile, not one."""
    fake = Fake(lambda i: (0.5 if i == 50 else 0, OK))
    outcome = offer(fake, lambda load: open_loop(load, 200, 1.2, 0, "constant"), bound=0.1)
    late = outcome.requests - outcome.good
    assert late >= 60  # and more where others use the machine
    assert outcome.percentile(99.9) > 350
    assert not outcome.kept


def test_a_hopeless_rate_is_given_up_early():
    start = time.perf_counter()
    outcome = offer(Fake(lambda _: (0.02, OK)), lambda load: open_loop(load, 200, 10, 0, hopeless=True), bound=0.1)
    assert time.perf_counter() - start < 6
    assert not outcome.kept


def test_poisson_arrivals_have_the_rate_and_the_spread():
    outcome = offer(Fake(lambda _: (0, OK)), lambda load: open_loop(load, 400, 1.5, 0.1))
    assert outcome.requests == pytest.approx(600, abs=100)
    assert outcome.statuses[200] == outcome.requests


@pytest.mark.parametrize("truth", [3.0, 137.0, 4000.0])
def test_the_search_finds_the_highest_rate_and_confirms_it(truth):
    confirmed = []

    async def probe(rate):
        good = rate <= truth
        return Outcome(statuses={200: 100}, good=100 if good else 90)

    async def confirm(rate):
        confirmed.append(rate)
        return await probe(rate * 1.02)

    rate, tried = asyncio.run(highest_rate(probe, confirm, 100.0))
    assert truth / 1.07 < rate <= truth
    assert tried[-1][0] == rate == confirmed[-1]
    assert asyncio.run(highest_rate(lambda _: probe(math.inf), confirm, 100.0))[0] == 0


def test_it_says_when_the_generator_was_the_bottleneck():
    assert not _doubts(Outcome(seconds=10, cpu=2))
    assert "bottleneck" in _doubts(Outcome(seconds=10, cpu=9.5))[0]
    late = histogram()
    for _ in range(100):
        late.record_value(30_000)
    assert "30.0 ms after they were due" in _doubts(Outcome(seconds=10, cpu=1, lags=late))[0]


def test_what_servers_tell_of_themselves_is_understood():
    ours = {"model_id": "m", "model_type": {"head": "sequence"}, "labels": ["no", "yes"]}
    theirs = {"model_id": "m", "model_type": {"classifier": {"id2label": {"1": "yes", "0": "no"}}}}
    assert Facts.read(ours) == Facts.read(theirs) == Facts("m", True, ("no", "yes"))
    assert Facts.read(["nonsense"]) == Facts()
    assert (Facts.read(ours).number("yes"), Facts.read(ours).number("1")) == ("1", "1")


def test_accuracy_under_load_is_the_accuracy_offline(served, models, run, tmp_path):
    texts = ["the cat sat", "the dog ran on the mat .", "unable", "cats , dogs !", "the mat", "a cat", "ran ran ran"]
    said = [label.label for label in fusebert.load(models["sequence"], threads=1).predict(texts)]
    wanted = [*said[:5], *("label 0" if label != "label 0" else "label 1" for label in said[5:])]
    lines = [f"{text}\t{label}" for text, label in zip(texts, wanted, strict=True)]
    data = tmp_path / "texts.tsv"
    data.write_text("\n".join(["text\tlabel", *lines]))
    words = ["load-test", f"http://127.0.0.1:{served.port}", "--protocol", "predict", "--model", "sequence"]
    words += ["--data", data, "--clients", 4, "--cycle", 5, "--warmup", "0s", "--save-accuracy", tmp_path / "accuracy"]
    words += ["--histogram", tmp_path / "log", "--plot", tmp_path / "plot.svg", "--json"]
    told = json.loads(run(*words))
    assert (told["requests"], told["answered"], told["texts_judged"], told["changed_answers"]) == (20, 20, 7, 0)
    assert told["accuracy"] == round(5 / 7, 4)
    assert (tmp_path / "accuracy").read_text() == f"{5 / 7:.4f}\n"
    latencies, split = told["latency_ms"][0], told["server_ms"][0]
    assert latencies["p50"] <= latencies["p99"] <= latencies["p99.9"] <= latencies["max"] * 1.001
    assert set(split) == {"tokenisation", "queue", "inference", "rest"}
    with closing(HistogramLogReader(str(tmp_path / "log"), histogram())) as log:
        assert log.get_next_interval_histogram().get_total_count() == 20
    assert (tmp_path / "plot.svg").read_bytes().startswith(b"<?xml")
    assert "exists" in run(*words[:-1], code=2)
    assert json.loads(run(*words, "--overwrite"))["answered"] == 20


@pytest.mark.parametrize("protocol", ["embed", "openai"])
def test_protocols_are_answered(served, run, protocol):
    words = ["--protocol", protocol, "--clients", 2, "--cycle", 3, "--warmup", "0s", "--batch", 2, "--json"]
    told = json.loads(run("load-test", f"http://127.0.0.1:{served.port}", *words))
    assert (told["protocol"], told["answered"], told["failed"]) == (protocol, 6, 0)


def test_files_of_other_kinds_are_never_replaced(tmp_path):
    (tmp_path / "mine.svg").write_text("mine")
    with pytest.raises(fusebert.FusebertError, match="another kind"):
        Files(plot=tmp_path / "mine.svg", overwrite=True).check()
    with pytest.raises(fusebert.FusebertError, match=r"neither \.png nor \.svg"):
        Files(plot=tmp_path / "plot.jpg").check()
    files = Files(plot=tmp_path / "plot.png")
    filled = histogram()
    for value in range(1, 1000):
        filled.record_value(value)
    files.check()
    files.write_plot("title", {"answered": filled}, 0.13)
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_what_cannot_be_tested_ends_with_a_sentence(served, run):
    url = f"http://127.0.0.1:{served.port}"
    assert "does not answer" in run("load-test", "http://127.0.0.1:9", code=2)
    assert "no address" in run("load-test", "127.0.0.1", code=2)
    assert "use one of" in run("load-test", url, "--protocol", "morse", code=2)
    assert "without a rate" in run("load-test", url, "--find-max", code=2)
    assert "no accuracy" in run("load-test", url, "--save-accuracy", "x", code=2)
    assert "status 422" in run("load-test", url, "--protocol", "predict", code=2)
    assert [read_seconds(text, "") for text in ("130ms", "2m", "1.5", "3 s")] == [0.13, 120, 1.5, 3]
    with pytest.raises(fusebert.FusebertError, match="--p99: a time"):
        read_seconds("soon", "--p99")
