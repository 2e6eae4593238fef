"""BERT in ONNX Runtime: as exported, by its own transformers optimizer, by its dynamic int8, as fusebert's stock target
(with either of ONNX Runtime's attention kernels), and with the fused operator; beside them fusebert without ONNX
Runtime, "bare", from ids to rows as well. Interleaved in one run, equal threads.

    python benchmarks/onnx_targets.py [--models minilm,base] [--shapes 1x16,1x128] [--engines plain,fused] [--json]

A shape is batch x length; with an r behind it, rows have real lengths (0.41 of the length on average). An engine is
measured if its name begins with one that is asked for; of fused and bare, both or none."""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from models import SIZES, checkpoint, inputs
from rivals import Forms, feed
from turns import OVERHEAD, SHORT, in_turns, overhead

import fusebert
from fusebert.cli.show import show
from fusebert.engine.native import cores, isa
from fusebert.measure.timing import Timing
from fusebert.onnxruntime import session
from fusebert.ops.graph import Array
from fusebert.report import Report, Table
from fusebert.rewrite.onnx import rewrite_onnx, rewrite_stock
from fusebert.source import OnnxFile
from fusebert.values.precision import PRECISIONS
from fusebert.values.target import FusedOnnx, StockOnnx

PLACE = Path(__file__).parents[1] / "build" / "speed"
SHAPES = "1x16,1x128,8x128,1x384,32x128r"
FORMS = {"plain": "onnx", "optimizer": "optimized", "dynamic int8": "dynamic"}
STOCK = {
    "stock attention": StockOnnx(), "stock multi-head": StockOnnx(multi_head=True), "stock int8": StockOnnx("int8"),
}  # fmt: skip
OURS = tuple(f"{way} {precision}" for precision in PRECISIONS for way in ("fused", "bare"))
ENGINES = (*FORMS, *STOCK, *OURS)
COSINE = 0.999  # of a fused model's rows to those of the same precision without ONNX Runtime

Run = Callable[[Mapping[str, Array]], Any]


def write(engine: str, forms: Forms, folder: Path) -> Path:
    """The model as an engine takes it."""
    if engine in FORMS:
        path: Path = getattr(forms, FORMS[engine])
        return path
    out = folder / f"{engine.replace(' ', '-')}.onnx"
    if engine in STOCK:
        rewrite_stock(OnnxFile(forms.onnx), out, STOCK[engine])
    else:
        rewrite_onnx(OnnxFile(forms.onnx), out, FusedOnnx(engine.removeprefix("fused ")))
    return out


def engines(wanted: list[str], name: str, folder: Path, threads: int) -> dict[str, Run]:
    """Ways to run the model by name; each takes the inputs by name and gives the rows."""
    import onnxruntime

    forms = Forms(checkpoint(name, PLACE / name / "checkpoint"))
    made: dict[str, Run] = {}
    for engine in wanted:
        if engine.startswith("bare"):
            made[engine] = partial(_run_bare, fusebert.load(forms.onnx, engine.removeprefix("bare "), threads))
        else:
            settings = onnxruntime.SessionOptions()
            settings.intra_op_num_threads = threads
            made[engine] = partial(_run_session, session(write(engine, forms, folder), settings))
    return made


def _run_bare(model: fusebert.Model, feeds: Mapping[str, Array]) -> Any:
    return model.run(feeds["input_ids"], feeds["attention_mask"], feeds["token_type_ids"])["last_hidden_state"]


def _run_session(running: Any, feeds: Mapping[str, Array]) -> Any:
    return running.run(None, feeds)[0]


def beyond(running: Mapping[str, Run], precision: str, shape: str, seconds: float, shown: bool) -> tuple[Any, ...]:
    """The fused model beside the bare one."""
    feeds = feed(*inputs(shape))
    fused, bare = (partial(running[f"{way} {precision}"], feeds) for way in ("fused", "bare"))
    one, other = (np.asarray(call(), np.float64).ravel() for call in (fused, bare))
    if one @ other < COSINE * np.linalg.norm(one) * np.linalg.norm(other):
        raise SystemExit(f"the fused model and the engine do not give the same rows in {precision}")
    return shape, precision, *overhead(fused, bare, seconds, shown)


def ratios(timings: Mapping[str, Timing]) -> list[tuple[str, float]]:
    """The fused operator against the bare engine, the stock target against upstream's optimizer; over 1 is slower."""
    pairs = [(f"fused {p}", f"bare {p}") for p in PRECISIONS]
    pairs += [(stock, "optimizer") for stock in ("stock attention", "stock multi-head")]
    return [
        (f"{one} / {other}", round(timings[one].best / timings[other].best, 3))
        for one, other in pairs
        if one in timings and other in timings
    ]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="minilm,base", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--engines", default="plain,optimizer,dynamic,stock,fused")
    parser.add_argument("--seconds", type=float, default=20, help="for a shape; three rounds are made in any case")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    begins = tuple(given.engines.split(","))
    wanted = [e for e in ENGINES if e.startswith(begins) or e.replace("bare", "fused").startswith(begins)]
    times: list[tuple[Any, ...]] = []
    compared: list[tuple[Any, ...]] = []
    spent: list[tuple[Any, ...]] = []
    for name in given.models.split(","):
        with tempfile.TemporaryDirectory() as folder:
            running = engines(wanted, name, Path(folder), given.threads)
        for shape in given.shapes.split(","):
            feeds = feed(*inputs(shape))
            timings = in_turns({e: partial(run, feeds) for e, run in running.items()}, given.seconds, not given.json)
            first = timings[wanted[0]].best
            times += [
                (name, shape, e, round(t.best, 2), round(t.p50, 2), round(first / t.best, 2))
                for e, t in timings.items()
            ]
            compared += [(name, shape, *ratio) for ratio in ratios(timings)]
        for precision in [p for p in PRECISIONS if f"fused {p}" in running]:
            for shape in SHORT:
                spent.append((name, *beyond(running, precision, shape, given.seconds / 6, not given.json)))
    tables = (
        Table("times", ("model", "shape", "engine", "best_ms", "p50_ms", f"against {wanted[0]}"), tuple(times)),
        Table("ratios", ("model", "shape", "of", "time"), tuple(compared)),
        Table("the_fused_operator_beyond_the_bare_engine", ("model", *OVERHEAD), tuple(spent)),
    )
    facts = {"threads": given.threads, "instruction_set": isa()}
    show(Report("BERT in ONNX Runtime, interleaved", facts, tables), given.json)


if __name__ == "__main__":
    main()
