"""OpenAPI: the tables of calls -> the document that describes them, at /openapi.json, and its page, at /docs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import msgspec
from starlette.responses import HTMLResponse

from fusebert.serve.front import Asked
from fusebert.serve.http import Call
from fusebert.serve.protocols.oip import VERSION

_ERROR = {"type": "object", "required": ["error"]}
_JSON = "application/json"
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


def describe(calls: Sequence[Call], models: Sequence[str]) -> dict[str, Any]:
    """The document of these calls, but for those that are always refused, in a server of models with these names."""
    shown = [call for call in calls if call.documented]
    types = [kind for call in shown for kind in (call.body, call.answer) if kind not in (None, bytes)]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = iter(schemas)
    paths: dict[str, Any] = {}
    for call in shown:
        body = {"type": "object"} if call.body is bytes else next(schema_of) if call.body else None
        answer = None if call.answer is None else next(schema_of)
        paths.setdefault(call.path, {})[call.method.lower()] = _operation(call, body, answer, models)
    keys = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "fusebert", "version": version("fusebert")},
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": keys},
        "security": [{}, {"key": []}],
    }


def _operation(call: Call, body: Any, answer: Any, models: Sequence[str]) -> dict[str, Any]:
    media = "text/plain" if call.answer is str else _JSON
    done: dict[str, Any] = {"description": "Done."}
    if answer is not None:
        done["content"] = {media: {"schema": answer}}
    known = {"name": list(models), "version": [VERSION]}
    places = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "enum": known[name]}}
        for name in re.findall(r"{(\w+)}", call.path)
    ]
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W", "_", f"{call.method.lower()}{call.path}"),
        "summary": (call.work.__doc__ or "").strip(),
        "parameters": places,
        "responses": {"2XX": done, "default": {"description": "Refused.", "content": {_JSON: {"schema": _ERROR}}}},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {_JSON: {"schema": body}}}
    return operation


def own_calls(calls: Sequence[Call]) -> list[Call]:
    """The calls that answer with the document of the others, and with its page."""
    made = cache(lambda models: describe(calls, models))

    async def document(asked: Asked) -> Any:
        """This document."""
        return made(tuple(asked.server.services))

    return [Call("GET", "/openapi.json", document, None, dict[str, Any], public=True), _page()]


def _page() -> Call:
    """The call that answers with a page which shows the document and tries its calls; it loads nothing else."""

    async def page(asked: Asked) -> Any:  # noqa: ARG001
        """The document as a page."""
        text = files("fusebert.serve.protocols").joinpath("openapi.html").read_text(encoding="utf-8")
        return HTMLResponse(text, headers={"content-security-policy": _POLICY, "x-content-type-options": "nosniff"})

    return Call("GET", "/docs", page, public=True, documented=False)
