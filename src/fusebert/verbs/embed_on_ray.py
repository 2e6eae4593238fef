"""Embed on Ray: windows answered by actors, each of which has loaded the model once. One task streams the windows, a
pool of actors that grows with the work answers them, and this process writes the parts they send. What a lost actor was
doing is done again by another."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusebert.cluster import connected
from fusebert.engine.fingerprint import fingerprint
from fusebert.engine.model import Model
from fusebert.engine.native import cores
from fusebert.errors import FusebertError
from fusebert.formats.dataset import read_rows
from fusebert.formats.parts import Output, render
from fusebert.verbs.windows import Place, Settings, Tell, Worker, windows

_RETRIES = 3  # times that a window whose actor was lost is tried again


def run(
    model: Model,
    settings: Settings,
    files: Sequence[Path],
    ready: set[int],
    output: Output,
    tell: Tell,
    place: Place,
    threads: int | None,
) -> int:
    """Writes a part for every window that is not ready yet; how many windows there are."""
    recipe = pickle.dumps(model)  # that is, where to load it from
    with connected(place.address, cores()) as ray:
        threads = threads or _smallest_node(ray)
        most = place.workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        done: set[int] = set()
        total: int | None = None
        for careful in (False, True):
            actors = _Recipe(recipe, fingerprint(model), settings, threads, output.suffix, careful)
            answers = _answers(ray, _stream(ray, list(files), settings, ready | done), actors, most)
            try:
                told = _write(answers, ready | done, done, output, tell)
            except ray.exceptions.RayError as error:
                raise FusebertError(f"Ray could not go on; the same command does: {error}") from None
            total = total if told is None else told
            if len(done) == total:
                return total
    if total is None:
        raise FusebertError("the process that reads the input was lost; what is done is kept, the same command goes on")
    missing = sorted(set(range(total)) - done)
    raise FusebertError(
        f"{len(missing)} of {total} parts are missing, the first is number {missing[0]}: their workers were lost again "
        "and again; what is done is kept, and the same command goes on with it"
    )


def _write(answers: Any, ready: set[int], done: set[int], output: Output, tell: Tell) -> int | None:
    """Writes what comes, in any order, and adds its numbers to `done`; how many parts there should be, unless the actor
    that was to pass that on was lost."""
    total = None
    for batch in answers.iter_batches(batch_size=None, batch_format="pyarrow"):
        for answer in batch.to_pylist():
            if answer["error"]:
                raise FusebertError(answer["error"])
            if answer["number"] < 0:
                total = answer["rows"]
                continue
            if answer["number"] not in ready:
                output.add_rendered(answer["number"], answer["rejected"], answer["content"])
            if answer["number"] not in done:
                tell(answer["rows"], answer["tokens"])
            done.add(answer["number"])
    return total


def _answers(ray: Any, found: Any, recipe: _Recipe, most: int) -> Any:
    """The data set of answers to a data set of windows, by at most so many actors."""
    pool = ray.data.ActorPoolStrategy(
        min_size=1,
        max_size=most,
        max_concurrent_calls_per_actor=1 if recipe.careful else 2,
        enable_true_multi_threading=not recipe.careful,
    )
    return found.map_batches(
        _Actor,
        fn_constructor_args=(recipe,),
        batch_size=1,
        batch_format="pyarrow",
        zero_copy_batch=True,
        compute=pool,
        num_cpus=recipe.threads,
        max_restarts=-1,
        max_task_retries=_RETRIES,
    )


def _smallest_node(ray: Any) -> int:
    """The cores of the smallest node, all of which a worker takes."""
    found = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    return min(filter(None, found), default=1)


def _stream(ray: Any, files: list[Path], settings: Settings, ready: set[int]) -> Any:
    """The windows as a Ray data set, a row for each. They are read on this node, one after the other, as they are
    asked for; where a window ends depends on all rows before it."""
    import pyarrow as pa
    from ray.data.block import BlockMetadata
    from ray.data.datasource import Datasource, ReadTask

    def read() -> Iterator[Any]:
        count = 0
        try:
            for window in windows(read_rows(files, settings.columns, settings.keep), settings):
                rows = b"" if count in ready else pickle.dumps(window)
                yield _table(pa, number=count, rows=len(window), window=rows)
                count += 1
            yield _table(pa, number=-1, rows=count, window=b"")
        except FusebertError as error:
            yield _table(pa, number=-1, error=str(error), window=b"")

    class Windows(Datasource):  # type: ignore[misc]
        def estimate_inmemory_data_size(self) -> int | None:
            return None

        def get_read_tasks(self, *_: Any, **__: Any) -> list[Any]:
            return [ReadTask(read, BlockMetadata(None, None, None, None))]

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.max_errored_blocks = -1  # what is missing is told at the end, when all others are there
    context.target_max_block_size = 1  # a window is a block
    here = {"ray.io/node-id": ray.get_runtime_context().get_node_id()}
    return ray.data.read_datasource(Windows(), override_num_blocks=1, num_cpus=0, label_selector=here)


def _table(pa: Any, number: int, rows: int = 0, tokens: int = 0, error: str = "", **content: bytes) -> Any:
    """One window or its answer. Number -1 follows the last window, and has their number as its rows."""
    facts = {"number": [number], "rows": [rows], "tokens": [tokens], "error": [error]}
    return pa.table({**facts, **{name: pa.array([value], pa.large_binary()) for name, value in content.items()}})


@dataclass(frozen=True)
class _Recipe:
    """What an actor is made from. A careful one answers in processes that may end without harm."""

    model: bytes
    fingerprint: str
    settings: Settings
    threads: int
    suffix: str
    careful: bool


class _Actor:
    """A worker in a process of its own, on any node. While one window is answered, the next one is tokenised."""

    def __init__(self, recipe: _Recipe) -> None:
        model: Model = pickle.loads(recipe.model).with_threads(recipe.threads)
        self._engine, self._suffix, self._error = threading.Lock(), recipe.suffix, ""
        self._worker = Worker(model, recipe.settings, recipe.careful)
        if fingerprint(model) != recipe.fingerprint:
            self._error = "the model at that path is another one on a node of the cluster; copy it to all nodes"

    def __call__(self, batch: Any) -> Any:
        import pyarrow as pa

        (row,) = batch.to_pylist()
        number, rows, rejected, content = row["number"], row["rows"], b"", b""
        tokens: list[Any] = []
        error = row["error"] or self._error
        if row["window"] and not error:
            try:
                window, tokens = self._worker.tokenise(pickle.loads(row["window"]))
                with self._engine:
                    part = self._worker.answer(number, window, tokens)
                rejected, content = render(part, self._suffix)
            except Exception as failure:
                error = f"part {number}: {failure}"
        count = sum(len(one.ids) for one in tokens)
        return _table(pa, number, rows, count, error, rejected=rejected, content=content)
