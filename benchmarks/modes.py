"""Our four precisions and stock PyTorch on random BERT models, interleaved in one run, equal threads.

    python benchmarks/modes.py [--model minilm|base|large] [--shapes 1x128,8x128,8x128r] [--json]

A shape is batch x length; with an r behind it, rows have real lengths (0.41 of the length on average)."""

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import fusebert
from fusebert.engine import cores, isa
from fusebert.graph import Array
from fusebert.measure.timing import interleave
from fusebert.plan import PRECISIONS
from fusebert.report import Report, Table
from fusebert.show import show

SIZES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "large": {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
}


def inputs(shape: str) -> tuple[Array, Array]:
    """Random ids and 0/1 rows."""
    batch, length = (int(n) for n in shape.rstrip("r").split("x"))
    random = np.random.default_rng(1)
    lengths = np.full(batch, length)
    if shape.endswith("r"):
        lengths = np.clip(random.normal(0.41 * length, 0.13 * length, batch).astype(int), min(8, length), length)
    return random.integers(1000, 30000, (batch, length)), (np.arange(length) < lengths[:, None]).astype(np.int64)


def operations(size: dict[str, int], mask: Array) -> float:
    """Multiplications and additions of the products, for the visible tokens."""
    hidden, inner = size["hidden_size"], size["intermediate_size"]
    lengths = mask.sum(1).astype(float)
    per_layer = lengths.sum() * 2 * (4 * hidden * hidden + 2 * hidden * inner) + 4 * hidden * (lengths**2).sum()
    return float(size["num_hidden_layers"] * per_layer)


def engines(name: str, folder: Path, threads: int) -> dict[str, Callable[[Array, Array], Any]]:
    """Ways to run the model by name."""
    import torch
    import transformers

    torch.manual_seed(0)
    torch.set_num_threads(threads)
    bert: Any = transformers.BertModel
    config: Any = transformers.BertConfig
    stock = bert(config(**SIZES[name])).eval()
    stock.save_pretrained(folder)

    def torch_call(ids: Array, mask: Array) -> Any:
        with torch.no_grad():
            return stock(torch.from_numpy(ids), torch.from_numpy(mask))

    ours = {precision: fusebert.load(folder, precision, threads).run for precision in PRECISIONS}
    return {"torch fp32": torch_call, **ours}


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SIZES, default="minilm")
    parser.add_argument("--shapes", default="1x16,1x128,8x128,8x128r,1x384")
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        ways = engines(arguments.model, Path(folder), arguments.threads)
        for shape in arguments.shapes.split(","):
            ids, mask = inputs(shape)
            calls = {name: partial(way, ids, mask) for name, way in ways.items()}
            timings = interleave(calls, arguments.rounds, show=True)
            work = operations(SIZES[arguments.model], mask)
            for name, t in timings.items():
                ratio = timings["torch fp32"].best / t.best
                gops = round(work / t.best / 1e6, 1)
                rows.append(
                    (
                        shape,
                        name,
                        round(t.best, 2),
                        round(t.p90, 2),
                        round(len(ids) / t.best * 1e3, 1),
                        gops,
                        f"{ratio:.2f}x",
                    )
                )
    columns = ("shape", "engine", "best_ms", "p90_ms", "sequences/s", "Gop/s", "against torch")
    facts = {"model": arguments.model, "threads": arguments.threads, "instruction_set": isa()}
    show(
        Report("precisions and stock PyTorch, interleaved", facts, (Table("timings", columns, tuple(rows)),)),
        arguments.json,
    )


if __name__ == "__main__":
    main()
