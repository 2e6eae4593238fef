"""Bench: what is measured, and how it is told. Nothing here depends on how fast anything is."""

import json
import re
from functools import partial

import numpy as np
import pytest
import stock
import tiny
import zoo
from checkpoints import make_checkpoint

import fusebert
from fusebert.errors import FusebertError
from fusebert.measure.bench import bench
from fusebert.measure.samples import pad_to_lengths
from fusebert.measure.timing import Timing, interleave

QUICK = {"samples": 2, "test_times": 2}
COLUMNS = [
    "Latency(ms)", "Latency_P50", "Latency_P75", "Latency_P90", "Latency_P95", "Latency_P99", "Throughput(QPS)",
    "model", "graph_optimization_level", "intra_op_num_threads", "batch_size", "sequence_length", "test_cases",
    "test_times", "use_gpu", "use_io_binding", "average_sequence_length", "random_sequence_length",
]  # fmt: skip


@pytest.fixture
def model(tmp_path):
    return tiny.make(tmp_path / "model.onnx", {"y": "ids * mask"})


def test_calls_take_turns_and_all_are_counted():
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    timings = interleave(calls, rounds=3, times=4, warmup=0)
    assert [timing.calls for timing in timings.values()] == [12, 12]
    assert "".join(order) == "ab" + ("a" * 5 + "b" * 5) * 3  # warming up, then one more than is counted
    for t in timings.values():
        assert 0 <= t.best <= t.p50 <= t.p75 <= t.p90 <= t.p95 <= t.p99
        assert t.best <= t.mean
    assert interleave(calls, rounds=2, seconds=0.01)["a"].calls > 2


def test_slow_calls_end_in_time():
    """A call that fills its turn alone is made once a turn; when time is over, three rounds are made all the same."""
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    timings = interleave(calls, rounds=9, seconds=0, warmup=0, within=0)
    assert "".join(order) == "ab" * 4
    assert [timing.calls for timing in timings.values()] == [3, 3]
    assert interleave(calls, rounds=5, seconds=0, within=60)["a"].calls == 5


def test_models_and_engines_at_every_size(tmp_path):
    paths = [zoo.get(name).make() for name in ("onnx-bert-14-eager", "ort-fused-bert")]
    report = bench(paths, (1, 3), (4, 9), (1,), tmp_path, precisions=("fp32", "int8"), **QUICK)
    data = report.data()
    names = [f"{name}/model.onnx by {engine}" for name in ("onnx-bert-14-eager", "ort-fused-bert")
             for engine in ("onnxruntime", "fusebert fp32", "fusebert int8")]  # fmt: skip
    places = [(engine, size, 1) for size in ("1x4", "1x9", "3x4", "3x9") for engine in names]
    for table in ("speed", "percentiles_ms"):
        assert [(row["engine"], row["size"], row["threads"]) for row in data[table]] == places
    assert {row["ratio"] for row in data["speed"] if row["engine"] == names[0]} == {1}
    assert list(data["speed"][0])[3:] == ["mean_ms", "qps", "tokens/s", "ratio", "noise_%"]
    assert list(data["percentiles_ms"][0])[3:] == ["deviation", "p50", "p75", "p90", "p95", "p99"]
    assert data["cores"] >= 1
    assert set(data["versions"]) == {"fusebert", "onnxruntime"}
    assert data["cpu"]


def test_the_file_is_fastest_first_with_the_usual_columns(model, tmp_path):
    report = bench([model], (1, 2), (8,), (1,), tmp_path / "results", average_length=3, level=1, **QUICK)
    (file,) = tmp_path.glob("results/perf_results_*.txt")
    assert str(file) == report.facts["file"]
    assert re.fullmatch(r"perf_results_CPU_B1-2_S8_\d{8}-\d{6}\.txt", file.name)
    header, *lines = (line.split("\t") for line in file.read_text().splitlines())
    assert header == COLUMNS
    cells = [dict(zip(header, line, strict=True)) for line in lines]
    assert [float(c["Latency(ms)"]) for c in cells] == sorted(float(c["Latency(ms)"]) for c in cells)
    assert {c["batch_size"] for c in cells} == {"1", "2"}
    for c in cells:
        assert c["model"] == f"{model} by onnxruntime"
        assert [c[n] for n in COLUMNS[8:10]] == ["1", "1"]
        assert [c[n] for n in COLUMNS[11:]] == ["8", "2", "2", "False", "False", "3", "False"]
        assert all(re.fullmatch(r"\d+\.\d\d", c[n]) for n in COLUMNS[:7])
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(FusebertError, match="cannot be written"):
        bench([model], (1,), (8,), (1,), tmp_path / "file", **QUICK)


