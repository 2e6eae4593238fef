"""The same application on Ray Serve: settings in, a deployment whose replicas each load the models and answer the same
routes with ragged batches of their own. `app` is for `serve run` and its YAML, `serve` for the command."""

from __future__ import annotations

import inspect
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fusebert.cluster import connected, import_ray
from fusebert.engine.native import cores
from fusebert.errors import FusebertError, unknown
from fusebert.serve.batcher import Limits
from fusebert.serve.front import Bounds, Server
from fusebert.serve.http import application
from fusebert.serve.server import CALLS, Settings, open_service

NAME = "fusebert"
_ONGOING = 16  # requests under way for each core of a replica, by which their number is chosen
_MOST = 16  # times as many may be: the replica's own queue decides what is refused
_OPTIONS = ("precision", "head", "pooling", "tokenizer", "key", "drain")
_NESTED: dict[str, Any] = {"limits": Limits, "bounds": Bounds}


def app(arguments: Mapping[str, Any] | None = None, /, **options: Any) -> Any:
    """The Ray Serve application of one model or several.

    model: a path that every node has, or paths by name. threads: the cores of each replica. replicas: how many there
    are, or autoscale: "1:8", as many as requests need, or Ray Serve's own autoscaling_config. ongoing: the requests of
    each replica at which there will be another one. precision, head, pooling, tokenizer, key, drain: as of the command
    `serve`. limits, bounds: the fields of Limits and Bounds, by name."""
    given = {**(arguments or {}), **options}
    if "model" not in given:
        raise FusebertError("model is missing: fusebert.serve.ray:app model=PATH")
    model = given.pop("model")
    models = dict(model) if isinstance(model, Mapping) else {Path(model).name.split(".")[0] or "model": model}
    scaling = {name: given.pop(name) for name in ("threads", "replicas", "autoscale", "ongoing") if name in given}
    for name in given:
        if name not in (*_OPTIONS, *_NESTED):
            known = ("model", "threads", "replicas", "autoscale", "ongoing", *_OPTIONS, *_NESTED)
            raise unknown("argument", name, known)
    for name, kind in _NESTED.items():
        given[name] = _read_fields(name, kind, given.get(name) or {})
    return deploy(Settings({name: Path(path) for name, path in models.items()}, **given), **scaling)


# Ray Serve takes builders of one parameter only, the arguments by name.
app.__signature__ = inspect.Signature(list(inspect.signature(app).parameters.values())[:1])  # type: ignore[attr-defined]


def deploy(
    settings: Settings,
    threads: int | None = None,
    replicas: int | None = None,
    autoscale: str | Mapping[str, Any] | None = None,
    ongoing: int | None = None,
) -> Any:
    """The application that serves these settings, as Ray Serve takes it."""
    import_ray()
    from ray import serve

    size = int(threads or 1)
    target = int(ongoing or _ONGOING * size)
    if replicas and autoscale:
        raise FusebertError("replicas and autoscale are both given; choose one")
    options: dict[str, Any] = {"num_replicas": int(replicas or 1)}
    if autoscale:
        least, most = read_range(autoscale) if isinstance(autoscale, str) else (1, 1)
        policy = {
            "min_replicas": least, "max_replicas": most, "target_ongoing_requests": target,
            "upscale_delay_s": 5, "downscale_delay_s": 60, "look_back_period_s": 5, "metrics_interval_s": 1,
        }  # fmt: skip
        options = {"autoscaling_config": policy | (dict(autoscale) if isinstance(autoscale, Mapping) else {})}
    deployment = serve.deployment(
        serve.ingress()(Replica), name=NAME, ray_actor_options={"num_cpus": size}, max_ongoing_requests=target * _MOST,
        graceful_shutdown_timeout_s=settings.drain, graceful_shutdown_wait_loop_s=1.0, health_check_period_s=5,
        **options,
    )  # fmt: skip
    models = {name: path.absolute() if path.exists() else path for name, path in settings.models.items()}
    return deployment.bind(replace(settings, models=models, replicas=None, threads=None, cores=size))


class Replica:
    """The server's application in a process of Ray's."""

    async def __init__(self, settings: Settings) -> None:  # type: ignore[misc]  # as Ray Serve allows
        self._server = Server(bounds=settings.bounds, key=settings.key)
        self._server.metrics.watch(self._server.services.values())
        for name, path in settings.models.items():
            service = open_service(name, path, settings)
            await service.start()
            self._server.services[name] = service

    def __serve_build_asgi_app__(self) -> Any:
        """What answers: Ray Serve asks for it once the models are there."""
        return application(self._server, CALLS)

    def check_health(self) -> None:
        """Raises if this replica must be replaced. One that replaces a worker is not ready, but it will be."""
        for service in self._server.services.values():
            if service.crew.hopeless:
                raise FusebertError(f"{service.name} does not run any more")


def serve(
    settings: Settings,
    tell: Callable[[str], None],
    address: str | None = None,
    replicas: int | None = None,
    autoscale: str | None = None,
) -> None:
    """Serves on Ray until a signal says stop; a second one ends at once."""
    refused = {
        "--tls-cert": settings.certificate, "--watch": settings.watch, "--log": settings.log, "--otlp": settings.otlp,
        "--demo-port": settings.demo_port,
    }  # fmt: skip
    for option, value in refused.items():
        if value:
            raise FusebertError(f"{option} is not for --on ray: there, Ray listens, and logs of its own replicas")
    stop = threading.Event()
    with connected(address, cores()):
        from ray import serve as ray_serve

        port = settings.port or _free_port(settings.host)
        try:
            ray_serve.start(http_options={"host": settings.host, "port": port, "keep_alive_timeout_s": 75})
            application = deploy(settings, settings.threads, replicas, autoscale)
            ray_serve.run(application, name=NAME, route_prefix="/")
        except RuntimeError as error:
            raise FusebertError(f"Ray Serve could not start it: {error}") from None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        tell(f"ready: {', '.join(settings.models)} at http://{settings.host}:{port} on Ray")
        while not stop.wait(1.0):  # so that a signal is seen
            pass
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        tell("stopping, once what was taken in is answered")
        ray_serve.delete(NAME)
        if address is None:
            ray_serve.shutdown()
    tell("stopped")


def read_range(text: str) -> tuple[int, int]:
    """The least and the most replicas, written as 1:8."""
    least, sign, most = str(text).partition(":")
    if not (sign and least.isdigit() and most.isdigit() and int(least) <= int(most) and int(most) > 0):
        raise FusebertError(f"autoscale: the least and the most replicas are expected, such as 1:8, not {text!r:.40}")
    return int(least), int(most)


def _read_fields(name: str, kind: Any, values: Mapping[str, Any]) -> Any:
    known = tuple(field.name for field in fields(kind))
    for field in values:
        if field not in known:
            raise unknown(name, field, known)
    return kind(**values)


def _free_port(host: str) -> int:
    with socket.socket() as listening:
        listening.bind((host, 0))
        port: int = listening.getsockname()[1]
        return port
