"""Cluster: the Ray that work runs on: one that is there already, a cluster by its address, or one that is started here
for as long as the work lasts."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fusebert.errors import FusebertError

_ATTEMPTS = 3  # to start one: Ray gives its own processes 30 seconds, which may be few on a busy machine
_STORE = 2 << 30  # bytes of the object store of a Ray that is started here, at most


@contextmanager
def connected(address: str | None, cores: int) -> Iterator[Any]:
    """Yields the module `ray`, connected to the cluster at `address`, as Ray writes it (auto or HOST:PORT), or at
    RAY_ADDRESS. Without one a Ray is started here, with so many cores, even if a cluster runs on this machine."""
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    address = address or os.environ.get("RAY_ADDRESS")
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    if not address:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
        store = max(80 << 20, min(_STORE, _free_memory() // 8))
        quiet |= {"num_cpus": cores, "object_store_memory": store, "include_dashboard": False}
    for attempt in range(1 if address else _ATTEMPTS):
        try:
            ray.init(address or "local", **quiet)
            break
        except Exception as error:  # Ray says it with that class
            ray.shutdown()
            if address or attempt == _ATTEMPTS - 1:
                hint = (
                    "; a cluster that asks for a token needs RAY_AUTH_MODE=token and the token here too"
                    if address
                    else ""
                )
                raise FusebertError(f"Ray at {address or 'this machine'} cannot be used: {error}{hint}") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield ray
    finally:
        ray.shutdown()


def import_ray() -> Any:
    """The module."""
    try:
        import ray
    except ImportError as error:
        raise FusebertError(f"this needs Ray ({error.name} is missing): pip install 'fusebert[ray]'") from None
    return ray


def _free_memory() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
