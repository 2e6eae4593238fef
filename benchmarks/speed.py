"""fusebert beside what could be used instead: one run, rounds interleaved, equal threads; `make bench`.

    python benchmarks/speed.py [--model minilm,base,modernbert] [--shapes 1x128,32x128r] [--engines fusebert,openvino]
                               [-o build/speed.json]
    python benchmarks/speed.py --readme README.md build/speed.json    # no run: its table into the README

Models have random weights. A shape is batch x length; with an r behind it, rows have real lengths (0.41 of the length
on average). docs/speed.md says how to read the figures."""

import argparse
import json
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import figures
import growth
import numpy as np
from ceiling import KINDS, Ceiling
from models import MODELS, SHAPES, checkpoint, inputs, operations, weights
from rivals import Call, Engine, Forms, Ready, engines, versions
from turns import in_turns

from fusebert.cli.show import show
from fusebert.engine.native import cores, isa, multiplies_bf16
from fusebert.measure.timing import Timing

PLACE = Path(__file__).parents[1] / "build" / "speed"
PROBE = inputs("4x64r")  # what every engine answers before it takes part
_SHAPES = "1x16,1x128,8x128,1x384,32x128r,1x512"
COSINES = {"fp32": 0.9999, "bf16": 0.999, "int8": 0.97}  # to stock fp32; who answers worse does not take part
BYTES = {"fp32": 4, "bf16": 2 if multiplies_bf16() else 4, "int8": 1}  # of a weight, as the engine holds it


@dataclass(frozen=True)
class Result:
    """One engine at one shape. Rates are of real tokens; ratios are to the best rival of the same precision."""

    model: str
    shape: str
    engine: str
    precision: str
    ours: bool
    pads: bool
    ms: float
    p50_ms: float
    sequences_per_second: float
    tokens_per_second: float
    gops: float
    of_ceiling: float
    weights_of_memory: float  # reading every weight once, as a share of what memory can do
    best_rival: str | None = None
    ratio: float | None = None
    best_padding_rival: str | None = None
    padding_ratio: float | None = None


class Field:
    """The engines that take part with one model, each checked against stock fp32."""

    def __init__(self, model: str, wanted: Sequence[str], threads: int) -> None:
        forms = Forms(checkpoint(model, PLACE / model / "checkpoint"))
        self.encoder = forms.encoder
        self.ready: dict[Engine, Ready] = {}
        self.cosines: dict[str, float] = {}
        self.skipped: dict[str, str] = {}
        truth: Any = None
        for engine in engines():
            if truth is not None and not engine.name.startswith(tuple(wanted)):
                continue
            if find_spec(engine.package) is None:
                self.skipped[engine.name] = f"{engine.package} is not installed"
                continue
            try:
                ready = engine.make(forms, threads)
                rows = np.asarray(ready(*PROBE)())
            except Exception as error:  # a rival that cannot run is told, and the others still run
                self.skipped[engine.name] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
                continue
            truth = rows if truth is None else truth
            cosine = _cosine(rows, truth)
            self.cosines[engine.name] = cosine
            if cosine < COSINES[engine.precision]:
                self.skipped[engine.name] = f"its answers are wrong: cosine {cosine:.4f} to stock fp32"
            else:
                self.ready[engine] = ready


def _cosine(rows: Any, truth: Any) -> float:
    """Of the visible rows; of the first tokens' where an engine gives no others."""
    seen = PROBE[1][:, : rows.shape[1]] != 0
    pair = (rows, truth[:, 0]) if rows.ndim == 2 else (rows[seen], truth[:, : rows.shape[1]][seen])
    a, b = (one.astype(np.float64).ravel() for one in pair)
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def measure(model: str, shape: str, field: Field, ceiling: Ceiling, seconds: float) -> list[Result]:
    """All engines at one shape, and the ceiling in turns with them."""
    ids, mask = inputs(shape)
    calls: dict[str, Call] = {engine.name: ready(ids, mask) for engine, ready in field.ready.items()}
    timings = in_turns(calls | ceiling.calls(), seconds)

    def result(engine: Engine, t: Timing) -> Result:
        gops = operations(field.encoder, mask) / t.best / 1e6
        read = weights(field.encoder) * BYTES[engine.precision] / t.best / 1e6
        return Result(
            model, shape, engine.name, engine.precision, engine.ours, engine.pads, t.best, t.p50,
            sequences_per_second=len(ids) / t.best * 1e3, tokens_per_second=int(mask.sum()) / t.best * 1e3, gops=gops,
            of_ceiling=gops / ceiling.reached[engine.precision], weights_of_memory=read / ceiling.reached["memory"],
        )  # fmt: skip

    return compared([result(engine, timings[engine.name]) for engine in field.ready])


