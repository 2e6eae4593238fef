"""The running server: settings in, a process that listens early, loads, answers, and drains when it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from fusebert.engine.load import load
from fusebert.engine.model import Model
from fusebert.engine.native import cores
from fusebert.errors import FusebertError
from fusebert.serve.batcher import Limits
from fusebert.serve.connection import Connection
from fusebert.serve.crew import settle
from fusebert.serve.front import Bounds, Server
from fusebert.serve.http import Call, application
from fusebert.serve.live import Live
from fusebert.serve.log import Log
from fusebert.serve.protocols import apis, oip_http, openapi, page, tei
from fusebert.serve.service import Service
from fusebert.serve.status import Status
from fusebert.serve.telemetry import Exporter
from fusebert.serve.watch import watch

_log = logging.getLogger("fusebert.serve")
_GARBAGE = 50_000  # objects between two looks for circular garbage, of which a request leaves hardly any
_STATUS = 1.0  # seconds between two lines about the load
_TABLES: list[Call] = [*tei.CALLS, *apis.CALLS, *oip_http.CALLS]
CALLS: list[Call] = [*_TABLES, *openapi.own_calls(_TABLES)]


@dataclass(frozen=True)
class Settings:
    """All that a server can be told. `models` are paths by the name they are served under; each has `replicas`, which
    run batches side by side on `threads` threads each."""

    models: dict[str, Path]
    precision: str | None = None
    head: str | None = None
    pooling: str | None = None
    tokenizer: Path | None = None
    replicas: int | None = None
    threads: int | None = None
    cores: int | None = None  # of this machine; all that the process may use, unless told
    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int | None = None
    demo_port: int | None = None
    key: str = ""
    certificate: Path | None = None
    private_key: Path | None = None
    drain: float = 30.0
    limits: Limits = field(default_factory=Limits)
    bounds: Bounds = field(default_factory=Bounds)
    watch: bool = False
    log: Path | None = None
    otlp: str = ""
    page: bool = True


def serve(settings: Settings, tell: Callable[[str], None], show: Callable[[str], None] | None = None) -> None:
    """Serves until a signal says stop; a second one ends at once. `tell` is told what happens, a sentence at a time;
    `show` gets a line about the load every second, as long as there is any."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the cores are the engine's, and workers are forked
    os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # workers have nothing to do with gRPC
    gc.set_threshold(_GARBAGE, 20, 20)
    server = Server(bounds=settings.bounds, key=settings.key)
    server.metrics.watch(server.services.values())
    with ExitStack() as closing:
        if settings.log:
            log = closing.enter_context(contextlib.closing(Log(settings.log)))
            server.recorders.append(log)
            _log.addHandler(log)
            closing.callback(_log.removeHandler, log)
        if settings.otlp:
            server.recorders.append(closing.enter_context(contextlib.closing(Exporter(settings.otlp))))
        front = _Front(server, settings, tell, show)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(front.run_beside_loading())


def open_service(name: str, path: Path, settings: Settings) -> Service:
    """Loads a model, whose service is still to be started."""
    homes = settle(partial(_load, path, settings), settings.cores)
    replicas, threads = plan(settings.replicas, settings.threads, settings.cores or cores())
    return Service(name, homes[0].model, settings.pooling, settings.limits, replicas, threads, homes)


def _load(path: Path, settings: Settings) -> Model:
    model = load(path, settings.precision, head=settings.head)
    if settings.tokenizer:
        model.take_tokenizer(settings.tokenizer)
    return model


