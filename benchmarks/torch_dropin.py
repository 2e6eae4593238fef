"""The fused encoder inside PyTorch beside stock models, eager and traced, interleaved in one run, equal threads.

    python benchmarks/torch_dropin.py [--models minilm,base] [--shapes 1x128,32x128r] [--precisions fp32,int8]

A shape is batch x length; with an r behind it, rows have real lengths (0.41 of the length on average) and hidden
positions are skipped, as under a classifier. The last table is what a call costs beyond the bare engine."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import transformers
from models import SIZES, inputs

import fusebert.torch
from fusebert.encoder import Batch
from fusebert.engine import cores, isa
from fusebert.measure.timing import interleave
from fusebert.plan import PRECISIONS
from fusebert.report import Report, Table
from fusebert.show import show
from fusebert.torch.packing import Recipe, packed_engine, thread_pool

fusebert.torch.disable()

_ROWS = 16  # of the call whose overhead is measured: so few that it would show


def make(size: dict[str, int], precision: str | None) -> Any:
    """A random classifier, stock or fused."""
    torch.manual_seed(0)
    config: Any = transformers.BertConfig
    bert: Any = transformers.BertForSequenceClassification
    model = bert(config(**size)).eval()
    return model if precision is None else fusebert.torch.optimize(model, precision)


def ways(size: dict[str, int], precisions: list[str], shape: str) -> dict[str, Callable[[], Any]]:
    """Calls by name."""
    call = tuple(map(torch.from_numpy, inputs(shape)))
    found: dict[str, Callable[[], Any]] = {}
    for name, precision in {"stock": None, **{p: p for p in precisions}}.items():
        model = make(size, precision)
        traced = torch.jit.trace(model, call, strict=False)  # type: ignore[no-untyped-call]
        found[f"{name} eager"] = partial(model, *call)
        found[f"{name} traced"] = partial(torch.jit.freeze(traced), *call)
    return found


def overhead(size: dict[str, int], rounds: int) -> tuple[Any, ...]:
    """Microseconds of a call of the fused encoder on 1 x 16 rows, of the bare engine on them, and the difference."""
    encoder = make(size, "fp32").bert.encoder
    rows, mask = torch.randn(1, _ROWS, size["hidden_size"]), torch.zeros(1, 1, 1, _ROWS)
    wiring = encoder.fusebert.wiring
    engine = packed_engine(wiring.weights(), Recipe(tuple(wiring.heads), wiring.activation, wiring.epsilon))
    flat, batch, pool = rows[0].numpy(), Batch.ragged([_ROWS]), thread_pool(0)
    output = np.empty_like(flat)
    calls = {"fused": lambda: encoder(rows, mask), "bare": lambda: engine.run_padded(flat, output, batch, [], pool)}
    timings = interleave(calls, 4 * rounds, show=True)
    fused, bare = timings["fused"].best * 1e3, timings["bare"].best * 1e3
    return round(fused), round(bare), round(fused - bare)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--models", default="minilm,base", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--shapes", default="1x128,8x128,32x128r")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows, spent = [], []
    with torch.no_grad():
        for model in arguments.models.split(","):
            for shape in arguments.shapes.split(","):
                calls = ways(SIZES[model], arguments.precisions.split(","), shape)
                timings = interleave(calls, arguments.rounds, show=True)
                for name, t in timings.items():
                    ratios = [f"{timings[f'stock {form}'].best / t.best:.2f}x" for form in ("eager", "traced")]
                    rows.append((model, shape, name, round(t.best, 2), round(t.p90, 2), *ratios))
            spent.append((model, *overhead(SIZES[model], arguments.rounds)))
    columns = ("model", "shape", "engine", "best_ms", "p90_ms", "against stock eager", "against stock traced")
    tables = (
        Table("timings", columns, tuple(rows)),
        Table(f"a call on {_ROWS} rows, microseconds", ("model", "fused", "bare engine", "overhead"), tuple(spent)),
    )
    facts = {"threads": arguments.threads, "instruction_set": isa()}
    show(Report("the drop-in encoder and stock PyTorch, interleaved", facts, tables), arguments.json)


if __name__ == "__main__":
    main()
