"""The command that offers load to a server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fusebert.cli.app import Json, app
from fusebert.cli.serve import read_key
from fusebert.cli.show import show
from fusebert.errors import FusebertError

_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0}


@app.command("load-test", epilog="Example: fusebert load-test http://127.0.0.1:8080 --rate 500 --duration 30s")
def load_test(
    url: Annotated[str, typer.Argument(help="The server: http://HOST:PORT.")] = "http://127.0.0.1:8080",
    protocol: Annotated[
        str | None,
        typer.Option(help="embed, predict, rerank, openai or oip; default: embed, or predict for a classifier."),
    ] = None,
    clients: Annotated[int, typer.Option(min=1, max=8000, help="Closed loop: clients that ask again and again.")] = 96,
    cycle: Annotated[int, typer.Option(min=1, help="Closed loop: requests of each client.")] = 128,
    rate: Annotated[float | None, typer.Option(min=0.01, help="Open loop: requests a second.")] = None,
    arrivals: Annotated[str, typer.Option(help="Open loop: poisson or constant.")] = "poisson",
    duration: Annotated[
        str | None, typer.Option(help="How long: 30s, 2m; default: 30s for a rate, else as --cycle says.")
    ] = None,
    warmup: Annotated[str, typer.Option(help="Load before anything is measured.")] = "1s",
    find_max: Annotated[bool, typer.Option("--find-max", help="Search the highest rate that keeps --p99.")] = False,
    p99: Annotated[str | None, typer.Option(help="The bound that 99 % of the answers must keep: 130ms.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="Texts: one on a line, or a file that accuracy takes; default: built-in ones.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1, help="Texts in each request.")] = 1,
    model: Annotated[str | None, typer.Option(help="The model's name; default: the server's first.")] = None,
    lane: Annotated[str | None, typer.Option(help="interactive or bulk, sent as x-lane.")] = None,
    timeout: Annotated[str, typer.Option(help="When a request is given up.")] = "30s",
    api_key_file: Annotated[Path | None, typer.Option(help="A file with the key to send.")] = None,
    save_accuracy: Annotated[Path | None, typer.Option(help="Write the share of right answers to this file.")] = None,
    histogram: Annotated[Path | None, typer.Option(help="Write the latencies as a log of HdrHistogram.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the percentiles: .png or .svg.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of an earlier test.")] = False,
    as_json: Json = False,
) -> None:
    """Offer load to a server and tell its throughput, latencies, refusals, and accuracy where the texts have labels.

    Closed loop: clients ask again when they were answered. Open loop: a latency begins when its request was due."""
    try:
        from fusebert.serve.load.files import Files
        from fusebert.serve.load_test import Settings
        from fusebert.serve.load_test import load_test as work
    except ImportError as error:
        raise FusebertError(f"load tests need {error.name}: pip install 'fusebert[serve]'") from None
    headers = {"x-lane": lane} if lane else {}
    if key := read_key(api_key_file):
        headers["Authorization"] = f"Bearer {key}"
    settings = Settings(
        clients=clients, cycle=cycle, rate=rate, arrivals=arrivals, batch=batch, find_max=find_max, model=model,
        duration=read_seconds(duration, "--duration") if duration else None,
        p99=read_seconds(p99, "--p99") if p99 else None, warmup=read_seconds(warmup, "--warmup"),
        timeout=read_seconds(timeout, "--timeout"), headers=headers,
    )  # fmt: skip
    files = Files(histogram, plot, save_accuracy, overwrite)
    show(work(url, data, protocol, settings, files), as_json)


def read_seconds(text: str, option: str) -> float:
    """A time such as 30s, 130ms or 2m."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?) ?(ms|s|m|)", text.strip().lower())
    if not found:
        raise FusebertError(f"{option}: a time such as 30s or 130ms is expected, not {text!r:.40}")
    return float(found[1]) * _SECONDS[found[2]]
