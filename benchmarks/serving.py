"""`fusebert serve` beside other servers of embeddings: same model, texts, load and cores, in turns; `make bench-serve`.

    python benchmarks/serving.py TEXTS... [-o build/serving.json] [--rounds 2] [--seconds 5] [--short] [--soak SECONDS]
                                 [--servers fusebert,fastapi,mosec,litserve,triton] [--no-rerank]
    python benchmarks/serving.py --document docs/serving.md build/serving.json    # no run: its tables into the document

TEXTS are .tsv files: two sentences of a row are one text in half of them, one sentence in the others. All of it takes
about eleven minutes, --short three. docs/serving.md says how to read the figures."""

import argparse
import asyncio
import json
import os
import platform
import random
import shutil
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rerank
import serving_figures
import uvloop
from models import checkpoint as random_checkpoint
from rivals import Forms, versions
from serving_process import Running
from serving_rivals import RIVALS, one_text, vector

import fusebert
from fusebert.cli.show import show, show_status
from fusebert.engine.native import cores, isa
from fusebert.formats.hub import packaged_model
from fusebert.serve.load.connection import HttpCaller
from fusebert.serve.load.loops import Load, closed, open_loop
from fusebert.serve.load.outcome import Outcome
from fusebert.serve.load.search import highest_rate

PLACE = Path(__file__).parents[1] / "build" / "serving-models"
BOUND = 0.13  # seconds that the 99th percentile may take
CLIENTS = 96
MAX_WAIT = 0.08  # of fusebert in the open loops: what would wait longer cannot keep the bound
PAUSE = 0.01  # seconds between two requests to an idle server
_COSINE = 0.9  # of a server's vectors to those of fp32; dynamic int8 is at 0.95, and who answers worse is wrong
_OURS = "fusebert"


@dataclass(frozen=True)
class Given:
    """What is measured, and for how long."""

    texts: list[str]
    servers: list[str]
    rounds: int
    seconds: float
    soak: float


