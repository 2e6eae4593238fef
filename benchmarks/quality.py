"""What each precision costs on STS-B: rank correlation with people, and the angle of every embedding to its fp32 twin.

    python benchmarks/quality.py stsb_dev.tsv [--model FOLDER] [--json] [--readme README.md]

The file is tab separated without a header: genre, file, year, id, score, first sentence, second sentence."""

import argparse
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

import numpy as np

import fusebert
from fusebert.cli.show import show
from fusebert.formats.hub import packaged_model
from fusebert.ops.graph import Array
from fusebert.report import Report, Table
from fusebert.values.precision import PRECISIONS


@dataclass(frozen=True)
class Quality:
    """One row of the table; Spearman's correlation is in points (times 100)."""

    precision: str
    spearman: float
    change: float
    mean_cosine: float
    worst_cosine: float


def ranks(values: Array) -> Array:
    """Ranks with ties averaged."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    averaged: Array = (ends - (counts - 1) / 2)[inverse]
    return averaged


def measure(model: Path, data: Path, precisions: tuple[str, ...] = tuple(PRECISIONS)) -> list[Quality]:
    """The quality of each precision; the first one is what the others are compared with."""
    lines = [line.split("\t") for line in data.read_text(encoding="utf-8").splitlines()]
    people = ranks(np.array([float(line[4]) for line in lines]))
    texts = [line[5] for line in lines] + [line[6] for line in lines]
    measured: list[Quality] = []
    baseline: Array | None = None
    for precision in precisions:
        embeddings = fusebert.load(model, precision).encode(texts, progress=True).astype(np.float64)
        baseline = embeddings if baseline is None else baseline
        similarity = (embeddings[: len(lines)] * embeddings[len(lines) :]).sum(1)
        spearman = float(np.corrcoef(ranks(similarity), people)[0, 1]) * 100
        cosine = (embeddings * baseline).sum(1)
        change = spearman - measured[0].spearman if measured else 0.0
        measured.append(Quality(precision, spearman, change, float(cosine.mean()), float(cosine.min())))
    return measured


def write(readme: Path, rows: list[Quality]) -> None:
    """Puts the table between `<!-- quality -->` and `<!-- /quality -->`."""
    lines = ["| precision | Spearman | change | cosine to fp32: mean | worst |", "|---|---|---|---|---|"]
    lines += [
        f"| {r.precision} | {r.spearman:.2f} | {r.change:+.2f} | {r.mean_cosine:.5f} | {r.worst_cosine:.5f} |"
        for r in rows
    ]
    before, rest = readme.read_text().split("<!-- quality -->\n")
    _, after = rest.split("<!-- /quality -->\n")
    readme.write_text(before + "<!-- quality -->\n" + "\n".join(lines) + "\n<!-- /quality -->\n" + after)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--readme", type=Path, help="write the table into this file, between its quality marks")
    arguments = parser.parse_args()
    rows = measure(arguments.model or packaged_model(), arguments.data)
    if arguments.readme:
        write(arguments.readme, rows)
    table = Table(
        "quality", tuple(asdict(rows[0])), tuple((r.precision, *(round(v, 5) for v in astuple(r)[1:])) for r in rows)
    )
    show(Report("STS-B, no calibration", {}, (table,)), arguments.json)


if __name__ == "__main__":
    main()
