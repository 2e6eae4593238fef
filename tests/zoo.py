"""The zoo: real exporters' outputs at tiny sizes, made on first use and cached under build/zoo; zoo.get(name) -> Entry.

`ZOO` lists all entries without building. `get` builds what is missing, all models of one maker in one process, so that
a framework is imported once. `python tests/zoo.py [NAME...]` builds everything (or those), makers side by side.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from zoo_catalogue import LISTED, Listed

ROOT = Path(__file__).parents[1]
PLACE, LEGACY = ROOT / "build" / "zoo", ROOT / "build" / "legacy"
SCRIPTS = {  # of each maker; the first is run, a change of any makes its models again
    "torch5": ("zoo_torch.py", "zoo_own.py"),
    "torch4": ("zoo_torch.py", "zoo_own.py"),
    "tensorflow": ("zoo_tensorflow.py", "zoo_tf1.py"),
    "keras": ("zoo_keras.py", "zoo_tf1.py"),
    "keras2onnx": ("zoo_keras2onnx.py", "zoo_torch.py", "zoo_own.py"),
    "tf2onnx": ("zoo_tf2onnx.py",),
    "convert": ("zoo_convert.py",),
}
NEEDS_LEGACY = ("torch4", "tensorflow")
SECOND = ("tf2onnx", "convert")  # made of models that others made


@dataclass(frozen=True)
class Entry(Listed):
    """A model of the zoo with what its own framework says about it."""

    def make(self) -> Path:
        """The model, built if it is missing: a file, or the folder of a SavedModel."""
        return self.folder / self.file

    @cached_property
    def folder(self) -> Path:
        """Where it is, with its cases; built if it is missing, together with all that its maker has not made yet."""
        folder = _folder(self.name)
        if not folder.is_dir():
            build([self.name] if self.source else [name for name in ZOO if ZOO[name].maker == self.maker])
        if not folder.is_dir():
            raise RuntimeError(f"{self.name} could not be made: {folder}.error says why")
        return folder

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.folder / "cases.npz") as stored:
            return dict(stored)

    @cached_property
    def _tensors(self) -> dict[str, dict[str, str]]:
        return json.loads((self.folder / "tensors.json").read_text())

    def _side(self, start: str) -> dict[str, np.ndarray]:
        return {name.removeprefix(start): value for name, value in self._arrays.items() if name.startswith(start)}

    def inputs(self, kind: str = "full") -> dict[str, np.ndarray]:
        """What to feed: names of ONNX inputs, or of the signature for TensorFlow."""
        return self._side(f"{kind}/in/")

    def outputs(self, kind: str = "full") -> dict[str, np.ndarray]:
        """What the framework answered."""
        return self._side(f"{kind}/out/")

    def hidden(self, kind: str = "full") -> np.ndarray | None:
        """[layers + 1, batch, length, hidden]: what enters the first layer, then what leaves each, by the framework."""
        return self._arrays.get(f"{kind}/hidden")

    @property
    def input_tensors(self) -> dict[str, str]:
        """Name in inputs() -> tensor name in the graph, such as serving_default_input_ids:0."""
        return self._tensors["inputs"]

    @property
    def output_tensors(self) -> dict[str, str]:
        """Name in outputs() -> tensor name in the graph."""
        return self._tensors["outputs"]


ZOO: dict[str, Entry] = {listed.name: Entry(**vars(listed)) for listed in LISTED}


def get(name: str) -> Entry:
    """The entry of that name, made."""
    ZOO[name].make()
    return ZOO[name]


@cache
def _key(name: str) -> str:
    entry = ZOO[name]
    sources = [_key(entry.source)] if entry.source else []
    texts = [(ROOT / "tests" / script).read_text() for script in ("zoo_cases.py", *SCRIPTS[entry.maker])]
    pins = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in ("develop", "legacy")]
    tools = ("torch", "transformers", "tensorflow", "tf", "keras", "onnx")
    pins = [line for text in pins for line in text.splitlines() if line.startswith(tools)]
    whole = json.dumps([entry.maker, texts, pins, entry.recipe, sources], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()[:12]


def _folder(name: str) -> Path:
    return PLACE / _key(name) / name


def build(names: Iterable[str]) -> None:
    """Makes what is missing of these and of their sources; makers run side by side, converters after them."""
    wanted = set(names)
    while sources := {ZOO[name].source for name in wanted if ZOO[name].source} - wanted:
        wanted |= sources
    groups = {maker: [n for n in ZOO if n in wanted and ZOO[n].maker == maker] for maker in SCRIPTS}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for makers in ([maker for maker in SCRIPTS if maker not in SECOND], SECOND):
            list(pool.map(_make, makers, [groups[maker] for maker in makers]))


def _make(maker: str, names: list[str]) -> None:
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / f"{maker}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be making them right now
        jobs = [_job(name) for name in names if not _folder(name).is_dir()]
        if not jobs:
            return
        if maker in NEEDS_LEGACY and not (LEGACY / ".installed").exists():
            raise RuntimeError(f"{LEGACY} is missing: run `make build/legacy/.installed`")
        file, log = PLACE / f"{maker}.json", PLACE / f"{maker}.log"
        file.write_text(json.dumps(jobs))
        script = str(ROOT / "tests" / SCRIPTS[maker][0])
        with log.open("w") as output:
            ended = subprocess.run(
                [sys.executable, script, str(file)], stdout=output, stderr=subprocess.STDOUT, env=_environment(maker)
            )
        if ended.returncode:
            raise RuntimeError(f"{script} failed, see {log}:\n{log.read_text()[-2000:]}")


def _job(name: str) -> dict:
    entry = ZOO[name]
    source = {"source": str(_folder(entry.source)), "source_file": ZOO[entry.source].file} if entry.source else {}
    return {"folder": str(_folder(name)), "recipe": entry.recipe | source}


def _environment(maker: str) -> dict[str, str]:
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore", "CUDA_VISIBLE_DEVICES": "-1"}
    quiet |= {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", "TF_ENABLE_ONEDNN_OPTS": "0", "OMP_NUM_THREADS": "1"}
    legacy = {"PYTHONPATH": str(LEGACY), "TF_USE_LEGACY_KERAS": "1"} if maker in NEEDS_LEGACY else {}
    return {**os.environ, **quiet, **legacy}


if __name__ == "__main__":
    build(sys.argv[1:] or ZOO)
    missing = [name for name in sys.argv[1:] or ZOO if not _folder(name).is_dir()]
    sys.exit(f"could not be made: {', '.join(missing)}" if missing else 0)
