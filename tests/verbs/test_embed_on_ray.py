"""`embed` on Ray writes the bytes that it writes here, also when actors are lost on the way or a row ends them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import deadly
import pytest
from checkpoints import WORDS, make_checkpoint
from ray_processes import processes

import fusebert
from fusebert.engine.tokenizer import Tokenizer
from fusebert.errors import FusebertError
from fusebert.formats.dataset import Row
from fusebert.verbs.embed import Place, Settings
from fusebert.verbs.windows import Worker

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]
TOKENS = Settings(task="tokens", keep=("id",))  # whose windows are small: 512 rows
ROWS = 3000


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_checkpoint(tmp_path_factory.mktemp("models") / "model", head="none", vocab=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.jsonl"
    rows = [{"id": i, "text": " ".join(WORDS[(i + j) % 7] for j in range(1 + i % 9))} for i in range(ROWS)]
    rows[700]["text"], rows[2900]["text"] = None, 5
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def here(model, data, tmp_path_factory):
    """What is written without Ray."""
    out = tmp_path_factory.mktemp("here") / "out"
    fusebert.embed(model, data, out, TOKENS)
    return files(out)


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("workers", [1, 2])
def test_it_writes_what_it_writes_here(local_ray, model, data, here, tmp_path, workers):
    report = fusebert.embed(model, data, tmp_path / "out", TOKENS, place=Place("ray", workers), threads=1)
    assert (report.facts["rows"], report.facts["rejected"], report.facts["parts"]) == (ROWS, 2, 6)
    assert files(tmp_path / "out") == here


def test_one_file_and_parts_that_were_there_already(local_ray, model, data, tmp_path):
    fusebert.embed(model, data, tmp_path / "here.npy")
    fusebert.embed(model, data, tmp_path / "ray.npy", place=Place("ray", 1))
    assert (tmp_path / "ray.npy").read_bytes() == (tmp_path / "here.npy").read_bytes()


def test_a_lost_actor_costs_nothing(local_ray, model, data, here, tmp_path):
    """Killed by its pid, as soon as a part is there."""
    out, killed = tmp_path / "out", []

    def kill():
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not killed:
            actors = processes("ray::MapWorker")
            if actors and out.is_dir():
                os.kill(actors[0], signal.SIGKILL)
                killed.append(actors[0])
            time.sleep(0.02)

    killer = threading.Thread(target=kill)
    killer.start()
    fusebert.embed(model, data, out, TOKENS, place=Place("ray", 1), threads=1)
    killer.join()
    assert killed
    assert files(out) == here


def test_a_row_that_ends_its_process_is_rejected_alone(model, monkeypatch):
    """What the last pass does with windows whose actors were lost."""
    monkeypatch.setattr(deadly, "HOME", os.getpid())
    monkeypatch.setattr(Tokenizer, "__call__", Tokenizer.__call__)  # put back in the end
    worker = Worker(deadly.load(model), Settings(), careful=True)
    rows = [Row(i, (deadly.TEXT if i == 20 else "the cat sat",)) for i in range(50)]
    part = worker.answer(0, *worker.tokenise(rows))
    assert part.rejected == [{"row": 20, "reason": "the tokenizer failed on it: its process ended with 9"}]
    assert len(part.numbers) == 49


def test_a_row_that_ends_its_actors_is_rejected_on_ray_too(local_ray, model, tmp_path):
    """Every actor that meets it is lost, until the last pass answers in processes that may end."""
    texts = [deadly.TEXT if i == 700 else f"the {WORDS[i % 7]} sat" for i in range(1200)]
    (tmp_path / "a.txt").write_text("".join(text + "\n" for text in texts))
    settings = Settings(task="tokens")
    loaded = deadly.load(model)
    try:
        report = fusebert.embed(
            loaded, tmp_path / "a.txt", tmp_path / "out", settings, place=Place("ray", 1), threads=1
        )
    finally:
        deadly.forget()
    (told,) = map(json.loads, (tmp_path / "out" / "_rejected.jsonl").read_text().splitlines())
    assert told == {"row": 700, "reason": "the tokenizer failed on it: its process ended with 9"}
    assert (report.facts["rows"], report.facts["rejected"], report.facts["parts"]) == (1200, 1, 3)


@contextmanager
def cluster(port):
    """Ray as `ray start --head` starts it, for those who know its port. On a busy machine Ray gives up on itself now
    and then, so it may begin again."""
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        f"--port={port}",
        "--num-cpus=2",
        "--block",
    ]
    more = ["--include-dashboard=false", "--disable-usage-stats", "--object-store-memory=100000000"]
    for _ in range(3):
        head = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if any("Ray runtime started" in line for line in head.stdout):
            break
        head.wait(60)
    try:
        yield
    finally:
        head.terminate()
        head.communicate(timeout=60)


def test_a_cluster_is_named_by_its_address_and_left_alone_otherwise(model, data, here, tmp_path):
    env = {**os.environ, "RAY_AUTH_MODE": "token"}  # as Ray's own clusters ask for, unless told
    command = [sys.executable, "-m", "fusebert", "embed", str(model), str(data), "--task", "tokens", "--keep", "id"]
    with cluster(6397):
        for name, on in (("there", "ray://127.0.0.1:6397"), ("own", "ray")):
            more = ["-o", str(tmp_path / name), "--on", on, "--workers", "1", "--json"]
            told = subprocess.run([*command, *more], env=env, capture_output=True, text=True, timeout=300)
            assert told.returncode == 0, told.stderr
            assert files(tmp_path / name) == here


def test_what_cannot_be_read_is_told(local_ray, model, tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8b not gzip at all")
    with pytest.raises(FusebertError, match="damaged"):
        fusebert.embed(model, tmp_path / "a.jsonl.gz", tmp_path / "out", place=Place("ray"))
    with pytest.raises(FusebertError, match="standard input"):
        fusebert.embed(model, "-", tmp_path / "out", place=Place("ray"))
    with pytest.raises(FusebertError, match="use ray"):
        Place("spark")
