"""Bench: models and engines side by side on the same inputs, their rounds interleaved, so that a noisy machine is noisy
for all of them. Paths in, a Report and a tab-separated file out.

Where there are several numbers of threads, each has a process of its own: frameworks keep those they started with."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.engine.native import cores, isa
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats import hub, write
from fusebert.measure.inputs import Told, UnknownInputError
from fusebert.measure.runners import OnnxRuntime, Runner, open_runner, open_told
from fusebert.measure.samples import Sample, Source, pad_to_lengths
from fusebert.measure.timing import PERCENTILES, Timing, interleave
from fusebert.report import Report, Table
from fusebert.source import Artifact, Checkpoint, GraphSource, TensorFlowSource, open

_USUAL = (1, 128)  # sequences, length
_UNKNOWN_VOCABULARY = 100
_TURNS = 10  # at most
_NOISY = 50  # percent
_FILE_COLUMNS = (
    "Latency(ms)", "Latency_P50", "Latency_P75", "Latency_P90", "Latency_P95", "Latency_P99", "Throughput(QPS)",
    "model", "graph_optimization_level", "intra_op_num_threads", "batch_size", "sequence_length", "test_cases",
    "test_times", "use_gpu", "use_io_binding", "average_sequence_length", "random_sequence_length",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """What is measured, as `bench` takes it; a value, so that another process can be told."""

    models: tuple[str, ...]
    batch_sizes: tuple[int, ...] = ()
    sequence_lengths: tuple[int, ...] = ()
    samples: int = 10
    test_times: int = 0
    run_time: float | None = None
    warmup: float | None = None
    inclusive: bool = False
    average_length: int | None = None
    random_length: bool = False
    precisions: tuple[str, ...] = ()
    traced: bool = False
    level: int = 99
    seed: int = 3
    inputs: Told | None = None

    @property
    def times(self) -> int:
        """How often every sample is run, unless for a time."""
        return self.test_times or max(1, 1000 // self.samples)


@dataclass(frozen=True)
class Measured:
    """One engine at one setting; `tokens` are the visible ones of an average batch, `average` a sequence's."""

    engine: str
    level: str
    threads: int
    batch: int
    length: int
    tokens: float
    timing: Timing

    @property
    def qps(self) -> float:
        """Sequences in a second."""
        return self.batch * 1000 / self.timing.mean

    @property
    def noise(self) -> float:
        """How much longer than the median one of ten calls takes, in percent."""
        return 100 * (self.timing.p90 / self.timing.p50 - 1)


def bench(
    models: Sequence[str | Path] = (),
    batch_sizes: Sequence[int] = (),
    sequence_lengths: Sequence[int] = (),
    threads: Sequence[int] = (),
    output_dir: str | Path | None = None,
    show_progress: bool = False,
    **more: Any,
) -> Report:
    """Measures each model by its own framework and, in `precisions`, by fusebert, at every size and number of threads.
    Without models it measures the packaged one, and that in fp32 and int8 too.

    batch_sizes, sequence_lengths: 1 and 128, or what a model insists on, unless given. threads: all usable cores.
    samples, test_times: different batches, and how often each is run (0: about a thousand calls in all); or run_time,
    seconds for each engine and size. warmup: seconds before. inclusive: counts the time to convert the inputs.
    average_length, random_length: visible tokens of a sequence, and whether they vary. precisions: fusebert beside.
    traced: for checkpoints traced and frozen torch beside, with its own encoder and with ours.
    level: ONNX Runtime's optimisation. seed, inputs: as in compare. output_dir: a folder for a file of the results, as
    ONNX Runtime's perf test writes it; else there is none."""
    given = tuple(str(hub.find(str(path)) or path) for path in models or [hub.packaged_model()])
    settings = _checked(Settings(given, tuple(batch_sizes), tuple(sequence_lengths), **more))
    if not models and not settings.precisions:
        settings = replace(settings, precisions=("fp32", "int8"))
    counts = tuple(threads) or (cores(),)
    if min(counts) < 1:
        raise FusebertError(f"threads must be at least 1, not {min(counts)}")
    measured: list[Measured] = []
    busy = os.getloadavg()[0]
    notes = dict.fromkeys([f"The machine was busy before: load {busy:.1f} on {cores()} cores."] * (busy > cores() / 2))
    notes |= dict.fromkeys(["No model was given: this is the packaged one, all-MiniLM-L6-v2."] * (not models))
    for count in counts:
        alone = len(counts) > 1 or _tensorflow_runs(settings.models)
        found, told = (_in_own_process if alone else measure)(settings, count, show_progress)
        measured += found
        notes |= dict.fromkeys(told)
    file = "" if output_dir is None else _write(settings, measured, Path(output_dir))
    facts = {"models": settings.models, **_machine(measured), "calls": _calls(settings), "file": file}
    noisy = [f"{m.engine}, {m.batch}x{m.length}" for m in measured if m.noise > _NOISY]
    if noisy:
        notes[f"Measured in noise, so that ratios say little: {'; '.join(noisy)}."] = None
    return Report("fusebert bench", facts, _tables(measured, _short_names(settings.models)), tuple(notes))