def compared(results: list[Result]) -> list[Result]:
    """The results of one shape, ours with their ratios to rivals."""

    def best(precision: str, pads: bool) -> Result | None:
        rivals = [r for r in results if not r.ours and r.precision == precision and (r.pads or not pads)]
        return min(rivals, key=lambda r: r.ms, default=None)

    found = []
    for one in results:
        if one.ours and (rival := best(one.precision, pads=False)):
            one = replace(one, best_rival=rival.engine, ratio=rival.ms / one.ms)
        if one.ours and (rival := best(one.precision, pads=True)):
            one = replace(one, best_padding_rival=rival.engine, padding_ratio=rival.ms / one.ms)
        found.append(one)
    return found


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Everything, as JSON values."""
    results: list[Result] = []
    cosines, skipped, peaks = {}, {}, dict.fromkeys(KINDS, 0.0)
    names = given.model.split(",")
    for model in names:
        field = Field(model, given.engines.split(","), given.threads)
        cosines[model], skipped[model] = field.cosines, field.skipped
        for shape in (given.shapes or SHAPES.get(model, _SHAPES)).split(","):
            ceiling = Ceiling(given.threads)
            results += measure(model, shape, field, ceiling, given.seconds)
            peaks = {kind: max(peak, ceiling.reached[kind]) for kind, peak in peaks.items()}
        del field  # the memory of all its engines
    subject = "base" if "base" in names else names[0]
    folder = PLACE / subject / "checkpoint"
    small = checkpoint("minilm", PLACE / "minilm" / "checkpoint")
    few = given.seconds / 6  # for each precision of a table
    more = [growth.tokens(folder, given.threads, few), growth.layers(folder, given.threads, few)]
    more += [growth.memory(folder, given.threads), growth.calls(small, given.threads, few)]
    return {
        "machine": machine(given.threads),
        "ceiling": {kind: {"giga_per_second": peaks[kind], "by": how} for kind, how in ceiling.how().items()},
        "results": [asdict(result) for result in results],
        "cosines": cosines,
        "skipped": skipped,
        "growth": {"model": subject, "tables": [asdict(table) for table in more]},
    }


def machine(threads: int) -> dict[str, Any]:
    """Facts about where this was measured."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return {
        "date": time.strftime("%Y-%m-%d"), "cpu": cpu, "instruction_set": isa(), "cores": cores(), "threads": threads,
        "python": platform.python_version(), "versions": versions(),
    }  # fmt: skip


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model",
        default=",".join(n for n in MODELS if n != "large"),
        help=f"of {', '.join(MODELS)}; large needs 16 GB",
    )
    parser.add_argument("--shapes", help=f"{_SHAPES} for BERT, fewer for others, unless given")
    parser.add_argument("--engines", default="", help="only those whose names begin so; torch fp32 always runs")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--seconds", type=float, default=60, help="for a shape; three rounds are made in any case")
    parser.add_argument("-o", "--output", type=Path, help="JSON, and a plot beside it")
    parser.add_argument("--readme", type=Path, help="write the table of FROM into this file, between its speed marks")
    parser.add_argument("source", type=Path, nargs="?", metavar="FROM", help="the JSON of a run")
    given = parser.parse_args()
    if given.readme:
        if given.source is None:
            parser.error("--readme needs the JSON of a run")
        figures.write(given.readme, json.loads(given.source.read_text()))
        return
    if unknown := set(given.model.split(",")) - set(MODELS):
        parser.error(f"--model {','.join(unknown)}: known are {', '.join(MODELS)}")
    data = run(given)
    if given.output:
        given.output.parent.mkdir(parents=True, exist_ok=True)
        given.output.write_text(json.dumps(data, indent=1) + "\n")
        if find_spec("matplotlib"):
            figures.plot(data, given.output.with_suffix(".svg"))
    show(figures.report(data))


if __name__ == "__main__":
    main()
