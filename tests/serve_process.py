"""The server in a process of its own, as a user starts it, on a free port of the loopback interface; stock clients in
another."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[1] / "build" / "clients"


def speak(script, path, *words):
    """What a script of tests/serve/clients writes to a file, when it runs with the stock clients in build/clients."""
    if not CLIENTS.is_dir():
        pytest.skip("build/clients is missing: run `make build/clients/.installed`")
    command = [sys.executable, Path(__file__).parent / "serve" / "clients" / script, *words, path]
    environment = {**os.environ, "PYTHONPATH": str(CLIENTS), "HF_HUB_OFFLINE": "0"}  # or it asks no server at all
    subprocess.run(command, check=True, timeout=300, env=environment)
    return json.loads(path.read_text())


class Served:
    """A server in a process of its own, as a user starts it."""

    def __init__(self, *words, log: Path):
        command = [sys.executable, "-m", "fusebert", "serve", *map(str, words), "--port", "0", "--threads", "1"]
        command += ["--grpc-port", "0"]
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(command, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"})
        for _ in range(600):
            if "ready: " in log.read_text():
                break
            assert self.process.poll() is None, log.read_text()
            time.sleep(0.05)
        else:
            self.process.kill()
            raise AssertionError(f"it is not ready after 30 seconds: {log.read_text()}")
        told = log.read_text().split("ready: ")[1].split("\n")[0]
        self.port, *others = (int(number) for number in re.findall(r":(\d+)", told))
        self.grpc_port, self.demo_port = (*others, None, None)[:2]

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)

    def ask(self, path, body=None, method=None, **headers):
        """Status, headers and JSON (or bytes) of an answer."""
        connection = self.connect()
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body)
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(connection):
            connection.request(method or ("GET" if body is None else "POST"), path, data, names)
            answer = connection.getresponse()
            content = answer.read()
        try:
            return answer.status, answer.headers, json.loads(content)
        except ValueError:
            return answer.status, answer.headers, content

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)