def plan(replicas: int | None, threads: int | None, usable: int) -> tuple[int, int]:
    """Replicas and the threads of each, on so many cores. Batches of one thread each are the most that cores can do:
    none waits for another. A batch that has the machine to itself gets all of it anyway."""
    if replicas is None:
        return max(1, usable // (threads or 1)), threads or 1
    return replicas, threads or max(1, usable // replicas)


def _import_grpc() -> tuple[Any, dict[str, list[Any]]]:
    """The front, and what it answers on each port: imported only where it is wanted, while HTTP listens already."""
    try:
        from fusebert.serve import grpc
        from fusebert.serve.protocols import demo, grpc_health, oip_grpc, reflection
    except ImportError as error:
        raise FusebertError(f"gRPC needs {error.name}: pip install 'fusebert[serve]', or serve --no-grpc") from None

    tables = {"grpc": [oip_grpc.SERVICE], "demo": [demo.SERVICE]}
    tables = {name: [*services, grpc_health.SERVICE] for name, services in tables.items()}
    return grpc, {name: [*services, *reflection.reflect(services)] for name, services in tables.items()}


class _Front(uvicorn.Server):
    """uvicorn with our own way to start and to stop."""

    def __init__(
        self, server: Server, settings: Settings, tell: Callable[[str], None], show: Callable[[str], None] | None
    ) -> None:
        options: dict[str, Any] = {}
        if settings.certificate:
            options = {"ssl_certfile": str(settings.certificate), "ssl_keyfile": str(settings.private_key)}
        connection: Any = partial(Connection, bounds=settings.bounds)
        calls = CALLS
        if settings.page:
            server.recorders.append(live := Live(server))
            calls = [*CALLS, *page.calls(live)]  # which has a `/` of its own
        config = uvicorn.Config(
            application(server, calls), settings.host, settings.port, http=connection, lifespan="off", log_config=None,
            access_log=False, server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=int(settings.drain),
            ws="none", proxy_headers=False, **options,
        )  # fmt: skip
        super().__init__(config)
        self._server, self._settings, self._tell, self._show = server, settings, tell, show
        self._beside: list[asyncio.Future[None]] = []
        self._failure: Exception | None = None
        self._grpc: list[Any] = []

    async def run_beside_loading(self) -> None:
        """Listens, loads beside that, serves, drains."""
        loading = asyncio.ensure_future(self._load())
        try:
            await self.serve()
        except SystemExit:  # uvicorn's way to say that it cannot listen
            where = f"{self._settings.host}:{self._settings.port}"
            self._failure = FusebertError(f"{where} cannot be listened on; is it in use? choose another --port")
        for task in (loading, *self._beside):
            task.cancel()
        for service in self._server.services.values():
            await service.close()
        if self._failure:
            raise self._failure
        self._tell("stopped")

    async def _listen_for_grpc(self) -> dict[str, int]:
        """Starts the gRPC servers; their ports by what they are for."""
        wanted = {"grpc": self._settings.grpc_port, "demo": self._settings.demo_port}
        ports = {name: port for name, port in wanted.items() if port is not None}
        if ports:
            grpc, tables = await asyncio.to_thread(_import_grpc)
        pem = None
        if self._settings.certificate and self._settings.private_key:
            pem = (self._settings.private_key.read_bytes(), self._settings.certificate.read_bytes())
        for name, port in ports.items():
            front, ports[name] = await grpc.listen(self._server, tables[name], self._settings.host, port, pem)
            self._grpc.append(front)
        return ports

    async def shutdown(self, sockets: Any = None) -> None:
        """Answers what was taken in, over HTTP and gRPC, and closes."""
        await asyncio.gather(super().shutdown(sockets), *(front.stop(self._settings.drain) for front in self._grpc))

    async def _open_services(self) -> None:
        for name, path in self._settings.models.items():
            service = await asyncio.to_thread(open_service, name, path, self._settings)
            await service.start()
            self._server.services[name] = service

    async def _load(self) -> None:
        listening, loading = (
            asyncio.ensure_future(self._listen_for_grpc()),
            asyncio.ensure_future(self._open_services()),
        )
        try:
            ports, _ = await asyncio.gather(listening, loading)
        except Exception as error:  # whatever it is, a server without its model must not go on
            for part in (listening, loading):
                part.cancel()
            await asyncio.wait((listening, loading))
            self._failure, self.should_exit = error, True
            return
        while not self.started:
            await asyncio.sleep(0.01)
        scheme = "https" if self._settings.certificate else "http"
        port = self.servers[0].sockets[0].getsockname()[1]
        also = "".join(f", {name} at {self._settings.host}:{number}" for name, number in ports.items())
        watched = self._settings.models if self._settings.watch else ()
        self._beside = [asyncio.ensure_future(self._watch(name)) for name in watched]
        if self._show:
            self._beside.append(asyncio.ensure_future(self._show_status(self._show)))
        self._tell(f"ready: {', '.join(self._server.services)} at {scheme}://{self._settings.host}:{port}{also}")

    async def _watch(self, name: str) -> None:
        path = self._settings.models[name]
        load = partial(open_service, name, path, self._settings)
        await watch(path, self._server.services, name, load, self._tell)

    async def _show_status(self, show: Callable[[str], None]) -> None:
        status = Status(self._server)
        while True:
            await asyncio.sleep(_STATUS)
            if line := status.line(_STATUS):
                show(line)

    def handle_exit(self, sig: int, frame: Any) -> None:  # noqa: ARG002
        """The first signal drains, the second ends."""
        if self._server.stopping:
            os._exit(1)
        self._server.stopping = True
        self._tell(f"{signal.Signals(sig).name}: stopping, once what was taken in is answered")
        self.should_exit = True
