"""Embed here: windows answered in this process. While workers answer, each on cores of its own, the next window is read
and tokenised and the last one written."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from fusebert.engine.model import Model
from fusebert.engine.tokenizer import Tokens
from fusebert.engine.topology import Node, nodes, pinned, share, spread
from fusebert.formats.dataset import Row, read_rows
from fusebert.formats.parts import Output, Part
from fusebert.verbs.windows import Settings, Tell, Worker, windows


def run(
    model: Model,
    settings: Settings,
    files: Sequence[Path],
    ready: set[int],
    output: Output,
    tell: Tell,
    workers: int | None,
) -> int:
    """Writes a part for every window that is not ready yet; how many windows there are."""
    found = windows(read_rows(files, settings.columns, settings.keep), settings)
    crew = _Crew(model, settings, workers, nodes())
    parts = 0
    with ExitStack() as stack:
        reader, answering, writer = (stack.enter_context(ThreadPoolExecutor(count)) for count in (1, crew.size, 1))

        def prepare(number: int) -> tuple[int, Sequence[Row], list[Tokens] | None] | None:
            window = next(found, None)
            if window is None:
                return None
            if number in ready:
                return len(window), [], None
            return len(window), *crew.first.tokenise(window)

        def write(part: Part, tokens: int) -> None:
            output.add(part)
            tell(part.rows, tokens)

        under_way: deque[tuple[Future[Part], int]] = deque()
        writing: Future[None] | None = None
        following = reader.submit(prepare, 0)
        while (prepared := following.result()) is not None or under_way:
            if prepared is not None:
                count, window, tokens = prepared
                following = reader.submit(prepare, parts + 1)
                if tokens is None:
                    tell(count, 0)
                else:
                    size = sum(len(one.ids) for one in tokens)
                    under_way.append((answering.submit(crew.answer, parts, window, tokens), size))
                parts += 1
            if under_way and (prepared is None or len(under_way) >= crew.size):
                answered, size = under_way.popleft()
                part = answered.result()
                if writing:
                    writing.result()
                writing = writer.submit(write, part, size)
        if writing:
            writing.result()
    return parts


class _Crew:
    """Workers, one for each thread that asks for an answer. Where there are several, or several nodes, each is pinned
    to cores of its own, and the weights are packed once on every node."""

    def __init__(self, model: Model, settings: Settings, workers: int | None, found: Sequence[Node]) -> None:
        self.size = workers or len(found)
        self.first = Worker(model, settings)
        self._settings, self._threads = settings, max(1, model.threads // self.size)
        self._places = list(zip(spread(self.size, found), share(self.size, found), strict=True))
        alone = len(found) == 1 or model.origin is None
        self._models = dict.fromkeys(found, model) if alone else {}
        self._own, self._lock = threading.local(), threading.Lock()
        self._recipe = b"" if alone else pickle.dumps(model)

    def answer(self, number: int, window: Sequence[Row], tokens: list[Tokens]) -> Part:
        """The part that a window becomes, by this thread's worker."""
        if self.size == 1:
            return self.first.answer(number, window, tokens)
        if not hasattr(self._own, "worker"):
            with self._lock:
                self._own.worker, self._own.cores = self._hire()
        with pinned(self._own.cores):
            part: Part = self._own.worker.answer(number, window, tokens)
        return part

    def _hire(self) -> tuple[Worker, tuple[int, ...]]:
        node, cores = self._places.pop()
        with pinned(node.cores):
            if node not in self._models:
                self._models[node] = pickle.loads(self._recipe)
        with pinned(cores):
            return Worker(self._models[node].with_threads(self._threads), self._settings), cores
