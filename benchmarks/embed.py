"""How much of the engine's own speed `fusebert embed` keeps: reading, tokenising and writing run beside it.

    python benchmarks/embed.py DATA [--rows 20000] [--model FOLDER] [--precision int8] [--rounds 3] [--json]

DATA is a file with one text on a line, or a .tsv, whose longer cells are the texts; they are repeated. In turns: the
engine alone on tokens that are ready, `embed` to Parquet parts, and sentence-transformers' encode in fp32."""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fusebert
from fusebert.cli.show import show
from fusebert.formats.dataset import read_rows
from fusebert.formats.hub import packaged_model
from fusebert.report import Report, Table
from fusebert.verbs.embed import Settings, Worker, windows


def texts(path: Path, rows: int) -> list[str]:
    """So many texts, those of the file again and again."""
    cells = [cell.strip() for line in path.read_text(encoding="utf-8").splitlines() for cell in line.split("\t")]
    found = [cell for cell in cells if len(cell) > 20]
    return [found[i % len(found)] for i in range(rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival", action="store_true", help="sentence-transformers too")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    given.model = given.model or packaged_model()
    model = fusebert.load(given.model, given.precision)
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.txt"
        data.write_text("\n".join(texts(given.data, given.rows)) + "\n", encoding="utf-8")
        worker = Worker(model, Settings())
        ready = [worker.tokenise(window)[1] for window in windows(read_rows([data], ("text",)), Settings())]
        tokens = sum(len(one.ids) for window in ready for one in window)

        def engine() -> None:
            for window in ready:
                model.encode(window)

        def whole() -> None:
            fusebert.embed(model, data, Path(folder) / f"out{time.monotonic_ns()}")

        kinds: dict[str, Callable[[], object]] = {"engine alone": engine, "fusebert embed": whole}
        if given.rival:
            from sentence_transformers import SentenceTransformer

            rival, given_texts = SentenceTransformer(str(given.model)), texts(given.data, given.rows)
            kinds["sentence-transformers fp32"] = lambda: rival.encode(given_texts, batch_size=64)
        for _ in range(given.rounds):
            for name, call in kinds.items():
                start = time.perf_counter()
                call()
                best[name] = min(best.get(name, float("inf")), time.perf_counter() - start)
    rows = tuple((name, round(s, 2), round(tokens / s), round(best["engine alone"] / s, 3)) for name, s in best.items())
    facts = {"model": str(given.model.name), "precision": given.precision, "rows": given.rows, "tokens": tokens}
    show(
        Report("embed", facts, (Table("speed", ("what", "seconds", "tokens_per_second", "of_engine"), rows),)),
        given.json,
    )


if __name__ == "__main__":
    main()
