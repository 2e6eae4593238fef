"""The engine's edges: instruction sets, cores, quantisation, and that nothing else touches the native module."""

import re
import signal
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import SUM_LIMIT, sums_of_four
from encoders import random_encoder

import fusebert
from fusebert import _native
from fusebert.engine import native as engine
from fusebert.errors import FusebertError
from fusebert.ops.primitives import ACTIVATIONS
from fusebert.values.batch import Batch
from fusebert.values.blocks import Linear, Norm
from fusebert.values.network import Dense
from fusebert.values.plan import make_plan


def test_an_unknown_or_unsupported_isa_is_refused(monkeypatch):
    monkeypatch.setenv("FUSEBERT_ISA", "sse9")
    with pytest.raises(FusebertError, match="sse9 is unknown; use one of amx, avx512-bf16"):
        engine.isa()
    missing = {"amx", "avx512-bf16", "avx512-vnni", "avx512", "avx2"} - set(engine.isas())
    for name in missing:
        monkeypatch.setenv("FUSEBERT_ISA", name)
        with pytest.raises(FusebertError, match="this machine has no such instructions"):
            engine.isa()
    monkeypatch.setenv("FUSEBERT_ISA", "plain")
    assert engine.isa() == "plain"
    monkeypatch.delenv("FUSEBERT_ISA")
    assert engine.isa() == engine.isas()[0]


@pytest.mark.parametrize(
    ("group", "files", "quota"),
    [
        ("0::/", {"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        ("0::/", {"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ("0::/a/b", {"sys/fs/cgroup/a/cpu.max": "100000 100000", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, 1),
        ("0::/gone", {"sys/fs/cgroup/cpu.max": "100000 100000"}, 1),
        (
            "3:cpu,cpuacct:/x",
            {"sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000"},
            1,
        ),
        (
            "3:cpu:/",
            {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
        ("0::/", {"sys/fs/cgroup/cpu.max": "max 100000"}, None),
        ("0::/", {"sys/fs/cgroup/cpu.max": "rubbish"}, None),
        ("", {}, None),
    ],
)
def test_cores_honour_cgroup_quotas(tmp_path, group, files, quota):
    for name, text in {"proc/self/cgroup": group, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    free = _native.cores(str(tmp_path / "nothing"))
    assert _native.cores(str(tmp_path)) == (free if quota is None else min(free, quota))


def test_quantising_beats_plain_rounding(isa):
    weight = np.random.default_rng(0).standard_normal((20, 800)).astype(np.float32)
    values, scales = engine.quantize(weight)
    assert values.dtype == np.int8
    assert values.min() >= -127
    assert max(sums_of_four(values).max(), sums_of_four(-values).max()) <= SUM_LIMIT
    sums = np.maximum(sums_of_four(weight), sums_of_four(-weight)).max((1, 2))
    plain = np.maximum(np.abs(weight).max(1) / 127, sums / SUM_LIMIT)[:, None]
    error = ((values * scales[:, None] - weight) ** 2).sum(1)
    rounding = (((weight / plain).round() * plain - weight) ** 2).sum(1)
    assert (error < 1.05 * rounding).all()
    assert error.sum() < rounding.sum()
    assert (engine.quantize(np.zeros((2, 3), np.float32))[0] == 0).all()
    with pytest.raises(FusebertError, match="not finite"):
        engine.quantize(np.array([[1, np.nan]], np.float32))


@pytest.mark.parametrize("power", [-110, -66, 66, 127])
def test_weights_of_any_size_are_quantised_alike(isa, power):
    """Errors are counted in steps: squares and sums of large weights do not overflow, small ones do not vanish."""
    weight = np.random.default_rng(0).uniform(-1, 1, (8, 77)).astype(np.float32)
    values, scales = engine.quantize(weight)
    values_then, scales_then = engine.quantize(np.ldexp(weight, power))
    assert np.array_equal(values_then, values)
    assert np.array_equal(scales_then, np.ldexp(scales, power))


def test_weights_too_small_for_a_scale_are_nothing(isa):
    values, scales = engine.quantize(np.full((2, 9), 1e-40, np.float32))
    assert (values == 0).all()
    assert np.isfinite(scales).all()


def test_numbers_need_not_be_aligned(isa):
    """Weights of a file may begin at any byte; they give the same bits."""
    numbers = np.random.default_rng(0).standard_normal((3, 20, 40))
    rows = np.ones((4, 20), np.float32)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        aligned = numbers.astype(dtype)
        odd = np.frombuffer(b"\0" + aligned.tobytes(), np.uint8, offset=1).view(dtype).reshape(aligned.shape)
        assert not odd.flags.aligned
        steps = [Dense(Linear(w[0].T, w[1, 0]), "relu", Norm(w[2, 0], w[2, 1], 1e-5)) for w in (aligned, odd)]
        want, got = (engine.DenseEngine(step, "f32", engine.pool(1), "step").run(rows) for step in steps)
        assert np.array_equal(want, got)


def test_native_activations_are_those_of_the_vocabulary():
    rows = np.linspace(-3, 3, 50, dtype=np.float32).reshape(-1, 1)
    assert set(_native.activations()) == set(ACTIVATIONS)
    for name in _native.activations():
        step = Dense(Linear(np.ones((1, 1), np.float32)), name)
        got = engine.DenseEngine(step, "f32", engine.pool(1), "step").run(rows)
        assert np.allclose(got, ACTIVATIONS[name](rows), atol=1e-6), name
    with pytest.raises(FusebertError, match="step: activation 'swish' is unknown"):
        engine.DenseEngine(Dense(Linear(np.ones((1, 1), np.float32)), "swish"), "f32", engine.pool(1), "step")


def test_only_the_engine_imports_the_native_module():
    folder = Path(fusebert.__file__).parent
    importers = {f.name for f in folder.rglob("*.py") if re.search(r"^\s*(from|import) .*_native", f.read_text(), re.M)}
    assert importers == {"native.py"}


def test_an_interrupt_ends_a_long_call():
    """Rows that were not computed yet stay as they were; the next call is none the worse for it."""
    small = random_encoder(hidden=256, heads=4, key_size=64, value_size=64, inner=1024, layers=1)
    long = engine.EncoderEngine(replace(small, order=(0, 1) * 200), make_plan("fp32", 2), engine.pool(1))
    rows = np.random.default_rng(1).normal(size=(1 << 14, 256)).astype(np.float32)
    output, batch = np.full_like(rows, np.nan), Batch.ragged([128] * 128)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with pytest.raises(KeyboardInterrupt):
        long.run_padded(rows, output, batch, [])
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert np.isnan(output[-1]).all()
    few = Batch.ragged([3])
    assert np.isfinite(long.run(rows[:3], few)[0]).all()
