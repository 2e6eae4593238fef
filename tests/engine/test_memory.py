"""A bound of memory: what calls really take beside the weights stays below it, whatever the batch and the length;
answers keep their bits; what cannot fit is refused in a sentence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from checkpoints import make_checkpoint
from memory import growth

import fusebert
from fusebert import FusebertError

MEASURE = """
import json, sys
from pathlib import Path
import numpy as np
import fusebert

def status(name):
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) << 10

path, precision, memory, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]) << 20, int(sys.argv[4])
model = fusebert.load(path, precision, threads=threads, memory=memory)
float(np.asarray(model.network.embeddings.word).sum())  # the table is mapped, and no part of the bound
model.rows([101, 102], [0, 2])
random, found = np.random.default_rng(1), []
for batch, length in ((1, 16), (1, 512), (64, 128), (256, 32), (16, 512)):
    ids = random.integers(1000, 20000, (batch, length))
    answer = np.zeros((batch * length, 384), np.float32) + 1
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    model.rows(ids.ravel(), np.arange(batch + 1) * length)
    found.append((batch, length, status("VmHWM") - before - answer.nbytes))
print(json.dumps(found))
"""


@pytest.mark.parametrize(("precision", "memory", "threads"), [("fp32", 64, 2), ("int8", 40, 1)])
def test_calls_take_no_more_than_the_bound(minilm: Path, precision: str, memory: int, threads: int) -> None:
    words = [sys.executable, "-c", MEASURE, str(minilm), precision, str(memory), str(threads)]
    told = subprocess.run(
        words, capture_output=True, text=True, check=True, env={**os.environ, "MALLOC_ARENA_MAX": "1"}
    )
    for batch, length, taken in json.loads(told.stdout):
        assert taken <= memory << 20, (batch, length, taken >> 20)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), head="token", vocab=True, positions=64)


def test_batches_that_are_cut_have_the_same_bits(checkpoint: Path) -> None:
    whole = fusebert.load(checkpoint, threads=1)
    least = whole._room.needed(300, 64)
    cut = fusebert.load(checkpoint, threads=1, memory=least)
    random = np.random.default_rng(0)
    ids = random.integers(0, 40, (30, 60))
    mask = np.arange(60) < random.integers(1, 60, (30, 1))
    assert cut._fitting(*ids.shape) < len(ids)
    for given in ({"attention_mask": mask}, {"attention_mask": mask.sum(1)}, {"output_hidden_states": True}):
        want, got = whole.run(ids, **given), cut.run(ids, **given)
        for name, value in want.items():
            np.testing.assert_array_equal(np.stack(value), np.stack(got[name]))
    texts = ["the cat sat on the mat . " * (n % 9) for n in range(27)]
    np.testing.assert_array_equal(whole.encode(texts), cut.encode(texts))
    assert [[vars(span) for span in own] for own in whole.predict(texts)] == [
        [vars(span) for span in own] for own in cut.predict(texts)
    ]
    flat, offsets = ids.ravel(), np.array([0, 0, 60, *range(100, 1801, 50)])
    np.testing.assert_array_equal(whole.rows(flat[:1800], offsets), cut.rows(flat[:1800], offsets))
    assert len(cut._groups(cut.tokenizer(texts), 8192)) > len(whole._groups(cut.tokenizer(texts), 8192)) == 1


def test_what_cannot_fit_is_refused(checkpoint: Path) -> None:
    model = fusebert.load(checkpoint, threads=1, memory=1 << 20)
    for call in (
        lambda: model.run([[1] * 60]),
        lambda: model.rows([1] * 60, [0, 60]),
        lambda: model.encode(["the cat"]),
    ):
        with pytest.raises(FusebertError, match=r"memory: a text of \d+ tokens takes up to .* 1\.0 MiB are allowed"):
            call()
    for wrong in (0, -5, 1.5, "64MiB", True):
        with pytest.raises(FusebertError, match="memory: a number of bytes"):
            fusebert.load(checkpoint, memory=wrong)  # type: ignore[arg-type]


def test_the_command_line_takes_it(run, checkpoint: Path, tmp_path: Path) -> None:
    assert "memory: a text of" in run("run", checkpoint, "the cat", "--memory", "1MiB", code=2)
    run("run", checkpoint, "the cat", "--memory", "64MiB")
    (tmp_path / "texts.txt").write_text("the cat\n" * 9)
    words = ("embed", checkpoint, tmp_path / "texts.txt", "--task", "tokens", "--memory")
    run(*words, "64MiB", "-o", tmp_path / "out.npy")
    assert "a number of bytes such as" in run(*words, "much", "-o", tmp_path / "other.npy", code=2)


def test_mixed_lengths_leave_memory_flat(checkpoint: Path) -> None:
    model, random = fusebert.load(checkpoint, threads=2), np.random.default_rng(3)

    def call() -> None:
        lengths = random.integers(1, 64, random.integers(1, 40))
        model.rows(random.integers(0, 40, lengths.sum()), np.concatenate([[0], np.cumsum(lengths)]))

    for _ in range(200):
        call()  # until buffers have their size
    assert growth(call, times=200) < 1 << 20


def test_threads_that_have_nothing_to_do_take_no_time(checkpoint: Path) -> None:
    model = fusebert.load(checkpoint, threads=4)
    model.run([[1, 2, 3]])
    time.sleep(0.2)  # until they sleep
    before = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - before < 0.1
