"""Makes the models: all that are missing of one maker in one process, so that a framework is imported once.

`folder(name)` is where a model is or will be, under build/zoo; its path holds a hash of all it is made from.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path

from zoo.catalogue import LISTED, Listed

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
PLACE, LEGACY = ROOT / "build" / "zoo", ROOT / "build" / "legacy"
MAKERS = {  # modules of each, the slowest maker first; the first module is run, a change of any makes its models again
    "tensorflow": ("tensorflow", "tf1"),
    "long": ("long", "tensorflow", "tf1"),
    "torch5": ("torch", "own"),
    "torch4": ("torch", "own"),
    "strangers": ("strangers", "torch", "own"),
    "keras": ("keras", "tf1"),
    "keras2onnx": ("keras2onnx", "torch", "own"),
    "convert": ("convert",),
    "tf2onnx": ("tf2onnx",),
}
CONVERTERS = ("onnxsim", "onnxslim")  # which one maker alone uses
NEEDS_LEGACY = ("torch4", "tensorflow", "long")
BY_NAME: dict[str, Listed] = {listed.name: listed for listed in LISTED}


@cache
def _key(name: str) -> str:
    entry = BY_NAME[name]
    sources = [_key(entry.source)] if entry.source else []
    files = [HERE / "cases.py", *(HERE / "makers" / f"{module}.py" for module in MAKERS[entry.maker])]
    pins = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in ("develop", "legacy")]
    tools = ("torch", "transformers", "tensorflow", "tf", "keras", "onnx")
    pins = [line for text in pins for line in text.splitlines() if line.startswith(tools)]
    if entry.maker != "convert":
        pins = [line for line in pins if not line.startswith(CONVERTERS)]
    texts = [file.read_text() for file in files]
    whole = json.dumps([entry.maker, texts, pins, entry.recipe, sources], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def folder(name: str) -> Path:
    """Where that model is once it is made."""
    return PLACE / _key(name) / name


def build(names: Iterable[str]) -> None:
    """Makes what is missing of these and of their sources; makers run side by side, each after those it converts."""
    wanted = set(names)
    while sources := {BY_NAME[name].source for name in wanted} - wanted - {None}:
        wanted |= sources
    groups = {maker: [name for name in BY_NAME if name in wanted and BY_NAME[name].maker == maker] for maker in MAKERS}
    making: dict[str, Future[None]] = {}

    def make(maker: str) -> None:
        for source in {BY_NAME[source].maker for name in groups[maker] if (source := BY_NAME[name].source)}:
            making[source].result()  # begun already: converters come last
        _make(maker, groups[maker])

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for maker in MAKERS:
            making[maker] = pool.submit(make, maker)
    for made in making.values():
        made.result()


def _make(maker: str, names: list[str]) -> None:
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / f"{maker}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be making them right now
        if jobs := [_job(name) for name in names if not folder(name).is_dir()]:
            start(maker, jobs, PLACE)


def _job(name: str) -> dict:
    entry = BY_NAME[name]
    source = {"source": str(folder(entry.source)), "source_file": BY_NAME[entry.source].file} if entry.source else {}
    return {"folder": str(folder(name)), "recipe": entry.recipe | source}


def start(maker: str, jobs: list[dict], place: Path) -> None:
    """Has a maker do some jobs, each a folder and the recipe of its model; list and log are put in `place`."""
    if maker in NEEDS_LEGACY and not (LEGACY / ".installed").exists():
        raise RuntimeError(f"{LEGACY} is missing: run `make build/legacy/.installed`")
    file, log = place / f"{maker}.json", place / f"{maker}.log"
    file.write_text(json.dumps(jobs))
    command = [sys.executable, "-m", f"zoo.makers.{MAKERS[maker][0]}", str(file)]
    with log.open("w") as output:
        ended = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=_environment(maker))
    if ended.returncode:
        raise RuntimeError(f"the maker {maker} failed, see {log}:\n{log.read_text()[-2000:]}")


def _environment(maker: str) -> dict[str, str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": "-1"}
    quiet |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1"}
    legacy = maker in NEEDS_LEGACY
    paths = [str(HERE.parent), *([str(LEGACY)] if legacy else [])]
    return {**os.environ, **quiet, **({"TF_USE_LEGACY_KERAS": "1"} if legacy else {}), "PYTHONPATH": ":".join(paths)}
