"""A server in a process of its own, with all that it starts: until it answers, what it uses, and its end."""

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

_READY = 90.0  # seconds that a server may take to start
_STOP = 10.0  # seconds that it may take to end


class Running:
    """A server for as long as the context lasts. `command` makes its command line and environment for a port."""

    def __init__(self, command: Callable[..., tuple[list[str], dict[str, str]]], more: Sequence[str]) -> None:
        self._command, self._more = command, more

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        words, environment = self._command(port=port)
        self.url = f"http://127.0.0.1:{port}"
        self._said = tempfile.TemporaryFile()  # closed with the server
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", **environment}
        begin = time.perf_counter()
        self._process = subprocess.Popen(
            [*words, *self._more], env=env, stdout=self._said, stderr=self._said, start_new_session=True
        )
        try:
            self._wait(port, begin + _READY)
        except BaseException:
            self.__exit__()
            raise
        self.ready_seconds = time.perf_counter() - begin
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        limit = time.perf_counter() + _STOP
        while self.processes() and time.perf_counter() < limit:
            self._process.poll()
            time.sleep(0.05)
        for process in self.processes():
            os.kill(process, signal.SIGKILL)
        self._process.wait()
        self._said.close()

    def _wait(self, port: int, limit: float) -> None:
        """Until something other than "not yet" is answered."""
        while time.perf_counter() < limit:
            if self._process.poll() is not None:
                self._said.seek(0)
                raise RuntimeError(f"it ended: {self._said.read().decode(errors='replace')[-300:]}")
            for path in ("/health", "/v2/health/ready"):  # what has neither says 404, and is there
                if _status(port, path) in (200, 404):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"it was not ready after {_READY:g} seconds")

    def processes(self) -> list[int]:
        """All of its session."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            except OSError:
                continue
            if int(session) == self._process.pid and state != "Z":
                found.append(int(path.parent.name))
        return found

    def cpu_seconds(self) -> float:
        """That all of its processes have used."""
        ticks = 0
        for process in self.processes():
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """What its processes hold, shared pages counted once."""
        total = 0
        for process in self.processes():
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024


def _status(port: int, path: str) -> int:
    try:
        with socket.create_connection(("127.0.0.1", port), 1.0) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            return int(connection.recv(64).split()[1])
    except (OSError, IndexError, ValueError):
        return 0
