"""The benchmark's arithmetic and its table; nothing is timed."""

import importlib
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from encoders import random_encoder

from fusebert.engine import native as engine
from fusebert.values.blocks import Attention, Block, Encoder, FeedForward, Linear
from fusebert.values.forms import reference
from fusebert.values.plan import make_plan

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

ceiling, figures, models, speed, turns = map(
    importlib.import_module, ("ceiling", "figures", "models", "speed", "turns")
)


@pytest.fixture
def result():
    """Makes a Result of an engine at a shape."""

    def make(engine: str, ms: float, pads: bool = True, shape: str = "32x128r"):
        precision = engine.split()[-1].removesuffix("-bf16")
        ours = engine.startswith("fusebert")
        return speed.Result("base", shape, engine, precision, ours, pads, ms, ms, 1, 1, 100, 0.5, 0.1)

    return make


def encoder_of(hidden_size: int, num_hidden_layers: int, num_attention_heads: int, intermediate_size: int) -> Encoder:
    """BERT's sizes without its numbers."""

    def linear(rows: int, columns: int) -> Linear:
        return Linear(np.broadcast_to(np.float32(0), (rows, columns)))

    square, heads = linear(hidden_size, hidden_size), num_attention_heads
    attention = Attention(square, square, square, square, heads, heads, 1.0)
    up, down = linear(intermediate_size, hidden_size), linear(hidden_size, intermediate_size)
    blocks = Block(None, attention, None, None), Block(None, FeedForward(up, None, down, "relu"), None, None)
    return Encoder(hidden_size, blocks, (0, 1) * num_hidden_layers)


def test_operations_are_those_of_real_tokens():
    """BERT-base at length 128 is 22.35 Gop, and padding costs nothing."""
    base = encoder_of(**models.SIZES["base"])
    _, full = models.inputs("1x128")
    assert models.operations(base, full) == pytest.approx(22.35e9, rel=1e-3)
    _, real = models.inputs("32x128r")
    assert real.mean() == pytest.approx(0.41, abs=0.04)
    assert models.operations(base, real) < 0.45 * 32 * 22.35e9


def test_ratios_are_to_the_best_of_the_same_precision(result):
    """A faster engine of another precision is no rival; who skips padding is none for the ratio to those that pad."""
    *_, mine, alone = speed.compared([
        result("torch fp32", 900), result("openvino int8", 400), result("ctranslate2 int8", 200, pads=False),
        result("fusebert int8-bf16", 100, pads=False), result("fusebert bf16", 300, pads=False),
    ])  # fmt: skip
    assert (mine.best_rival, mine.ratio) == ("ctranslate2 int8", 2.0)
    assert (mine.best_padding_rival, mine.padding_ratio) == ("openvino int8", 4.0)
    assert alone.ratio is None


@pytest.fixture
def data(result):
    """A run as JSON has it, on an instruction set, with the median call so much above the best."""

    def make(isa: str, noise: float = 0.0):
        results = speed.compared([result("openvino fp32", 120.4), result("fusebert fp32", 60.2, pads=False)])
        return {
            "machine": speed.machine(2) | {"instruction_set": isa},
            "ceiling": {kind: {"giga_per_second": 200.0, "by": ""} for kind in ("fp32", "bf16", "int8", "memory")},
            "results": [asdict(one) | {"p50_ms": one.ms * (1 + noise)} for one in results],
        }

    return make


def test_the_readme_keeps_a_table_for_each_instruction_set(data, tmp_path):
    """Written twice, a table is there once; another one comes beside it, and the rest of the file stays."""
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- speed avx2 -->\nold\n<!-- /speed avx2 -->\nafter\n")
    for isa in ("avx512-bf16", "avx2", "avx512-bf16"):
        figures.write(readme, data(isa))
    text = readme.read_text()
    assert text.startswith("before\n<!-- speed avx512-bf16 -->\n")
    assert text.endswith("<!-- /speed avx2 -->\nafter\n")
    assert "old" not in text
    assert text.count("| BERT-base, ms | 32x128, real lengths |\n") == 2
    assert "| **fusebert fp32** | 60.2 (50%, 2.00x) |\n| best other fp32 | 120 openvino |" in text
    readme.write_text("no marks\n")
    with pytest.raises(SystemExit, match="no <!-- speed"):
        figures.write(readme, data("avx2"))


def test_a_noisy_run_is_marked(data):
    """Beyond 10 % the table itself says that it is to be measured again."""
    assert "noise 3%;" in figures.markdown(data("avx2", 0.03))
    assert "noise 14%: the machine was busy, measure again;" in figures.markdown(data("avx2", 0.14))


def test_the_readme_has_the_marks():
    """`--readme` finds its place in the project's own README, with one table for each instruction set."""
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    marks = re.findall(r"<!-- (/?speed) (\S+) -->\n", readme)
    assert marks == [(mark, isa) for isa in dict.fromkeys(isa for _, isa in marks) for mark in ("speed", "/speed")]
    assert marks


def test_the_ceiling_is_measured():
    """It compiles with the system's compiler, and every kind of it gives a number."""
    found = ceiling.Ceiling(1)
    for call in found.calls().values():
        call()
    assert min(found.reached.values()) > 0


def test_overhead_is_what_a_call_takes_beyond_the_bare_one_beside_it(monkeypatch):
    """Microseconds and percent; neither a machine that gets slower nor a slow call now and then changes anything."""
    now, calls = [0.0], [0]

    def take(seconds: float) -> None:
        calls[0] += 1
        slower = 1 + calls[0] * 1e-6
        now[0] += seconds * slower * (5 if calls[0] % 7 == 0 else 1)

    monkeypatch.setattr(turns.time, "perf_counter", lambda: now[0])
    found = turns.overhead(lambda: take(0.00103), lambda: take(0.001), 0.2, show=False)
    assert found == (pytest.approx(1030, abs=1), pytest.approx(1000, abs=1), pytest.approx(30, abs=1), 3.0)


def test_the_bare_engine_does_the_work_of_a_model():
    """What overhead is measured against runs every layer on all the rows that it is given."""
    encoder = random_encoder()
    bare_engine = engine.EncoderEngine(encoder, make_plan("fp32", len(encoder.blocks)), engine.pool(2))
    rows = np.random.default_rng(0).normal(size=(2, 5, encoder.hidden_size)).astype(np.float32)
    bare = turns.Bare(bare_engine, rows)
    bare.call()
    assert np.abs(bare.output - reference(encoder, rows)).max() < 1e-4


def test_the_kernels_benchmark_fits_the_core():
    """It is made of the core's own sources and built when it runs: here it is only read."""
    root = Path(__file__).parents[1]
    command = ("c++", "-std=c++20", "-fsyntax-only", "-Wno-psabi", "-march=native", "-I", root / "native")
    subprocess.run((*command, root / "benchmarks/kernels/products.cc"), check=True)
