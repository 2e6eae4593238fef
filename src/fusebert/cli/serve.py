"""The command that serves models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from fusebert.cli.app import HeadOption, Tokenizer, app, read_bytes
from fusebert.cli.show import load_line, show_status
from fusebert.errors import FusebertError


@app.command(epilog="Example: fusebert serve ./my-bert-int8 --port 8080")
def serve(
    models: Annotated[list[str], typer.Argument(help="A model, or several as NAME=PATH, in any form that run takes.")],
    precision: Annotated[
        str | None, typer.Option(help="fp32, bf16, int8 or int8-bf16; an artifact has its own.")
    ] = None,
    pooling: Annotated[
        str | None, typer.Option(help="Embeddings: mean, cls or max; default: what the model's folder says, or mean.")
    ] = None,
    head: HeadOption = None,
    tokenizer: Tokenizer = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port of HTTP; 0: any that is free.")] = 8080,
    grpc_port: Annotated[int, typer.Option(min=0, max=65535, help="The port of gRPC; 0: any that is free.")] = 8081,
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Listen for HTTP only.")] = False,
    demo_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="A port for clients of the MRPC demo (60061 is theirs).")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Batches side by side; default: a core for each. On Ray: its replicas."),
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(min=1, max=1024, help="Threads of each replica; default: the cores shared out, or 1."),
    ] = None,
    max_batch_tokens: Annotated[int, typer.Option(min=16, max=1 << 20, help="The most tokens of a batch.")] = 8192,
    max_queue: Annotated[int, typer.Option(min=1, help="The most texts that wait.")] = 8192,
    max_wait: Annotated[float, typer.Option(min=0, help="Seconds: what would wait longer is refused.")] = 5.0,
    memory: Annotated[str, typer.Option(help="Bytes for queue, batches and answers: 512MiB, 1GiB.")] = "1GiB",
    max_body: Annotated[str, typer.Option(help="Bytes of a request.")] = "8MiB",
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 512,
    max_text: Annotated[str, typer.Option(help="Bytes of a text.")] = "100KiB",
    max_depth: Annotated[int, typer.Option(min=4, max=200, help="Levels of lists and objects in JSON.")] = 32,
    max_headers: Annotated[int, typer.Option(min=16, help="Headers of a request.")] = 100,
    max_chunks: Annotated[int, typer.Option(min=1, help="Chunks of a body.")] = 16384,
    max_seconds: Annotated[
        float,
        typer.Option(min=0.1, help="Seconds for sending a request, and that fetching its answer may stand still."),
    ] = 30.0,
    api_key_file: Annotated[Path | None, typer.Option(help="A file with the key that clients must send.")] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key (PEM).")] = None,
    drain: Annotated[float, typer.Option(min=0, help="Seconds that answers may take after SIGTERM.")] = 30.0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Take over a new model that appears at the same path.")
    ] = False,
    log: Annotated[Path | None, typer.Option(help="A JSON line for every request: a file, or - for stdout.")] = None,
    otlp: Annotated[str, typer.Option(help="An OpenTelemetry collector: http://127.0.0.1:4318.")] = "",
    on: Annotated[str | None, typer.Option(help="ray: as a Ray Serve deployment, over HTTP only.")] = None,
    autoscale: Annotated[
        str | None, typer.Option(help="On Ray, instead of --replicas: the least and the most, 1:8.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster: auto or HOST:PORT; else one is started here.")
    ] = None,
    page: Annotated[bool, typer.Option("--page/--no-page", help="Show a page at / to browsers.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
) -> None:
    """Serve models over HTTP and gRPC, in the protocols that clients already speak: docs/serving.md."""
    try:
        from fusebert.serve.batcher import Limits
        from fusebert.serve.front import Bounds
        from fusebert.serve.server import Settings
        from fusebert.serve.server import serve as work
    except ImportError as error:
        raise FusebertError(f"serving needs {error.name}: pip install 'fusebert[serve]'") from None
    if (tls_cert is None) != (tls_key is None):
        raise FusebertError("--tls-cert and --tls-key belong together; give both")
    settings = Settings(
        models=read_names(models), precision=precision, head=head, pooling=pooling, tokenizer=tokenizer,
        replicas=replicas, threads=threads, host=host, port=port, grpc_port=None if no_grpc else grpc_port,
        demo_port=demo_port, key=read_key(api_key_file), certificate=tls_cert, private_key=tls_key, drain=drain,
        limits=Limits(max_batch_tokens, sequences=max_queue, wait=max_wait, memory=read_bytes(memory, "--memory")),
        bounds=Bounds(
            read_bytes(max_body, "--max-body"), max_texts, read_bytes(max_text, "--max-text"), depth=max_depth,
            headers=max_headers, chunks=max_chunks, seconds=max_seconds,
        ),
        watch=watch, log=log, otlp=otlp, page=page,
    )  # fmt: skip
    if on not in (None, "ray"):
        raise FusebertError(f"--on {on!r:.40} is unknown; use ray, or leave it out")
    if on is None and (autoscale or address):
        raise FusebertError("--autoscale and --address are for --on ray")
    if host not in ("127.0.0.1", "::1", "localhost") and not (settings.key or tls_cert):
        show_status(f"warning: anyone who reaches {host} may use this server; there is no key and no TLS")
    tell = (lambda _: None) if quiet else show_status
    if on:
        from fusebert.serve import ray

        ray.serve(settings, tell, address, replicas, autoscale)
    else:
        work(settings, tell, None if quiet else load_line())


def read_names(models: list[str]) -> dict[str, Path]:
    """Paths by name; a path alone is named after its file or folder."""
    named = {}
    for word in models:
        name, sign, path = word.partition("=")
        if not sign or "/" in name:
            name, path = Path(word).resolve().name.split(".")[0] or "model", word
        if not re.fullmatch(r"[\w.-]{1,100}", name):
            raise FusebertError(
                f"the name {name!r:.40} has other characters than letters, digits, _, . and -; use NAME=PATH"
            )
        if name in named:
            raise FusebertError(f"two models are called {name!r}; give them names: NAME=PATH")
        named[name] = Path(path)
    return named


def read_key(path: Path | None) -> str:
    """The key in a file, or none."""
    if path is None:
        return ""
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FusebertError(f"{path} cannot be read as a key: {type(error).__name__}") from None
    if not key:
        raise FusebertError(f"{path} is empty; it must hold the key that clients send")
    return key