def read_texts(paths: Sequence[Path], count: int = 816) -> list[str]:
    """As many texts of two sentences as of one, shuffled."""
    joined: list[str] = []
    single: list[str] = []
    for path in paths:
        rows = [line.split("\t") for line in path.read_text(encoding="utf-8-sig").splitlines()[1:]]
        for row in rows:
            sentences = [cell for cell in row if len(cell) > 20]
            joined += [" ".join(sentences[:2])]
            single += sentences
    draw = random.Random(0)
    found = [text for kind in (joined, single) for text in draw.sample(kind, min(len(kind), count // 2))]
    draw.shuffle(found)
    return found


def prepare() -> None:
    """The models, once: MiniLM as it is and for ONNX Runtime, and BERT-base with random weights and its tokenizer."""
    minilm, base = PLACE / "minilm" / "checkpoint", PLACE / "base" / "checkpoint"
    if not (PLACE / "ready").exists():
        shutil.rmtree(PLACE, ignore_errors=True)
        shutil.copytree(packaged_model(), minilm)
        assert Forms(minilm).dynamic
        random_checkpoint("base", base)
        for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt"):
            if (minilm / name).exists():
                shutil.copy(minilm / name, base)
        for folder in (minilm, base):
            fusebert.optimize(folder, folder.parent / "int8", "int8", overwrite=True)
        (PLACE / "ready").touch()


def command(name: str, port: int, model: str = "minilm", *more: str) -> tuple[list[str], dict[str, str]]:
    """How a server is started, and with what in its environment."""
    folder = PLACE / model
    if name == _OURS:
        own = ["serve", str(folder / "int8"), "--port", str(port), "--no-grpc", "--quiet", *more]
        return [sys.executable, "-m", "fusebert", *own], {}
    settings = json.dumps({"model": str(folder), "port": port, "workers": cores()})
    here = Path(__file__).parent
    installed = here.parent / "build" / "serving"
    where = {"PYTHONPATH": f"{here}:{installed}", "PATH": f"{installed / 'bin'}:{os.environ['PATH']}"}
    return [sys.executable, str(here / "serving_rivals.py"), name, settings], where


class Client:
    """A load on one server: every text as a request."""

    def __init__(self, url: str, name: str, texts: Sequence[str], headers: dict[str, str] | None = None) -> None:
        self.caller = HttpCaller(url, 30.0)
        request = RIVALS[name][1] if name in RIVALS else one_text
        sent = {"Content-Type": "application/json", **(headers or {})}
        self.payloads = [
            self.caller.payload("POST", path, json.dumps(body).encode(), sent) for path, body in map(request, texts)
        ]
        self.load = Load(self.caller, self.payloads, None, BOUND)

    async def idle(self, count: int) -> list[float]:
        """Milliseconds of requests with a pause before each."""
        found = []
        for payload in self.payloads[:count]:
            await asyncio.sleep(PAUSE)
            begin = time.perf_counter()
            await self.caller.ask(payload)
            found.append(1e3 * (time.perf_counter() - begin))
        return found


@contextmanager
def started(name: str, model: str = "minilm", *more: str) -> Any:
    """A server that answers, for as long as it is needed."""
    with Running(partial(command, name, model=model), more) as running:
        yield running


def loaded(work: Callable[[Client], Coroutine[Any, Any, Any]], url: str, name: str, texts: Sequence[str]) -> Any:
    """What `work` finds with a client of that server."""

    async def run() -> Any:
        client = Client(url, name, texts)
        try:
            await client.caller.connect(1)
            return await work(client)
        finally:
            await client.caller.close()

    return uvloop.run(run())


def told(outcome: Outcome) -> dict[str, Any]:
    """An outcome as numbers."""
    return {
        "rate": outcome.rate, **outcome.latencies(), "requests": outcome.requests, "answered": outcome.statuses[200],
        "refused": outcome.refusals, "failed": outcome.failures, "good_per_second": outcome.good / outcome.seconds,
        "refused_after_ms_p99": outcome.refused.get_value_at_percentile(99) / 1e3 if outcome.refusals else None,
        "backlog_seconds": max(0.0, outcome.drained - outcome.seconds),
        "generator_cores": outcome.cpu / outcome.seconds,
    }  # fmt: skip


def closed_loop(name: str, given: Given, reference: Any, model: str = "minilm") -> dict[str, Any]:
    """Idle latency, then the closed loop."""

    async def work(client: Client) -> dict[str, Any]:
        answers = [await client.caller.ask(payload) for payload in client.payloads[: len(reference)]]
        vectors = np.array([vector(json.loads(answer.body)) for answer in answers])
        cosine = float((vectors * reference).sum(1).min())
        if cosine < _COSINE:
            raise RuntimeError(f"its answers are wrong: cosine {cosine:.4f} to fp32")
        await closed(client.load, CLIENTS, None, 1.0)
        idle = await client.idle(100)
        spent = running.cpu_seconds()
        outcome = await closed(client.load, CLIENTS, None, given.seconds)
        cpu = 1e3 * (running.cpu_seconds() - spent) / max(1, outcome.requests)
        latency = {f"idle_ms_p{p}": float(np.percentile(idle, p)) for p in (50, 99)}
        return {"cosine": cosine, **latency, "closed": told(outcome), "cpu_ms": cpu, "memory_mb": running.memory_mb()}

    with started(name, model) as running:
        found: dict[str, Any] = loaded(work, running.url, name, given.texts)
        return {"ready_seconds": running.ready_seconds, **found}


def open_loops(name: str, given: Given, rate: float) -> dict[str, Any]:
    """The highest rate within the bound, then twice what the closed loop reached."""

    async def work(client: Client) -> dict[str, Any]:
        await closed(client.load, CLIENTS, None, 1.0)
        offer = partial(open_loop, client.load, warmup=0.5, hopeless=True)
        best, tried = await highest_rate(
            lambda rate: offer(rate, max(2.0, 0.6 * given.seconds)), lambda rate: offer(rate, given.seconds), 0.9 * rate
        )
        before = running.memory_mb()
        over = await open_loop(client.load, 2 * rate, max(given.soak, given.seconds), 0.5)
        memory = {"memory_mb_before": before, "memory_mb_after": running.memory_mb()}
        searched = [(round(rate, 1), one.kept, round(one.percentile(99), 1)) for rate, one in tried]
        highest: dict[str, Any] = {"rate": best, "tried": searched, **({"at": told(tried[-1][1])} if best else {})}
        return {"highest": highest, "overload": {"offered": 2 * rate, **told(over), **memory}}

    more = ("--max-wait", str(MAX_WAIT)) if name == _OURS else ()
    with started(name, "minilm", *more) as running:
        found: dict[str, Any] = loaded(work, running.url, name, given.texts)
        return found


def two_lanes(given: Given, rate: float) -> dict[str, Any]:
    """Bulk requests that fill the machine, and interactive ones at a fifth of what it can do."""

    async def work(client: Client) -> dict[str, Any]:
        bulk = Client(running.url, _OURS, ["-"], {"x-lane": "bulk"})
        many = [given.texts[i : i + 64] for i in range(0, len(given.texts) - 63, 64)]
        sent = {"Content-Type": "application/json", "x-lane": "bulk"}
        bodies = [json.dumps({"inputs": texts}).encode() for texts in many]
        payloads = [bulk.caller.payload("POST", "/embed", body, sent) for body in bodies]
        alone = await closed(Load(bulk.caller, payloads), 4, None, given.seconds / 2)
        filling = asyncio.ensure_future(closed(Load(bulk.caller, payloads), 4, None, given.seconds + 1.0))
        outcome = await open_loop(client.load, 0.2 * rate, given.seconds, 0.5)
        beside = await filling
        await bulk.caller.close()
        return {
            "offered": 0.2 * rate, **told(outcome), "bulk_texts_per_second": 64 * beside.rate,
            "bulk_alone_texts_per_second": 64 * alone.rate,
        }  # fmt: skip

    with started(_OURS) as running:
        found: dict[str, Any] = loaded(work, running.url, _OURS, given.texts)
        return found


def offline(model: Any, texts: list[str], seconds: float) -> dict[str, float]:
    """Texts a second with all at hand, and milliseconds of one text after a pause."""
    begin, count = time.perf_counter(), 0
    while time.perf_counter() - begin < seconds:
        model.encode(texts)
        count += len(texts)
    rate = count / (time.perf_counter() - begin)
    single = []
    for text in texts[:100]:
        time.sleep(PAUSE)
        begin = time.perf_counter()
        model.encode(text)
        single.append(1e3 * (time.perf_counter() - begin))
    return {"rate": rate, "one_text_ms": float(np.median(single))}


def measure(given: Given) -> dict[str, Any]:
    """Everything but the reranking."""
    reference = fusebert.load(PLACE / "minilm" / "checkpoint").encode(given.texts[:8])
    models = {name: fusebert.load(PLACE / name / "int8") for name in ("minilm", "base")}
    base_reference = models["base"].encode(given.texts[:8])
    found: dict[str, Any] = {"servers": {}, "offline": {name: [] for name in models}, "base": [], "skipped": {}}
    for turn in range(given.rounds):
        for name in given.servers if turn % 2 == 0 else given.servers[::-1]:
            if name == _OURS:
                found["offline"]["minilm"].append(offline(models["minilm"], given.texts, given.seconds))
            with skipping(found["skipped"], name):
                show_status(f"round {turn + 1}: {name}")
                one = closed_loop(name, given, reference)
                found["servers"].setdefault(name, {"rounds": []})["rounds"].append(one)
        if _OURS in given.servers:
            show_status(f"round {turn + 1}: BERT-base")
            found["offline"]["base"].append(offline(models["base"], given.texts[:400], given.seconds))
            found["base"].append(closed_loop(_OURS, given, base_reference, "base"))
    for name, own in found["servers"].items():
        rate = max(one["closed"]["rate"] for one in own["rounds"])
        with skipping(found["skipped"], name):
            show_status(f"open loops: {name}")
            own |= open_loops(name, given, rate)
        if name == _OURS:
            own["two_lanes"] = two_lanes(given, rate)
    return found


@contextmanager
def skipping(skipped: dict[str, str], name: str) -> Any:
    """A rival that cannot run is told, and the others still run."""
    try:
        yield
    except Exception as error:
        if name == _OURS:
            raise
        skipped[name] = f"{type(error).__name__}: {error}"[:300]
        show_status(f"{name}: {skipped[name]}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, default=Path("build/serving.json"))
    parser.add_argument("--servers", default=",".join((_OURS, *RIVALS)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--soak", type=float, default=0.0, help="seconds of twice the load, at least")
    parser.add_argument("--short", action="store_true", help="one round of two seconds each")
    parser.add_argument("--no-rerank", action="store_true")
    parser.add_argument("--document", type=Path, help="put the tables of the JSON file here")
    return parser.parse_args()


def main() -> None:
    given = parse()
    if given.document:
        serving_figures.write(given.document, json.loads(given.texts[0].read_text()))
        return
    rounds, seconds = (1, 2.0) if given.short else (given.rounds, given.seconds)
    prepare()
    texts = read_texts(given.texts)
    machine = {
        "processor": platform.processor() or platform.machine(), "instruction_set": isa(), "cores": cores(),
        "date": time.strftime("%Y-%m-%d"), "versions": versions() | rerank.serving_versions(),
    }  # fmt: skip
    data: dict[str, Any] = {"machine": machine, "bound_ms": BOUND * 1e3, "clients": CLIENTS, "seconds": seconds}
    data |= measure(Given(texts, given.servers.split(","), rounds, seconds, given.soak))
    if not given.no_rerank:
        data["rerank"] = rerank.measure(PLACE, texts, given.short)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(json.dumps(data, indent=1))
    show(serving_figures.report(data))


if __name__ == "__main__":
    main()
