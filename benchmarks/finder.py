"""Reading and finding: seconds for graphs as deep as BERT-large and deeper, and memory for a file of 440 MB.

    python benchmarks/finder.py [--layers 6,12,24,48] [--models onnx-bert-14-sdpa,tf-bert] [--memory] [--json]

Models are exported by the tests' makers with tiny weights, once, into build/finder. Those of TensorFlow need
`make build/legacy/.installed`."""

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fusebert
from fusebert.cli.show import show
from fusebert.report import Report, Table
from fusebert.verbs.inspect import inspect

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "finder"
MODELS = "onnx-bert-14-eager,onnx-bert-14-sdpa,onnx-bert-dynamo-sdpa,tf-bert,tf-official-first,tf1-frozen"
ROUNDS = 3

sys.path.insert(0, str(ROOT / "tests"))
zoo: Any = importlib.import_module("zoo")
workshop: Any = importlib.import_module("zoo.workshop")


def make(names: list[str], depths: list[int]) -> None:
    """Exports what is missing, each maker's models in one process."""
    jobs: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        entry = zoo.ZOO[name]
        for layers in depths:
            folder = PLACE / f"{name}-{layers}"
            recipe = entry.recipe | {"sizes": entry.recipe["sizes"] | {"layers": layers}, "kinds": ["full"]}
            if not folder.is_dir():
                jobs.setdefault(entry.maker, []).append({"folder": str(folder), "recipe": recipe})
    PLACE.mkdir(parents=True, exist_ok=True)
    for maker, wanted in jobs.items():
        workshop.start(maker, wanted, PLACE)


def timed(name: str, layers: int) -> tuple[Any, ...]:
    """The best of some rounds: seconds to read and to find."""
    path = PLACE / f"{name}-{layers}" / zoo.ZOO[name].file
    best: tuple[float, float] = (float("inf"), float("inf"))
    for _ in range(ROUNDS):
        start = time.perf_counter()
        graph = fusebert.read(path)
        middle = time.perf_counter()
        finding = fusebert.find(graph)
        best = min(best, (middle - start, time.perf_counter() - middle), key=sum)
    assert [len(found.layers) for found in finding.encoders] == [layers], finding.misses
    nodes = len(graph.nodes) + sum(len(body.nodes) for body in graph.functions.values())
    return name, layers, nodes, round(best[0], 3), round(best[1], 3), round(sum(best), 3), sum(best) / layers * 1e3


def large() -> Path:
    """BERT-base with random weights, exported by torch: 440 MB."""
    path = PLACE / "base.onnx"
    if not path.is_file():
        import torch
        import transformers

        bert: Any = transformers.BertModel
        config: Any = transformers.BertConfig
        model = bert(config(attn_implementation="sdpa")).eval()

        class Rows(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, ids: Any, mask: Any) -> Any:
                return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

        ids = torch.ones(2, 8, dtype=torch.int64)
        names = ["input_ids", "attention_mask"]
        axes = {name: {0: "batch", 1: "length"} for name in names}
        options: dict[str, Any] = {"opset_version": 14, "dynamo": False, "dynamic_axes": axes, "input_names": names}
        torch.onnx.export(Rows(), (ids, ids), str(path), **options)
    return path


def memory(path: Path) -> list[tuple[str, float, float]]:
    """What each step adds to this process, which has to be a new one: its own memory, and with mapped pages, in MB."""
    steps: list[tuple[str, float, float]] = []
    graphs: list[Any] = []
    takes: tuple[tuple[str, Callable[[], None]], ...] = (
        ("read", lambda: graphs.append(fusebert.read(path))),
        ("find", lambda: graphs.append(fusebert.find(graphs[0]))),
        ("inspect", lambda: graphs.append(inspect(path))),
    )
    for name, step in takes:
        before = _status()
        step()
        after = _status()
        steps.append((name, round((after[0] - before[0]) / 1024, 1), round((after[1] - before[1]) / 1024, 1)))
    return steps


def _status() -> tuple[int, int]:
    """Kilobytes: of its own, and at most so far."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]), int(fields["VmHWM"].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", default="6,12,24,48")
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--memory", action="store_true", help="also how much memory BERT-base needs")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.measure:
        sys.stdout.write(json.dumps(memory(Path(given.measure))))
        return
    names, depths = given.models.split(","), [int(n) for n in given.layers.split(",")]
    make(names, depths)
    rows = [timed(name, layers) for name in names for layers in depths]
    columns = ("model", "layers", "nodes", "read_s", "find_s", "both_s", "ms_per_layer")
    tables = [Table("seconds", columns, tuple(rows))]
    if given.memory:
        path = large()
        command = [sys.executable, __file__, "--measure", str(path)]
        steps = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        title = f"memory_for_{path.stat().st_size >> 20}_MB"
        tables.append(Table(title, ("step", "own_mb", "peak_mb"), tuple(map(tuple, steps))))
    show(Report("Reading and finding", {"rounds": ROUNDS}, tuple(tables)), given.json)


if __name__ == "__main__":
    main()
