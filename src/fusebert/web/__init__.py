"""The pages: static files written by hand, without a build step, and the headers that a browser is given with them.
They read JSON that commands print; what is computed is computed elsewhere."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@cache
def names() -> frozenset[str]:
    """The files that there are."""
    return frozenset(file.name for file in files(__name__).iterdir() if file.name.rpartition(".")[2] in TYPES)


@cache
def read(name: str) -> bytes:
    """A file; KeyError for a name that is none of them."""
    if name not in names():
        raise KeyError(name)
    return (files(__name__) / name).read_bytes()
