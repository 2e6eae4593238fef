"""Legacy: a command line of an earlier tool, in today's words. One table, which docs/coming-from.md shows; words in,
words out, with a sentence for every option that asks for something which is not there."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Left:
    """An option that is left out, with its value if it has one, and why."""

    why: str
    has_value: bool = False


@dataclass(frozen=True)
class Several:
    """An option with a value, and more of a form behind it: -b x y means -b x -b y."""

    form: str = "[^-].*"


PROGRAMS = {
    "bert-model-optimization": "optimize", "bert-model": "optimize", "bert-no-model": "optimize",
    "compare-bert-results": "compare", "bert-perf-test": "bench", "benchmark": "bench",
    "configure-bert-op": "configure-op", "bert-server": "serve", "bert-client": "load-test --clients 1",
}  # fmt: skip

_NO_GPU = Left("fusebert runs on CPUs, and so does what it writes")
_NO_IPEX = Left("fusebert is what is measured; beside it torch runs as it is")
_NO_LOG = Left("errors are told in any case, and --json tells everything", has_value=True)

Now = int | str | Left | Several

# Command -> option of an earlier tool -> what it is: the number of an argument, another option, several, or left out.
EARLIER: dict[str, dict[str, Now]] = {
    "optimize": {
        "--input": 0,
        "--input-saved-model": 0,
        "--output": "--out",
        "--output-saved-model": "--out",
        "--model-type": Left("the exporter is found out", has_value=True),
        "--gpu-only": Left(
            "fusebert writes models for CPUs; the tanh GELU that it stood for is --for stock-onnxruntime --fast-gelu"
        ),
        "--batch-size": Left("a model keeps its batch size, and most take any", has_value=True),
        "--aggressive-optimizations": "--aggressive",
    },
    "compare": {"--baseline-model": 0, "--optimized-model": 1, "--use-gpu": _NO_GPU},
    "bench": {
        "--model": 0,
        "-m": 0,
        "-b": Several(r"[\d,]+"),
        "--batch-size": Several(r"[\d,]+"),
        "--intra-op-num-threads": "--threads",
        "--input-ids-name": "--input-ids",
        "--input-mask-name": "--input-mask",
        "--segment-ids-name": "--segment-ids",
        "--bert-op": "--traced",
        "--iterations": "--test-times",
        "--warmup-time": "--warmup",
        "--use-gpu": _NO_GPU,
        "--ipex": _NO_IPEX,
        "--log": _NO_LOG,
    },
    "accuracy": {
        "--model": 0,
        "-m": 0,
        "-t": "--tokenizer",
        "-n": "--samples",
        "--num-samples": "--samples",
        "--output-csv": "--csv",
        "--sep": Left("the file has commas", has_value=True),
    },
    "extract-pattern": {
        "-s": Several(),
        "--seed-nodes": Several(),
        "-b": Several(),
        "--barrier-nodes": Several(),
        "-B": Several(),
        "--barrier-ops": Several(),
        "-l": _NO_LOG,
        "--log": _NO_LOG,
    },
    "replace-pattern": {"-l": _NO_LOG, "--log": _NO_LOG},
    "configure-op": {
        "--log": _NO_LOG, "--bert-op-lib": Left("the op comes with fusebert, and nothing is run", has_value=True)
    },
    "serve": {
        "--dir": 0,
        "--parallel": "--replicas",
        "--batch": Left("a batch is what has come in, up to --max-batch-tokens", has_value=True),
    },
}  # fmt: skip


def translate(words: Sequence[str], say: Callable[[str], None]) -> list[str]:
    """The words that the commands know; `say` is told what is left out."""
    if not words or words[0].startswith("-"):
        return list(words)
    name = words[0].removesuffix(".py").replace("_", "-")
    command, *more = PROGRAMS.get(name, name).split()
    return [command, *more, *_Translation(EARLIER.get(command, {}), say).of(list(words[1:]))]


class _Translation:
    def __init__(self, table: dict[str, Now], say: Callable[[str], None]) -> None:
        self._table, self._say = table, say
        self._places: dict[int, str] = {}
        self._rest: list[str] = []

    def of(self, words: list[str]) -> list[str]:
        """Arguments that were options come first, in their order."""
        while words and words[0] != "--":
            self._take(words.pop(0), words)
        return [*(self._places[place] for place in sorted(self._places)), *self._rest, *words]

    def _take(self, word: str, following: list[str]) -> None:
        name, sign, value = word.partition("=")
        now = self._table.get(name.replace("_", "-")) if word.startswith("-") else None
        if isinstance(now, int) and (sign or following):
            self._places[now] = value if sign else following.pop(0)
        elif isinstance(now, Left):
            self._say(f"{name} is left out: {now.why}")
            if now.has_value and not sign and following:
                following.pop(0)
        elif isinstance(now, Several) and not sign and following:
            self._rest += [name, following.pop(0)]
            while following and re.fullmatch(now.form, following[0], re.DOTALL):
                self._rest += [name, following.pop(0)]
        else:
            self._rest.append(f"{now}{sign}{value}" if isinstance(now, str) else word)
