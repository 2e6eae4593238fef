"""The fused encoder inside PyTorch beside stock models, eager and traced, interleaved in one run, equal threads.

    python benchmarks/torch_dropin.py [--models minilm,base] [--shapes 1x128,32x128r] [--precisions fp32,int8]

A shape is batch x length; with an r behind it, rows have real lengths (0.41 of the length on average) and hidden
positions are skipped, as under a classifier. The last table is what a call costs beyond the bare engine: between calls
the engine reads all weights, so Python, torch and the model's own objects are no longer in the caches."""

import argparse
from collections.abc import Callable
from functools import partial
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch
import transformers
from models import SIZES, inputs
from turns import SHORT, Bare, in_turns

import fusebert.torch
from fusebert.cli.show import show
from fusebert.engine.native import cores, isa, pool
from fusebert.report import Report, Table
from fusebert.values.precision import PRECISIONS

fusebert.torch.disable()
CALLS = 6  # in a row, as a service makes them
BEYOND = ("shape", "precision", "call_us", "run_us", "bare_call_us", "bare_run_us", "overhead_us")


def make(size: dict[str, int], precision: str | None) -> Any:
    """A random classifier, stock or fused."""
    torch.manual_seed(0)
    config: Any = transformers.BertConfig
    bert: Any = transformers.BertForSequenceClassification
    model = bert(config(**size)).eval()
    return model if precision is None else fusebert.torch.optimize(model, precision)


def ways(models: dict[str, Any], shape: str) -> dict[str, Callable[[], Any]]:
    """Calls by name."""
    call = tuple(map(torch.from_numpy, inputs(shape)))
    found: dict[str, Callable[[], Any]] = {}
    for name, model in models.items():
        traced = torch.jit.trace(model, call, strict=False, check_trace=False)  # type: ignore[no-untyped-call]
        found[f"{name} eager"] = partial(model, *call)
        found[f"{name} traced"] = partial(torch.jit.freeze(traced), *call)
    return found


class Watch:
    """Stands before the native part of an engine and notes how long its last run took."""

    def __init__(self, native: Any) -> None:
        self._native, self.spent = native, 0.0

    def run(self, *arguments: Any, **named: Any) -> None:
        """As the native part."""
        begin = perf_counter()
        self._native.run(*arguments, **named)
        self.spent = perf_counter() - begin


def beyond(model: Any, precision: str, shape: str, threads: int, seconds: float) -> tuple[Any, ...]:
    """Calls of the fused encoder in turns with calls of the engine it has packed, on the same rows with threads of its
    own: microseconds of a call, and of the native run in it; medians. What a call costs beyond the bare engine is told
    by the time outside the run: the run is the same, and its own ups and downs are larger than all the rest."""
    encoder = model.bert.encoder
    batch, length = map(int, shape.split("x"))
    rows, mask = torch.randn(batch, length, model.config.hidden_size), torch.zeros(batch, 1, 1, length)
    fused = encoder(rows, mask).last_hidden_state.numpy()
    engine = encoder.fusebert.packed.engine
    bare = Bare(engine, rows.numpy(), pool(threads))
    bare.call()
    if not (fused == bare.output).all():
        raise SystemExit("the fused encoder and the engine do not give the same bits")
    native = engine._native
    watch = engine._native = Watch(native)
    calls: dict[str, Callable[[], Any]] = {"fused": lambda: encoder(rows, mask), "bare": bare.call}
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    until = perf_counter() + seconds
    while perf_counter() < until:
        for name, call in calls.items():
            sleep(0.06)  # the other's threads spin no more
            call()
            for _ in range(CALLS):
                begin = perf_counter()
                call()
                spent[name].append((perf_counter() - begin, watch.spent))
    engine._native = native
    whole, run = {}, {}
    for name, pairs in spent.items():
        whole[name], run[name] = np.median(1e6 * np.array(pairs), 0)
    outside = {name: 1e6 * np.median([call - inside for call, inside in pairs]) for name, pairs in spent.items()}
    found = (whole["fused"], run["fused"], whole["bare"], run["bare"], outside["fused"] - outside["bare"])
    return shape, precision, *(round(float(number)) for number in found)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--models", default="minilm,base", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--shapes", default="1x128,8x128,32x128r")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--seconds", type=float, default=25, help="for a shape; three rounds are made in any case")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows, spent = [], []
    with torch.no_grad():
        for model in arguments.models.split(","):
            precisions = arguments.precisions.split(",")
            models = {"stock": make(SIZES[model], None)} | {p: make(SIZES[model], p) for p in precisions}
            for shape in arguments.shapes.split(","):
                timings = in_turns(ways(models, shape), arguments.seconds)
                for name, t in timings.items():
                    ratios = [f"{timings[f'stock {form}'].best / t.best:.2f}x" for form in ("eager", "traced")]
                    rows.append((model, shape, name, round(t.best, 2), round(t.p50, 2), *ratios))
            for precision in precisions:
                for shape in SHORT:
                    found = beyond(models[precision], precision, shape, arguments.threads, arguments.seconds / 6)
                    spent.append((model, *found))
    columns = ("model", "shape", "engine", "best_ms", "p50_ms", "against stock eager", "against stock traced")
    tables = (
        Table("timings", columns, tuple(rows)),
        Table("the_fused_encoder_beyond_the_bare_engine", ("model", *BEYOND), tuple(spent)),
    )
    facts = {"threads": arguments.threads, "instruction_set": isa()}
    show(Report("the drop-in encoder and stock PyTorch, interleaved", facts, tables), arguments.json)


if __name__ == "__main__":
    main()
