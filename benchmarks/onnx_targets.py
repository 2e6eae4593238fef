"""One BERT in ONNX Runtime: as exported, by its own transformers optimizer, by its dynamic int8, as fusebert's stock
target (with either of ONNX Runtime's attention kernels), and with the fused operator; beside them fusebert's engine
without ONNX Runtime. Interleaved in one run, equal threads.

    python benchmarks/onnx_targets.py [--model minilm|base] [--shapes 1x16,1x128] [--engines plain,fused] [--json]

A shape is as in modes.py. An engine is measured if its name begins with one that is asked for. Heavy shapes get fewer
rounds: about so many --seconds for a shape, but one round at least."""

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from models import SIZES, inputs

import fusebert
from fusebert.engine import cores, isa
from fusebert.measure.timing import Timing, interleave
from fusebert.onnxruntime import session
from fusebert.plan import PRECISIONS
from fusebert.report import Report, Table
from fusebert.rewrite.onnx import rewrite_onnx, rewrite_stock
from fusebert.rewrite.places import Wanted
from fusebert.show import show

SHAPES = "1x16,1x128,8x128,1x384,32x128r"
STOCK = {
    "stock attention": Wanted(),
    "stock multi-head": Wanted(multi_head=True),
    "stock int8": Wanted("int8"),
}  # fmt: skip
ENGINES = (
    "plain", "optimizer", "dynamic int8", *STOCK,
    *(f"{way} {precision}" for way in ("fused", "bare") for precision in PRECISIONS),
)  # fmt: skip


def export(name: str, path: Path) -> None:
    """A random BERT with a pooler, by torch's older exporter."""
    import torch
    import transformers

    torch.manual_seed(0)
    config: Any = transformers.BertConfig
    bert: Any = transformers.BertModel

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = bert(config(**SIZES[name], attn_implementation="eager")).eval()

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            answers = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return answers.last_hidden_state, answers.pooler_output

    example = torch.ones(2, 9, dtype=torch.int64)
    names = ["input_ids", "attention_mask", "token_type_ids"]
    torch.onnx.export(
        Wrapped(), (example, example, example * 0), str(path), dynamo=False, opset_version=17, input_names=names,
        output_names=["hidden", "pooled"], dynamic_axes={n: {0: "batch", 1: "length"} for n in names},
    )  # fmt: skip


def write(engine: str, name: str, plain: Path) -> Path:
    """The model as an engine takes it."""
    out = plain.with_name(f"{engine.replace(' ', '-')}.onnx")
    if engine == "optimizer":
        from onnxruntime.transformers.optimizer import optimize_model

        heads, hidden = SIZES[name]["num_attention_heads"], SIZES[name]["hidden_size"]
        optimize_model(str(plain), "bert", num_heads=heads, hidden_size=hidden).save_model_to_file(str(out))
    elif engine == "dynamic int8":
        from onnxruntime.quantization import quantize_dynamic

        quantize_dynamic(str(plain), str(out))
    elif engine in STOCK:
        rewrite_stock(plain, out, STOCK[engine])
    elif engine.startswith("fused"):
        rewrite_onnx(plain, out, Wanted(engine.removeprefix("fused ")))
    return out


def engines(wanted: list[str], name: str, folder: Path, threads: int) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    """Ways to run the model by name; each takes the inputs by name."""
    import onnxruntime

    plain = folder / "plain.onnx"
    export(name, plain)
    made: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    for engine in wanted:
        if engine.startswith("bare"):
            model = fusebert.load(plain, engine.removeprefix("bare "), threads)
            made[engine] = partial(_run_bare, model)
            continue
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        running = session(write(engine, name, plain), settings)
        made[engine] = partial(running.run, None)
    return made


def _run_bare(model: Any, feeds: Mapping[str, Any]) -> Any:
    return model.run(feeds["input_ids"], feeds["attention_mask"], feeds["token_type_ids"])


def measure(calls: Mapping[str, Callable[[], Any]], seconds: float, show_progress: bool) -> dict[str, Timing]:
    """As many rounds as there is time for."""
    turn = 0.1  # seconds of an engine in a round, or one call
    whole = 0.0
    for call in calls.values():
        call()
        start = time.perf_counter()
        call()
        taken = time.perf_counter() - start
        whole += taken + max(taken, turn)
    rounds = int(min(9, max(1, seconds / whole - 1)))
    return interleave(calls, rounds, turn, show_progress)


def ratios(timings: Mapping[str, Timing]) -> list[tuple[str, float]]:
    """What the issue of speed is about: the fused operator against the bare engine, the stock target against upstream's
    optimizer; over 1 is slower."""
    pairs = [(f"fused {p}", f"bare {p}") for p in PRECISIONS]
    pairs += [(stock, "optimizer") for stock in ("stock attention", "stock multi-head")]
    return [
        (f"{one} / {other}", round(timings[one].best / timings[other].best, 3))
        for one, other in pairs
        if one in timings and other in timings
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=("minilm", "base"), default="minilm")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--engines", default="plain,optimizer,dynamic,stock,fused,bare")
    parser.add_argument("--seconds", type=float, default=25)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    wanted = [engine for engine in ENGINES if engine.startswith(tuple(given.engines.split(",")))]
    times: list[tuple[Any, ...]] = []
    compared: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        running = engines(wanted, given.model, Path(folder), given.threads)
        for shape in given.shapes.split(","):
            ids, mask = inputs(shape)
            feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            timings = measure({e: partial(run, feeds) for e, run in running.items()}, given.seconds, not given.json)
            first = timings[wanted[0]].best
            times += [
                (shape, e, round(t.best, 2), round(t.p50, 2), round(first / t.best, 2)) for e, t in timings.items()
            ]
            compared += [(shape, *ratio) for ratio in ratios(timings)]
    tables = (
        Table("times", ("shape", "engine", "best_ms", "p50_ms", f"against {wanted[0]}"), tuple(times)),
        Table("ratios", ("shape", "of", "time"), tuple(compared)),
    )
    show(Report(f"{given.model} in ONNX Runtime, {given.threads} threads, {isa()}", {}, tables), given.json)


if __name__ == "__main__":
    main()
