"""The fused encoder inside PyTorch beside stock models, eager and traced, interleaved in one run, equal threads.

    python benchmarks/torch_dropin.py [--models minilm,base] [--shapes 1x128,32x128r] [--precisions fp32,int8]

A shape is batch x length; with an r behind it, rows have real lengths (0.41 of the length on average) and hidden
positions are skipped, as under a classifier. The last table is what a call costs beyond the bare engine."""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from models import SIZES, inputs
from turns import OVERHEAD, SHORT, Bare, in_turns, overhead

import fusebert.torch
from fusebert.engine import cores, isa, pool
from fusebert.plan import PRECISIONS
from fusebert.report import Report, Table
from fusebert.show import show
from fusebert.torch.packing import Recipe, packed_engine

fusebert.torch.disable()


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


def beyond(model: Any, precision: str, shape: str, threads: int, seconds: float) -> tuple[Any, ...]:
    """A call of the fused encoder, and the engine it has packed on the same rows with threads of its own."""
    encoder = model.bert.encoder
    batch, length = map(int, shape.split("x"))
    rows, mask = torch.randn(batch, length, model.config.hidden_size), torch.zeros(batch, 1, 1, length)
    fused = encoder(rows, mask).last_hidden_state.numpy()
    wiring = encoder.fusebert.wiring
    recipe = Recipe(tuple(wiring.heads), wiring.activation, wiring.epsilon, precision)
    bare = Bare(packed_engine(wiring.weights(), recipe), rows.numpy(), pool(threads))
    bare.call()
    if not (fused == bare.output).all():
        raise SystemExit("the fused encoder and the engine do not give the same bits")
    return shape, precision, *overhead(lambda: encoder(rows, mask), bare.call, seconds)


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
        Table("the_fused_encoder_beyond_the_bare_engine", ("model", *OVERHEAD), tuple(spent)),
    )
    facts = {"threads": arguments.threads, "instruction_set": isa()}
    show(Report("the drop-in encoder and stock PyTorch, interleaved", facts, tables), arguments.json)


if __name__ == "__main__":
    main()