def measure(settings: Settings, threads: int, show: bool = False) -> tuple[list[Measured], list[str]]:
    """Measures everything with one number of threads, in this process; also returns what there is to say."""
    notes: list[str] = []
    with ExitStack() as stack:
        runners = []
        for runner in _runners(settings, threads, notes):
            runners.append(stack.enter_context(closing(runner)))
            notes += runner.notes
        batches = settings.batch_sizes or (_settled(runners, 0),)
        lengths = settings.sequence_lengths or (_settled(runners, 1),)
        measured = []
        for batch in batches:
            for length in lengths:
                measured += _measure_size(settings, threads, runners, (batch, length), show)
    return measured, notes


def _tensorflow_runs(models: Sequence[str]) -> bool:
    """Whether there is a model for TensorFlow, and that is loaded already, perhaps with other threads."""
    return "tensorflow" in sys.modules and any(isinstance(open(model), TensorFlowSource) for model in models)


def _in_own_process(settings: Settings, threads: int, show: bool) -> tuple[list[Measured], list[str]]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(measure, settings, threads, show).result()


def _checked(settings: Settings) -> Settings:
    least = {"batch_size": settings.batch_sizes, "sequence_length": settings.sequence_lengths,
             "samples": (settings.samples,), "average_length": (settings.average_length or 1,)}  # fmt: skip
    for name, values in least.items():
        if min(values, default=1) < 1:
            raise FusebertError(f"{name} must be at least 1, not {min(values)}")
    if settings.test_times < 0 or (settings.run_time is not None and not 0 < settings.run_time < 1e6):
        raise FusebertError("test_times must be 0 or more, and run_time a number of seconds")
    if settings.test_times and settings.run_time is not None:
        raise FusebertError("give run_time or test_times, not both")
    models, precisions = (tuple(dict.fromkeys(names)) for names in (settings.models, settings.precisions))
    return replace(settings, models=models, precisions=precisions)


def _runners(settings: Settings, threads: int, notes: list[str]) -> Iterator[Runner]:
    """Each model by its own framework, then traced, then in each precision (traced with our encoder, and by itself)."""
    unknown: list[UnknownInputError] = []
    sources = [open(model) for model in settings.models]
    count = sum(isinstance(source, GraphSource) for source in sources)
    for source in sources:
        yield open_told(source, settings.inputs, unknown, count, threads=threads, level=settings.level)
        if isinstance(source, Artifact):
            if settings.precisions:
                notes.append(f"{source.path} is an artifact, which has its own precision.")
            continue
        traced = settings.traced and isinstance(source, Checkpoint)
        if traced:
            yield open_runner(source, None, threads, traced=True)
        for precision in settings.precisions or ("fp32",) * traced:
            try:
                if traced:
                    yield open_runner(source, precision, threads, traced=True, in_torch=True)
                yield open_runner(source, precision, threads)
            except UnsupportedError as error:
                notes.append(f"fusebert cannot run it by itself: {error}.")
                break


