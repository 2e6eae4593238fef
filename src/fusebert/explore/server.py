"""The server of the page: this machine alone may ask it, for files of fusebert/web and for JSON about the models."""

from __future__ import annotations

import json
import threading
import webbrowser
from collections.abc import Callable, Sequence
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fusebert import web
from fusebert.errors import FusebertError
from fusebert.explore.model import Shown
from fusebert.explore.patterns import FILES, enclose, make_files, read_picked

HOST = "127.0.0.1"
_LARGEST_BODY = 1 << 20


def explore(models: Sequence[Shown], port: int, tell: Callable[[str], None], browser: bool = False) -> None:
    """Shows models on a local page until it is interrupted; `tell` is told where."""
    with make_server(models, port) as server:
        address = f"http://{HOST}:{server.server_address[1]}"
        tell(f"explore: {address} (Ctrl+C ends it)")
        if browser:
            webbrowser.open(address)
        server.serve_forever(poll_interval=0.2)


def make_server(models: Sequence[Shown], port: int) -> ThreadingHTTPServer:
    """A server that listens already."""
    answers = Answers(models)

    class Handler(_Handler):
        pass

    Handler.answers = answers
    try:
        server = ThreadingHTTPServer((HOST, port), Handler)
    except OSError as error:
        raise FusebertError(f"{HOST}:{port} cannot be listened on ({error.strerror}); choose another --port") from None
    server.daemon_threads = True
    return server


class Answers:
    """JSON about models, by path of the request. One question at a time is computed."""

    def __init__(self, models: Sequence[Shown]) -> None:
        self._models = models
        self._lock = threading.Lock()

    def get(self, path: str, query: dict[str, list[str]]) -> bytes:
        """What a GET asks for."""
        if path == "/api/models":
            return _json([{"path": one.name, "kind": one.source.kind} for one in self._models])
        model, rest = self._model(path)
        with self._lock:
            if rest == "weight":
                return _json(model.histogram(query.get("name", [""])[0]))
            if not rest:
                return self._data[model]()
        raise KeyError(path)

    def post(self, path: str, body: Any) -> bytes:
        """What a POST with picked nodes asks for."""
        model, rest = self._model(path)
        picked = read_picked(body)
        with self._lock:
            if rest == "pattern":
                return _json(enclose(model.source, picked))
            if rest == "recipe":
                return _json(make_files(model.source, picked, FILES[1])[0])
            if rest in FILES:
                return make_files(model.source, picked, rest)[1]
        raise KeyError(path)

    @cached_property
    def _data(self) -> dict[Shown, Callable[[], bytes]]:
        kept: dict[Shown, bytes] = {}

        def read(model: Shown) -> bytes:
            if model not in kept:
                kept[model] = _json(model.data)
            return kept[model]

        return {model: lambda model=model: read(model) for model in self._models}  # type: ignore[misc]

    def _model(self, path: str) -> tuple[Shown, str]:
        """The model of /api/models/NUMBER/..., and what is left of the path."""
        start, number, rest = (*path.removeprefix("/api/").split("/", 2), "", "")[:3]
        if not path.startswith("/api/") or start != "models" or not number.isdecimal() or len(number) > 3:
            raise KeyError(path)
        try:
            return self._models[int(number)], rest
        except IndexError:
            raise KeyError(path) from None


class _Handler(BaseHTTPRequestHandler):
    answers: Answers
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        name = "explore.html" if parts.path == "/" else parts.path[1:]
        if name in web.names():
            self._send(200, web.read(name), web.TYPES[name.rpartition(".")[2]])
        else:
            self._answer(lambda: self.answers.get(parts.path, parse_qs(parts.query)))

    def do_POST(self) -> None:
        length = self.headers.get("content-length", "")
        kind = self.headers.get("content-type", "").partition(";")[0]
        if not length.isdecimal() or int(length) > _LARGEST_BODY or kind != "application/json":
            self.close_connection = True
            self._send(400, _json({"error": "JSON with a content-length of at most 1 MiB is expected"}))
            return
        body = self.rfile.read(int(length))
        self._answer(lambda: self.answers.post(urlsplit(self.path).path, json.loads(body)))

    def _answer(self, work: Callable[[], bytes]) -> None:
        """An answer, or a sentence that says why there is none. Pages of other sites may not ask, whatever name they
        have for this machine."""
        if self.headers.get("host", "").rpartition(":")[0] not in (HOST, "localhost"):
            self._send(403, _json({"error": f"only pages of http://{HOST} and http://localhost are answered"}))
            return
        try:
            status, data = 200, work()
        except KeyError:
            status, data = 404, _json({"error": "there is no such thing"})
        except (FusebertError, json.JSONDecodeError, RecursionError) as error:
            status, data = 422, _json({"error": str(error)})
        self._send(status, data, "application/octet-stream" if self.path.endswith(".pb") and status == 200 else _JSON)

    def _send(self, status: int, data: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        for name, value in {**web.HEADERS, "content-type": kind, "content-length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Says nothing: the page is for one person."""


_JSON = "application/json"


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, allow_nan=False, default=str).encode()
