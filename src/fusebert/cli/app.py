"""What all commands share: the application, and the options that several of them have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fusebert.cli.show import show_text
from fusebert.errors import FusebertError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

app = typer.Typer(
    name="fusebert",
    pretty_exceptions_enable=False,
    context_settings={
        "help_option_names": ["--help", "-h"], "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)  # fmt: skip


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        show_text(f"fusebert {version('fusebert')}")
        raise typer.Exit


@app.callback()
def fusebert(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Tell the version.")
    ] = False,
) -> None:
    """BERT-family inference on CPUs: optimise a model, check its answers, run it."""


Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]
ReportFile = Annotated[
    Path | None, typer.Option("--report", help="Also write the report as a page of its own, such as report.html.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Threads to use; default: the cores this process may use.")
]
ModelPath = Annotated[
    Path, typer.Argument(help="A checkpoint folder, a fusebert artifact, an ONNX file, a SavedModel or a frozen graph.")
]
HeadOption = Annotated[
    str | None, typer.Option(help='Head instead of the one config.json names: "none" drops the head.')
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="Folder with tokenizer.json or vocab.txt; default: the model's, or beside it.")
]
Memory = Annotated[
    str | None,
    typer.Option(help="Bytes that the engine may take beside the weights, such as 64MiB: batches are cut to fit."),
]
InputIds = Annotated[str | None, typer.Option(help="The input with the token ids, where it cannot be found.")]
InputMask = Annotated[str | None, typer.Option(help="The input with the mask.")]
SegmentIds = Annotated[str | None, typer.Option(help="The input with the token types.")]
Fill = Annotated[
    list[str] | None, typer.Option(help="NAME=NUMBER: what an input gets that is neither of these; may be repeated.")
]


def read_memory(text: str | None) -> int | None:
    """The bound that --memory gives, if any."""
    return None if text is None else read_bytes(text, "--memory")


def read_bytes(text: str, option: str) -> int:
    """A number of bytes such as 1GiB, 512MiB or 100000."""
    found = re.fullmatch(r"(\d{1,15}) ?([kmg]?)(?:i?b)?", text.strip().lower())
    if not found or not int(found[1]):
        raise FusebertError(f"{option}: a number of bytes such as 512MiB is expected, not {text!r:.40}")
    return int(found[1]) * _UNITS[found[2]]


def tell(ids: str | None, mask: str | None, types: str | None, fill: list[str] | None) -> dict[str, str | float | None]:
    """What the user says of a model's inputs."""
    told: dict[str, str | float | None] = {"ids": ids, "mask": mask, "types": types}
    for word in fill or ():
        name, _, number = word.rpartition("=")
        try:
            told[name] = float(number)
        except ValueError:
            raise typer.BadParameter(f"NAME=NUMBER is expected, not {word}", param_hint="--fill") from None
    return told
