"""The server's own page: its files, and the values that its charts show, as server-sent events."""

from __future__ import annotations

from functools import partial

from starlette.responses import Response

from fusebert import web
from fusebert.serve.front import Asked
from fusebert.serve.http import Call, Events
from fusebert.serve.live import Live
from fusebert.serve.protocols.tei import health

_FILES = ("style.css", "element.js", "serve.css", "serve.js", "results.js", "live.js", "examples.js")


def calls(live: Live) -> list[Call]:
    """The calls of the page. `/` is still what it is for clients that do not ask for HTML."""

    async def home(asked: Asked) -> Response:
        if b"text/html" in asked.headers.get(b"accept", b""):
            return await _file("serve.html", asked)
        return await health(asked)

    async def events(asked: Asked) -> Response:  # noqa: ARG001
        return Events(live.values())

    files = [Call("GET", f"/page/{name}", partial(_file, name), public=True, documented=False) for name in _FILES]
    return [
        Call("GET", "/", home, public=True, documented=False),
        Call("GET", "/page/events", events, documented=False),
        *files,
    ]


async def _file(name: str, asked: Asked) -> Response:  # noqa: ARG001
    return Response(web.read(name), headers={**web.HEADERS, "content-type": web.TYPES[name.rpartition(".")[2]]})
