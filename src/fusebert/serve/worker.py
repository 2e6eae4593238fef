"""Worker: a process that computes batches. It is forked once the model is packed, so it shares the weights, is there in
milliseconds and needs no file; whatever ends it ends nothing else. Batches come in and outputs go out over a socket, as
plain numbers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np

from fusebert.engine import native
from fusebert.engine.model import Model
from fusebert.engine.sentence import Embedder
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array

WANTS = ("pooled", "rows", "head", "sparse")
_QUESTION = struct.Struct("<QIII")  # bytes that follow, threads, sequences, tokens
_ANSWER = struct.Struct("<QdI")  # bytes that follow, seconds, sequences
_RECORD = np.dtype([("rows", "<i4"), ("columns", "<i4"), ("bytes", "<i8")])  # of an output; -1 rows: an error's text
_DESCRIPTORS = 1 << 20

Output = Array | FusebertError


@dataclass(frozen=True)
class Home:
    """Where workers live: the model whose weights are near, the cores they are pinned to, if any, and how many of them
    a batch gets that has them to itself."""

    model: Model
    cores: tuple[int, ...] = ()
    width: int = field(default_factory=native.cores)


@dataclass(frozen=True)
class Question:
    """A batch as numbers: the ids and types of all tokens, each sequence's length and what is wanted of it, and the
    threads to use."""

    threads: int
    wants: Array  # [sequences], places in WANTS
    lengths: Array  # [sequences]
    ids: Array  # [tokens]
    types: Array  # [tokens]

    def pack(self) -> list[bytes]:
        """What is sent."""
        parts = [part.tobytes() for part in (self.wants, self.lengths, self.ids, self.types)]
        size = sum(map(len, parts))
        return [_QUESTION.pack(size, self.threads, len(self.lengths), len(self.ids)), *parts]

    @staticmethod
    def make(threads: int, wants: Sequence[str], ids: Sequence[Array], types: Sequence[Array]) -> Question:
        """Sequences after each other."""
        numbers = np.array([WANTS.index(want) for want in wants], np.int64)
        lengths = np.array([len(own) for own in ids], np.int64)
        return Question(threads, numbers, lengths, np.concatenate(ids), np.concatenate(types))


def compute(model: Model, embed: Embedder, question: Question) -> list[Output]:
    """An output for each sequence. If a sequence is what makes the batch fail, it alone gets an error."""
    try:
        return _compute(model, embed, question)
    except FusebertError as error:
        if len(question.lengths) == 1:
            return [error]
    ends = np.cumsum(question.lengths)
    found: list[Output] = []
    for i, (begin, end) in enumerate(zip(ends - question.lengths, ends, strict=True)):
        one = slice(i, i + 1)
        ids, types = question.ids[begin:end], question.types[begin:end]
        found += compute(model, embed, Question(1, question.wants[one], question.lengths[one], ids, types))
    return found


def _compute(model: Model, embed: Embedder, question: Question) -> list[Output]:
    offsets = np.concatenate([[0], np.cumsum(question.lengths)])
    rows = model.rows(question.ids, offsets, question.types)
    wants = [WANTS[number] for number in question.wants]
    together = {"pooled": embed(rows, offsets)} if "pooled" in wants else {}
    if "head" in wants and model.network.head.pools:
        together["head"] = model.head(rows, offsets)
    found: list[Output] = []
    for i, want in enumerate(wants):
        if want in together:
            found.append(together[want][i])
            continue
        own = rows[offsets[i] : offsets[i + 1]]
        if want != "rows":
            own = model.head(own, [0, len(own)])
        found.append(np.log1p(np.maximum(own.max(0), 0)) if want == "sparse" else own)
    return found


def _pack_answer(seconds: float, outputs: Sequence[Output]) -> list[bytes]:
    records, parts = np.zeros(len(outputs), _RECORD), []
    for record, output in zip(records, outputs, strict=True):
        if isinstance(output, FusebertError):
            parts.append(str(output).encode())
            record["rows"] = -1
        else:
            parts.append(np.ascontiguousarray(output, np.float32).tobytes())
            record["rows"], record["columns"] = (0, len(output)) if output.ndim == 1 else output.shape
        record["bytes"] = len(parts[-1])
    size = records.nbytes + sum(map(len, parts))
    return [_ANSWER.pack(size, seconds, len(outputs)), records.tobytes(), *parts]


def _read_answer(body: bytes, count: int) -> list[Output]:
    outputs: list[Output] = []
    place = count * _RECORD.itemsize
    for rows, columns, size in np.frombuffer(body, _RECORD, count).tolist():
        if rows < 0:
            outputs.append(FusebertError(body[place : place + size].decode()))
        else:
            values = np.frombuffer(body, np.float32, size // 4, place)
            outputs.append(values.reshape(rows, columns) if rows else values)
        place += size
    return outputs


# In the worker's process


def _serve(link: socket.socket, model: Model, pooling: str | None) -> None:
    """Answers questions until the server closes the link."""
    ready: dict[int, tuple[Model, Embedder]] = {}  # by the threads they use
    while header := _receive(link, _QUESTION.size):
        size, threads, sequences, tokens = _QUESTION.unpack(header)
        body = np.frombuffer(_receive(link, size), np.int64)
        wants, lengths, ids, types = np.split(body, np.cumsum([sequences, sequences, tokens]))
        if threads not in ready:
            own = model.with_threads(threads)
            ready[threads] = own, Embedder(own.engine, own.network.sentence, pooling, normalize=False)
        begin = time.perf_counter()
        outputs = compute(*ready[threads], Question(threads, wants, lengths, ids, types))
        link.sendall(b"".join(_pack_answer(time.perf_counter() - begin, outputs)))


def _receive(link: socket.socket, size: int) -> bytearray:
    """So many bytes, or none when the link is closed."""
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = link.recv_into(view[got:])
        if not count:
            return bytearray()
        got += count
    return data


def _be_worker(link: socket.socket, home: Home, pooling: str | None) -> NoReturn:
    """The life of a forked worker. It ends when its link is closed, not when the terminal or the service manager
    signals all processes: what the server has taken in is still to be answered."""
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if home.cores:
            os.sched_setaffinity(0, home.cores)
        os.closerange(3, link.fileno())  # those of the server: sockets that must close when it closes them
        os.closerange(link.fileno() + 1, _DESCRIPTORS)
        with suppress(ConnectionError):
            _serve(link, home.model, pooling)
        code = 0
    except BaseException:
        with suppress(OSError):
            os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


# In the server's process


class Worker(asyncio.Protocol):
    """A worker's process as the server sees it: `batches` it was sent and has not answered, the oldest first."""

    def __init__(
        self,
        pid: int,
        home: Home,
        answered: Callable[[Worker, float, list[Output]], None],
        lost: Callable[[Worker], None],
    ) -> None:
        self.pid, self.home = pid, home
        self.batches: deque[Any] = deque()
        self.answers = 0
        self._answered, self._lost = answered, lost
        self._buffer = bytearray()
        self._transport: Any = None

    @staticmethod
    async def start(
        home: Home,
        pooling: str | None,
        answered: Callable[[Worker, float, list[Output]], None],
        lost: Callable[[Worker], None],
    ) -> Worker:
        """Forks a worker."""
        ours, theirs = socket.socketpair()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_worker(theirs, home, pooling)
        theirs.close()
        worker = Worker(pid, home, answered, lost)
        await asyncio.get_running_loop().create_unix_connection(lambda: worker, sock=ours)
        return worker

    def send(self, batch: Any, question: Question) -> None:
        """Hands a batch over."""
        self.batches.append(batch)
        self._transport.writelines(question.pack())

    def close(self) -> None:
        """Lets the worker end, once it has answered."""
        self._transport.close()

    def kill(self) -> None:
        """Ends it now."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def reap(self) -> int:
        """Waits for the process, which has closed its link or is about to; the signal or code it ended with."""
        self.kill()
        with suppress(ChildProcessError):
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The link is up."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """An answer, or a part of one."""
        self._buffer += data
        while len(self._buffer) >= _ANSWER.size:
            size, seconds, count = _ANSWER.unpack_from(self._buffer)
            if len(self._buffer) < _ANSWER.size + size:
                return
            body = bytes(self._buffer[_ANSWER.size : _ANSWER.size + size])
            del self._buffer[: _ANSWER.size + size]
            self.answers += 1
            self._answered(self, seconds, _read_answer(body, count))

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        """The process is gone."""
        self._lost(self)