@pytest.mark.parametrize("p90", [1.4, 1.6])
def test_a_ratio_that_was_measured_in_noise_is_marked(p90, model, monkeypatch):
    """Where one of ten calls takes half as long again as the median one."""
    timing = Timing(best=1, mean=8, p50=1, p75=1, p90=p90, p95=9, p99=40, deviation=9, calls=99)
    monkeypatch.setattr("fusebert.measure.bench.interleave", lambda calls, *_, **__: dict.fromkeys(calls, timing))
    report = bench([model], (1,), (4,), (1,), **QUICK)
    (row,) = report.data()["speed"]
    assert (row["ratio"], row["noise_%"]) == (1, round(100 * p90) - 100)
    assert any("Measured in noise, so that ratios say little" in note for note in report.notes) == (p90 > 1.5)


def test_a_file_is_written_only_where_one_is_asked_for(model, tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    before = sorted(tmp_path.rglob("*"))
    assert bench([model], (1,), (8,), (1,), **QUICK).facts["file"] == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_the_file_counts_the_calls_that_were_made(model, tmp_path):
    report = bench([model], (1,), (8,), (1,), tmp_path, samples=7, run_time=0.01, warmup=0.0)
    header, line = (line.split("\t") for line in (tmp_path / report.facts["file"]).read_text().splitlines())
    made = dict(zip(header, line, strict=True))
    assert 1 <= int(made["test_cases"]) <= 7
    assert int(made["test_times"]) >= 1


def test_without_a_model_the_packaged_one_is_measured(run, minilm):
    shown = json.loads(run("-s", 4, "-n", 1, "-t", 1, "--samples", 1, "--json"))
    assert shown["models"] == [str(minilm)]
    assert [row["engine"] for row in shown["speed"]] == ["torch", "fusebert fp32", "fusebert int8"]
    assert any("No model was given" in note for note in shown["notes"])


def test_rates_follow_from_the_mean_and_the_visible_tokens(model, tmp_path):
    for more, tokens in (({}, 32), ({"average_length": 5}, 20), ({"average_length": 8, "random_length": True}, 32)):
        (row,) = bench([model], (4,), (8,), (1,), tmp_path, **QUICK, **more).data()["speed"]
        assert row["qps"] == pytest.approx(4000 / row["mean_ms"], rel=0.1)
        assert row["tokens/s"] == pytest.approx(row["qps"] * tokens / 4, rel=0.01)


def test_lengths_are_right_on_average():
    random = np.random.default_rng(0)
    for average in (1, 3, 8, 14, 16):
        lengths = pad_to_lengths(random, (4000, 16), average, vary=True).sum(1)
        assert lengths.mean() == pytest.approx(average, rel=0.05)
        assert lengths.min() >= 1
        assert len(set(lengths)) > 1 or average in (1, 16)
        assert (pad_to_lengths(random, (3, 16), average, vary=False).sum(1) == average).all()


def test_each_number_of_threads_has_a_process_of_its_own(model, tmp_path):
    data = bench([model], (1,), (5,), (1, 2), tmp_path, **QUICK).data()
    assert [(row["engine"], row["threads"]) for row in data["speed"]] == [("onnxruntime", 1), ("onnxruntime", 2)]
    with pytest.raises(FusebertError, match="does not exist"):
        bench([tmp_path / "nothing"], threads=(1, 2))


def test_checkpoints_traced_artifacts_and_tensorflow(tmp_path):
    folder = stock.make(tmp_path / "model", "bert", "sequence")
    fusebert.load(folder, "int8").save(tmp_path / "artifact")
    saved = zoo.get("tf-bert-sequence").make()
    more = {"traced": True, "precisions": ("bf16", "bf16"), "inclusive": True, **QUICK}
    report = bench([folder, tmp_path / "artifact", saved], (2,), (6,), (), tmp_path, **more)
    assert [row["engine"] for row in report.data()["speed"]] == [
        "model by torch", "model by torch traced", "model by torch traced with fusebert bf16", "model by fusebert bf16",
        "artifact by fusebert int8",
        "saved_model by tensorflow", "saved_model by fusebert bf16",
    ]  # fmt: skip
    assert set(report.facts["versions"]) == {"fusebert", "torch", "tensorflow"}
    assert any("has its own precision" in note for note in report.notes)


def test_what_fusebert_cannot_run_by_itself_is_told(model, tmp_path):
    report = bench([model], (1,), (4,), (1,), tmp_path, precisions=("fp32", "int8"), **QUICK)
    assert len(report.data()["speed"]) == 1
    assert any("no encoder was found" in note for note in report.notes)


def test_sizes_are_those_that_models_take(tmp_path):
    static, free = (zoo.get(name).make() for name in ("onnx-bert-17-static", "onnx-bert-14-eager"))
    assert bench([static], output_dir=tmp_path, threads=(1,), **QUICK).data()["speed"][0]["size"] == "2x6"
    assert bench([free], output_dir=tmp_path, threads=(1,), **QUICK).data()["speed"][0]["size"] == "1x40"
    with pytest.raises(FusebertError, match="batch size 1 is not possible, only 2"):
        bench([static], (1,), **QUICK)
    with pytest.raises(FusebertError, match="up to 40 tokens, not 41"):
        bench([free], (), (8, 41), (1,), tmp_path, **QUICK)


def test_inputs_can_be_named_for_the_model_that_has_them(model, tmp_path):
    other = tiny.make(tmp_path / "other.onnx", {"y": "p * q"}, {"p": "int64", "q": "int64"})
    told = {"ids": "p", "mask": "q"}
    assert len(bench([model, other], (1,), (4,), (1,), tmp_path, inputs=told, **QUICK).data()["speed"]) == 2
    with pytest.raises(FusebertError, match="no input 'p'"):
        bench([model], (1,), (4,), (1,), tmp_path, inputs=told, **QUICK)


@pytest.mark.parametrize(("settings", "message"), [
    ({"batch_sizes": (0,)}, "batch_size must be at least 1"),
    ({"threads": (0,)}, "threads must be at least 1"),
    ({"samples": 0}, "samples must be at least 1"),
    ({"run_time": 1.0, "test_times": 3}, "not both"),
    ({"run_time": -1.0}, "seconds"),
    ({"average_length": 9, "sequence_lengths": (8,)}, "more than the sequence length"),
    ({"level": 3, "sequence_lengths": (8,)}, "level 3 is unknown"),
    ({"precisions": ("fp8",)}, "is unknown"),
])  # fmt: skip
def test_settings_that_make_no_sense(settings, message):
    with pytest.raises(FusebertError, match=message):
        bench([zoo.get("onnx-bert-14-eager").make()], **{"samples": 1, **settings})


# The command


@pytest.fixture
def run(run):
    return partial(run, "bench")


def test_the_command_and_its_exit_codes(run, model, tmp_path):
    base = ("--samples", 1, "-t", 1, "--output-dir", tmp_path, "--threads", 1)
    assert "onnxruntime" in run(model, "-s", 8, *base)
    sizes = ("-b", "1,2", "-b", 3, "--seq-len", "4,8")
    speed = json.loads(run(model, *sizes, *base, "--json"))["speed"]
    assert [row["size"] for row in speed] == ["1x4", "1x8", "2x4", "2x8", "3x4", "3x8"]
    timed = ("--run-time", 0.05, "--warmup", 0.01, "-r", "-a", 3, "--inclusive", "--opt-level", 0, "--seed", 5)
    assert (
        json.loads(run(model, "-s", 8, "--output-dir", tmp_path, *timed, "--json"))["calls"] == "for 0.05 s, in turns"
    )
    folder = make_checkpoint(tmp_path / "checkpoint")
    for flags, precision in (
        (("--quantization",), "int8"),
        (("--bfloat16",), "bf16"),
        (("-q", "--bfloat16"), "int8-bf16"),
        (("--precision", "fp32"), "fp32"),
    ):
        engines = [row["engine"] for row in json.loads(run(folder, "-s", 4, *flags, *base, "--json"))["speed"]]
        assert engines == ["torch", f"fusebert {precision}"]
    assert "No such option: --bf16" in run(model, "--bf16", code=2)
    assert "whole numbers" in run(model, "-b", "1,x", code=2)
    assert "does not exist" in run(tmp_path / "nothing", code=2)
    assert json.loads(run(tmp_path / "nothing", "--json", code=2))["error"]