def _settled(runners: Sequence[Runner], place: int) -> int:
    """The batch size or length that is usual, or that a model insists on."""
    longest = min((runner.roles.longest for runner in runners if runner.roles.longest), default=_USUAL[1])
    settled = [runner.roles.settled[place] for runner in runners if place in runner.roles.settled]
    return settled[0] if settled else min(_USUAL[place], longest) if place else _USUAL[0]


def _measure_size(
    settings: Settings, threads: int, runners: Sequence[Runner], shape: tuple[int, int], show: bool
) -> list[Measured]:
    for runner in runners:
        _require(runner, shape)
    samples = _samples(settings, runners, shape)
    calls = {runner.name: _call(runner, samples, settings.inclusive) for runner in runners}
    if settings.run_time is None:
        turns = min(settings.times, _TURNS)
        calls_per_turn = -(-settings.samples * settings.times // turns)
        timings = interleave(calls, turns, 0.0, show, times=calls_per_turn, warmup=settings.warmup)
    else:
        warmup = settings.run_time / 10 if settings.warmup is None else settings.warmup
        timings = interleave(calls, _TURNS, settings.run_time / _TURNS, show, warmup=warmup)
    tokens = float(np.mean([sample.mask.sum() for sample in samples]))
    return [
        Measured(
            runner.name, str(settings.level) if isinstance(runner, OnnxRuntime) else "-", threads, *shape, tokens,
            timings[runner.name],
        )
        for runner in runners
    ]  # fmt: skip


def _require(runner: Runner, shape: tuple[int, int]) -> None:
    """Refuses a size that a model is known not to take."""
    for place, word in enumerate(("batch size", "sequence length")):
        settled = runner.roles.settled.get(place, shape[place])
        if shape[place] != settled:
            raise FusebertError(f"{runner.name}: {word} {shape[place]} is not possible, only {settled} is")
    if runner.roles.longest and shape[1] > runner.roles.longest:
        raise FusebertError(f"{runner.name}: it takes up to {runner.roles.longest} tokens, not {shape[1]}")


def _samples(settings: Settings, runners: Sequence[Runner], shape: tuple[int, int]) -> list[Sample]:
    """Inputs that all models take."""
    roles = [runner.roles for runner in runners]
    vocabulary = min((one.vocabulary for one in roles if one.vocabulary), default=_UNKNOWN_VOCABULARY)
    padding = next((n for one in roles for n in (one.hiding_id, one.padding_id) if n is not None), None)
    length = shape[1]
    average = settings.average_length or ((length + 1) // 2 if settings.random_length else length)
    if average > length:
        raise FusebertError(f"average_length {average} is more than the sequence length, {length}")
    source = Source(vocabulary, padding_id=padding)
    random = np.random.default_rng(settings.seed)
    masks = [pad_to_lengths(random, shape, average, settings.random_length) for _ in range(settings.samples)]
    return [source.fill(random, mask) for mask in masks]


def _call(runner: Runner, samples: Sequence[Sample], inclusive: bool) -> Callable[[], Any]:
    """A call that runs the next sample; the first one runs here, where an error is told well."""
    runner.run(samples[0].ids, samples[0].mask, samples[0].types)
    if inclusive:
        given = cycle(samples)

        def convert_and_answer() -> Any:
            sample = next(given)
            return runner.answer(runner.prepare(sample.ids, sample.mask, sample.types))

        return convert_and_answer
    prepared = cycle([runner.prepare(sample.ids, sample.mask, sample.types) for sample in samples])
    return lambda: runner.answer(next(prepared))


def _short_names(models: Sequence[str]) -> dict[str, str]:
    """Of each model as much of its path's end as tells it from the others; of a single one, nothing."""
    if len(models) == 1:
        return {models[0]: ""}
    parts = [Path(model).parts for model in models]
    for count in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-count:]) for part in parts]
        if len(set(names)) == len(names):
            return dict(zip(models, names, strict=True))
    return {}


