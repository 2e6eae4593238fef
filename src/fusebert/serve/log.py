"""Log: a line of JSON for every request, and for what goes wrong. It holds sizes, times and names, and never what a
client sent. A log that cannot be written stops nothing."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import msgspec

from fusebert.errors import FusebertError
from fusebert.serve.service import Request, clock


class Log(logging.Handler):
    """Lines in a file, to which they are appended, or on standard output, whose name is "-"."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.INFO)
        self._file: TextIO = sys.stdout
        if str(path) != "-":
            try:
                self._file = path.open("a", encoding="utf-8")
            except OSError as error:
                raise FusebertError(f"{path}: the log cannot be opened ({error.strerror})") from None
        self.setFormatter(logging.Formatter())

    def record(self, path: str, status: int, begun: float, request: Request) -> None:
        """A request has been answered."""
        line = {"path": path, "status": status, "milliseconds": round((clock() - begun) * 1000, 3)}
        if request.trace:
            line["trace"] = request.trace.trace
        if request.tasks:
            service, task = request.tasks[0]
            tokens = sum(sum(task.tokens) for _, task in request.tasks)
            line |= {"model": service.name, "lane": task.lane, "texts": task.count, "tokens": tokens}
        self._write(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Something went wrong. Of an exception only its kind and its places are told: its message may quote inputs."""
        line: dict[str, Any] = {"level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info and record.exc_info[0]:
            kind, _, trace = record.exc_info
            line["exception"] = kind.__name__
            line["places"] = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in traceback.extract_tb(trace)]
        self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError, ValueError):  # a full disk, or a file that is closed already
            self._file.write(msgspec.json.encode({"time": stamp, **line}).decode() + "\n")
            self._file.flush()

    def close(self) -> None:
        """Closes the file."""
        super().close()
        if self._file is not sys.stdout:
            with suppress(OSError):
                self._file.close()
