"""The command that runs a model on a whole data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fusebert.cli.app import Json, Memory, ModelPath, Threads, Tokenizer, app, read_memory
from fusebert.cli.show import show


@app.command(epilog="Example: fusebert embed ./my-bert-int8 documents.parquet -o vectors --column body --keep id")
def embed(
    model: ModelPath,
    data: Annotated[
        str,
        typer.Argument(
            metavar="INPUT",
            help="A .parquet, .jsonl, .csv, .tsv or .txt file, also .gz or .zst; a folder or a glob of them; or - for "
            "standard input.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder for Parquet parts, or a .npy or .jsonl file.")],
    column: Annotated[str, typer.Option(help="The column with the texts.")] = "text",
    columns: Annotated[str | None, typer.Option(help="Two columns instead, for pairs: a,b.")] = None,
    keep: Annotated[str, typer.Option(help="Columns to copy to the answers: id,url.")] = "",
    task: Annotated[
        str, typer.Option(help="embed, classify, score (of pairs) or tokens (a vector for each).")
    ] = "embed",
    dtype: Annotated[str, typer.Option(help="Of vectors: float32, float16 or int8.")] = "float32",
    strict: Annotated[
        bool, typer.Option("--strict", help="Reject texts that are too long instead of cutting them.")
    ] = False,
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, int8 or int8-bf16; an artifact has its own.")
    ] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens that run together.")] = 8192,
    tokenizer: Tokenizer = None,
    workers: Annotated[
        int | None, typer.Option(min=1, max=4096, help="Workers side by side; on Ray: as many as it may grow to.")
    ] = None,
    on: Annotated[
        str | None, typer.Option(help="ray: on a Ray that is started here; ray://HOST:PORT: on that cluster.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the answers of other work.")] = False,
    threads: Threads = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Run a model on a whole data set: a vector, label or score for every row, in the order of the rows.

    Rows that cannot be used are listed in _rejected.jsonl with the reason. If it is interrupted, the same command goes
    on."""
    from fusebert.engine.load import load
    from fusebert.verbs.embed import embed as work
    from fusebert.verbs.windows import Place, Settings

    names = tuple(columns.split(",")) if columns else (column,)
    settings = Settings(names, tuple(filter(None, keep.split(","))), task, dtype, strict, batch_tokens)
    bounded = model if memory is None else load(model, precision, threads, memory=read_memory(memory))
    report = work(
        bounded, data, out, settings, precision=precision, threads=threads, tokenizer=tokenizer,
        place=Place(on, workers), overwrite=overwrite, show_progress=True,
    )  # fmt: skip
    show(report, as_json)