def _tables(measured: Sequence[Measured], names: Mapping[str, str]) -> tuple[Table, Table]:
    """Speed, and the spread of it; ratios are of medians, to the first engine at the same setting."""
    first: dict[tuple[int, int, int], float] = {}
    speed, spread = [], []
    for m in measured:
        t = m.timing
        setting = m.threads, m.batch, m.length
        ratio = first.setdefault(setting, t.p50) / t.p50
        model, by, how = m.engine.rpartition(" by ")
        place = f"{names.get(model, model)}{by}{how}".removeprefix(" by "), f"{m.batch}x{m.length}", m.threads
        per_second = round(m.qps, 1), round(m.tokens * 1000 / t.mean)
        speed.append((*place, round(t.mean, 3), *per_second, round(ratio, 2), round(m.noise)))
        spread.append((*place, round(t.deviation, 3), *(round(p, 3) for p in (t.p50, t.p75, t.p90, t.p95, t.p99))))
    columns = "engine", "size", "threads"
    return (
        Table("speed", (*columns, "mean_ms", "qps", "tokens/s", "ratio", "noise_%"), tuple(speed)),
        Table("percentiles_ms", (*columns, "deviation", *(f"p{p}" for p in PERCENTILES)), tuple(spread)),
    )


def _write(settings: Settings, measured: Sequence[Measured], folder: Path) -> str:
    """Writes the file, fastest first, and tells where it is. Every engine ran each sample so often, as near as whole
    numbers tell."""
    sizes = {name: "-".join(dict.fromkeys(str(getattr(m, name)) for m in measured)) for name in ("batch", "length")}
    name = f"perf_results_CPU_B{sizes['batch']}_S{sizes['length']}_{time.strftime('%Y%m%d-%H%M%S')}"
    numbered = (folder / f"{name}{f'_{number}' if number > 1 else ''}.txt" for number in range(1, sys.maxsize))
    file = next(file for file in numbered if not file.exists())  # there may be one of the same second
    lines = ["\t".join(_FILE_COLUMNS)]
    for m in sorted(measured, key=lambda m: m.timing.mean):
        t = m.timing
        numbers = [f"{n:.2f}" for n in (t.mean, t.p50, t.p75, t.p90, t.p95, t.p99, m.qps)]
        average = settings.average_length or round(m.tokens / m.batch)
        cases = min(settings.samples, t.calls)
        rest = (m.engine, m.level, m.threads, m.batch, m.length, cases, round(t.calls / cases), False, False)
        lines.append("\t".join([*numbers, *map(str, (*rest, average, settings.random_length))]))
    with write.file(file) as opened:
        opened.write(("\n".join(lines) + "\n").encode())
    return str(file)


def _calls(settings: Settings) -> str:
    if settings.run_time is not None:
        return f"for {settings.run_time:g} s, in turns"
    return f"{settings.samples} samples, {settings.times} times each, in turns"


def _machine(measured: Sequence[Measured]) -> dict[str, Any]:
    """Facts about where this was measured."""
    versions = {"fusebert": _version(["fusebert"])}
    for name, packages in (("onnxruntime", ("onnxruntime",)), ("tensorflow", ("tensorflow", "tensorflow-cpu")),
                           ("torch", ("torch",))):  # fmt: skip
        if any(f" by {name}" in m.engine for m in measured):
            versions[name] = _version(packages)
    return {"cpu": _cpu(), "cores": cores(), "isa": isa(), "python": platform.python_version(), "versions": versions}


def _version(packages: Sequence[str]) -> str:
    from importlib.metadata import PackageNotFoundError, version

    for package in packages:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return "?"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
