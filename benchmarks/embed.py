"""How much of the engine's own speed `fusebert embed` keeps: reading, tokenising and writing run beside it.

    python benchmarks/embed.py DATA... [--rows 20000] [--model FOLDER] [--precision int8] [--rounds 1] [--json]
                               [--ray] [--rival] [--rival-rows 2000]

DATA are files with one text on a line, or .tsv, whose longer cells are the texts; they are repeated. In turns: the
engine alone on tokens that are ready, `embed` to Parquet parts, with --ray also on Ray with one worker (starting Ray is
not counted; starting the worker and loading its model is, some seconds that many rows share), and with --rival
sentence-transformers in fp32, here and by Ray Data, on fewer rows."""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import fusebert
from fusebert.cli.show import show, show_status
from fusebert.cluster import connected
from fusebert.engine.native import cores
from fusebert.formats.dataset import read_rows
from fusebert.formats.hub import packaged_model
from fusebert.report import Report, Table
from fusebert.verbs.windows import Place, Settings, Worker, windows


def texts(paths: list[Path], rows: int) -> list[str]:
    """So many texts, those of the files again and again."""
    lines = [line for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    found = [cell for cell in (cell.strip() for line in lines for cell in line.split("\t")) if len(cell) > 20]
    return [found[i % len(found)] for i in range(rows)]


class Encoder:
    """sentence-transformers, as its users give it to Ray Data."""

    def __init__(self, path: str) -> None:
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(path, device="cpu")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The batch with vectors."""
        return {"embedding": np.asarray(self._model.encode(list(batch["text"]), batch_size=64))}


def rivals(given: argparse.Namespace, some: list[str], ray: Any) -> dict[str, Callable[[], object]]:
    """What else could be used."""
    here = Encoder(str(given.model))
    kinds: dict[str, Callable[[], object]] = {"sentence-transformers fp32": lambda: here({"text": some})}
    if ray:

        def spread() -> None:
            options: dict[str, Any] = {"fn_constructor_args": (str(given.model),), "num_cpus": cores()}
            found = ray.data.from_items([{"text": text} for text in some])
            pool = ray.data.ActorPoolStrategy(size=1)
            found.map_batches(Encoder, batch_size=512, compute=pool, **options).materialize()

        kinds["Ray Data with sentence-transformers"] = spread
    return kinds


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--model", type=Path, default=packaged_model())
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--ray", action="store_true")
    parser.add_argument("--rival", action="store_true")
    parser.add_argument("--rival-rows", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    given = parse()
    model = fusebert.load(given.model, given.precision)
    best: dict[str, float] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ray = stack.enter_context(connected(None, cores())) if given.ray else None
        data = folder / "data.txt"
        data.write_text("\n".join(texts(given.data, given.rows)) + "\n", encoding="utf-8")
        worker = Worker(model, Settings())
        ready = [worker.tokenise(window)[1] for window in windows(read_rows([data], ("text",)), Settings())]
        tokens = [len(one.ids) for window in ready for one in window]

        def engine() -> None:
            for window in ready:
                model.encode(window)

        def tokenise() -> None:
            for window in windows(read_rows([data], ("text",)), Settings()):
                worker.tokenise(window)

        def whole(place: Place) -> None:
            fusebert.embed(model, data, folder / f"out{time.monotonic_ns()}", place=place)

        kinds: dict[str, Callable[[], object]] = {
            "engine alone": engine,
            "reading and tokenising": tokenise,
            "fusebert embed": lambda: whole(Place()),
        }
        if given.ray:
            kinds["fusebert embed --on ray"] = lambda: whole(Place("ray", 1))
        other = rivals(given, texts(given.data, given.rival_rows), ray) if given.rival else {}
        for _ in range(given.rounds):
            for name, call in {**kinds, **other}.items():
                start = time.perf_counter()
                call()
                seconds = time.perf_counter() - start
                best[name] = min(best.get(name, float("inf")), seconds)
                show_status(f"{name}: {seconds:.1f} s")  # what is known already, should it be ended before it is done
    counts = {name: sum(tokens[: given.rival_rows] if name in other else tokens) for name in best}
    speeds = {name: counts[name] / seconds for name, seconds in best.items()}
    rows = tuple(
        (name, round(best[name], 2), counts[name], round(speed), round(speed / speeds["engine alone"], 3))
        for name, speed in speeds.items()
    )
    facts = {"model": str(given.model.name), "precision": given.precision, "rows": given.rows, "threads": model.threads}
    columns = ("what", "seconds", "tokens", "tokens_per_second", "of_engine")
    show(Report("embed", facts, (Table("speed", columns, rows),)), given.json)


if __name__ == "__main__":
    main()
