"""Watch: a model's files on disk. A new model at the same path is loaded beside the old one, tried on the same tokens,
and takes over; the old one answers what it has taken in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np

from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.serve.service import Request, Service, Task

_LOOK = 1.0  # seconds between two looks; a change must look the same twice, for files are written one after the other
_PROBE = 16  # tokens of the sequence that both models are tried on


def stamp(path: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What tells a model's files from others: names, places on disk, sizes and times."""
    found = []
    for file in sorted([path, *path.rglob("*")] if path.is_dir() else [path]):
        try:
            status = file.stat()
        except OSError:
            continue
        found.append((str(file), status.st_ino, status.st_size, status.st_mtime_ns))
    return tuple(found)


async def watch(
    path: Path, services: dict[str, Service], name: str, load: Callable[[], Service], tell: Callable[[str], None]
) -> None:
    """Replaces the service of that name when its files have changed; a model that cannot be served changes nothing."""
    served = seen = await asyncio.to_thread(stamp, path)
    while True:
        await asyncio.sleep(_LOOK)
        now = await asyncio.to_thread(stamp, path)
        if now == served or now != seen or not now:
            seen = now
            continue
        served = now
        try:
            told = await replace(services, name, load)
        except FusebertError as error:
            told = f"{name} has changed on disk, but the new one is not served: {error}"
        tell(told)


async def replace(services: dict[str, Service], name: str, load: Callable[[], Service]) -> str:
    """Loads the new model, tries it beside the old one, and lets it take over; what is to be told about it."""
    old, new = services[name], await asyncio.to_thread(load)
    await new.start()
    try:
        before, after = await _probe(old), await _probe(new)
    except FusebertError:
        await new.close()
        raise
    services[name] = new
    await asyncio.sleep(_LOOK)  # for requests that hold the old one, but have not reached it yet
    await old.close()
    if before.shape != after.shape:
        return f"{name} was replaced by a model with other outputs: {before.size} before, {after.size} now"
    scale = float(np.linalg.norm(before) * np.linalg.norm(after))
    alike = float(before @ after) / scale if scale else 1.0
    return f"{name} was replaced; on a probe the new one's output has a cosine of {alike:.4f} to the old one's"


async def _probe(service: Service) -> Array:
    """What a model makes of tokens that any model has."""
    embeddings = service.model.network.embeddings
    length = min(_PROBE, embeddings.longest)
    ids = np.arange(length) % len(embeddings.word)
    task = await service.run(Task(0, 0, inputs=[ids.astype(np.int64)], want="rows"), Request())
    service.release(task)
    output: Array = np.asarray(task.outputs[0], np.float64).ravel()
    if not np.isfinite(output).all():
        raise FusebertError(f"{service.name}: its output on a probe is not finite")
    return output
