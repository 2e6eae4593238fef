"""The commands: one per public verb. Each parses, calls, and hands the Report to `show`.

Exit codes: 0 done, 1 the answers differ, 2 anything the user can mend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fusebert.errors import FusebertError
from fusebert.report import Report
from fusebert.show import show, show_error

app = typer.Typer(
    name="fusebert", help="BERT-family inference on CPUs: optimise a model, prove it, run it.", no_args_is_help=True,
    add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip

Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Threads to use; default: the cores this process may use.")
]
ModelPath = Annotated[
    Path, typer.Argument(help="A checkpoint folder, a fusebert artifact, an ONNX file, a SavedModel or a frozen graph.")
]
HeadOption = Annotated[
    str | None, typer.Option(help='Head instead of the one config.json names: "none" leaves it away.')
]


def _finish(as_json: bool, work: Callable[[], Report]) -> None:
    from fusebert.optimize import DifferentError

    try:
        report = work()
    except FusebertError as error:
        show_error(str(error), as_json)
        raise typer.Exit(1 if isinstance(error, DifferentError) else 2) from None
    show(report, as_json)


@app.command(epilog="Example: fusebert optimize ./my-bert -o ./my-bert-int8 --precision int8")
def optimize(
    model: Annotated[
        Path, typer.Argument(help="A Hugging Face checkpoint folder, an ONNX file, a SavedModel or a frozen graph.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write.")],
    precision: Annotated[str, typer.Option(help="fp32, bf16, int8 or int8-bf16.")] = "int8",
    target: Annotated[
        str, typer.Option("--for", help="What will run it: standalone (fusebert itself).")
    ] = "standalone",
    head: HeadOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the folder if it exists.")] = False,
    verify: Annotated[bool, typer.Option("--verify/--no-verify", help="Compare with fp32 before writing.")] = True,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Turn a model into an artifact, and prove that its answers stayed the same."""
    from fusebert.optimize import optimize as work

    if target != "standalone":
        raise typer.BadParameter(f"{target!r} is unknown; there is 'standalone'", param_hint="--for")

    _finish(as_json, lambda: work(model, out, precision, head, overwrite, verify, threads, show_progress=True))


@app.command(epilog='Example: fusebert run ./my-classifier "what a film" "what a waste"')
def run(
    model: ModelPath,
    texts: Annotated[list[str], typer.Argument(help="The texts.")],
    pair: Annotated[
        bool, typer.Option("--pair", help="Texts are pairs: first and second, first and second, ...")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, int8 or int8-bf16; an artifact has its own.")
    ] = None,
    pooling: Annotated[str, typer.Option(help="For embeddings: mean, cls or max.")] = "mean",
    head: HeadOption = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Run a model on texts: labels, entities, answers, masked words, or embeddings with their similarities."""
    from fusebert.run import run as work

    _finish(as_json, lambda: work(model, texts, pair, precision, pooling, head, threads, vectors=as_json))


@app.command(epilog="Example: fusebert inspect ./my-bert")
def inspect(
    model: Annotated[
        Path,
        typer.Argument(help="A checkpoint folder, a fusebert artifact, an ONNX file, a SavedModel or a frozen graph."),
    ],
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Also show the graph in large words, and every rule that was applied.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tell what a model is: family, sizes, precision plan, bytes; or a graph, and the encoders found in it."""
    from fusebert.inspect import inspect as work

    _finish(as_json, lambda: work(model, nodes))


@app.command(epilog="Example: fusebert doctor --json")
def doctor(as_json: Json = False) -> None:
    """Tell what this machine can do: cores, instruction sets, frameworks."""
    from fusebert.doctor import doctor as work

    _finish(as_json, work)


def main() -> None:
    """The console script."""
    app()
