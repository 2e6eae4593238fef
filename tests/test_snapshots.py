"""What others rely on stays: public names and signatures, commands with their options, and the keys of what `--json`
prints. tests/golden/snapshots has them; a change that is meant is written there by one command:

    FUSEBERT_SNAPSHOT=write python -m pytest tests/test_snapshots.py"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from checkpoints import HEADS, make_checkpoint
from golden.answers import GOLDEN, MODEL
from serve_process import Served

import fusebert
from fusebert.cli.call import app

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
SNAPSHOTS = GOLDEN / "snapshots"
ONNX, FROZEN, SAVED = GOLDEN / "onnx/source.onnx", GOLDEN / "tensorflow/source.pb", GOLDEN / "tensorflow/source"
COMMAND = "FUSEBERT_SNAPSHOT=write python -m pytest tests/test_snapshots.py"


def check(name: str, now: list[str]) -> None:
    """Compares lines with those of a snapshot, or writes them if that is asked for."""
    path, now = SNAPSHOTS / f"{name}.txt", sorted(now)
    if os.environ.get("FUSEBERT_SNAPSHOT") == "write":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in now))
    before = path.read_text().splitlines()
    gone, new = [f"- {line}" for line in before if line not in now], [f"+ {line}" for line in now if line not in before]
    assert now == before, "\n".join([f"{path.name} has changed; if that is meant: {COMMAND}", *gone, *new])


# Python


def parameters(function: Any) -> str:
    """Names, kinds and defaults, without annotations."""
    signature = inspect.signature(function)
    plain = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def described(prefix: str, thing: Any) -> list[str]:
    """A line for a function; for a class one more for each of its public members."""
    if not inspect.isclass(thing):
        return [f"{prefix}{parameters(thing)}"]
    if issubclass(thing, Exception):
        return [f"{prefix}({', '.join(base.__name__ for base in thing.__mro__[1:-2])})"]
    lines = [f"{prefix}{parameters(thing)}"]
    for name in sorted(name for name in dir(thing) if not name.startswith("_")):
        member = inspect.getattr_static(thing, name)
        called = inspect.isroutine(getattr(thing, name))
        lines.append(f"{prefix}.{name}{parameters(member) if called else ''}")
    return lines


def own_names(module: ModuleType) -> list[str]:
    """The public functions of a module that has no list of them: those that are defined in it."""
    own = [n for n, thing in vars(module).items() if getattr(thing, "__module__", None) == module.__name__]
    return [name for name in own if not name.startswith("_")]


def test_public_names_and_signatures() -> None:
    lines = [line for name in fusebert.__all__ for line in described(f"fusebert.{name}", getattr(fusebert, name))]
    check("python", lines)


@pytest.mark.parametrize("framework", ["torch", "onnxruntime", "tensorflow"])
def test_names_and_signatures_of_the_front_doors(framework: str) -> None:
    pytest.importorskip(framework)
    module = __import__(f"fusebert.{framework}", fromlist=[framework])
    if framework == "torch":
        module.disable()  # other tests load stock models in this process
    names = getattr(module, "__all__", None) or own_names(module)
    lines = [line for name in names for line in described(f"fusebert.{framework}.{name}", getattr(module, name))]
    lines += [f"fusebert.tensorflow.{name}" for name in ("bert", "bert_hidden_states") if hasattr(module, name)]
    check(framework, lines)


# Commands


def test_commands_and_their_options() -> None:
    import typer

    group: Any = typer.main.get_command(app)
    lines = []
    for name, command in group.commands.items():
        for parameter in command.params:
            flags = " ".join((*parameter.opts, *parameter.secondary_opts))
            many = " ..." if parameter.nargs == -1 or parameter.multiple else ""
            needed = " (required)" if parameter.required else ""
            shown = flags if parameter.param_type_name == "option" else flags.upper()
            lines.append(f"{name} {shown}{many}{needed}")
    check("commands", lines)


def keys(value: Any, prefix: str = "") -> set[str]:
    """The path to every field of a JSON value; those of a list are its elements' together."""
    if isinstance(value, dict):
        return {path for key, inner in value.items() for path in (f"{prefix}.{key}", *keys(inner, f"{prefix}.{key}"))}
    return {path for inner in value for path in keys(inner, f"{prefix}[]")} if isinstance(value, list) else set()


@pytest.fixture
def printed(run: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a command with --json in an empty folder and compares the keys of what it prints with its snapshot."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *words: object, code: int = 0) -> None:
        check(f"json/{name}", [*keys(json.loads(run(*words, "--json", code=code)))])

    return call


def texts(path: Path) -> Path:
    path.write_text("text\tlabel\nthe cat sat\tlabel 0\nthe dog ran\tlabel 1\nunable, the mat\tlabel 2\n")
    return path


def test_keys_of_optimize(printed: Callable[..., None]) -> None:
    printed("optimize-checkpoint", "optimize", MODEL, "-o", "artifact")
    printed("optimize-onnx-standalone", "optimize", ONNX, "-o", "standalone")
    printed("optimize-onnx", "optimize", ONNX, "-o", "out.onnx", "--verbose")
    printed("optimize-onnx-stock", "optimize", ONNX, "-o", "stock.onnx", "--for", "stock-onnxruntime")
    printed("optimize-dry-run", "optimize", ONNX, "-o", "dry.onnx", "--dry-run")
    printed("error", "optimize", MODEL, "-o", "artifact", code=2)


@pytest.mark.parametrize("model", [FROZEN, SAVED], ids=["frozen", "saved-model"])
def test_keys_of_optimize_for_tensorflow(printed: Callable[..., None], model: Path) -> None:
    pytest.importorskip("tensorflow")
    printed(f"optimize-{'frozen' if model.is_file() else 'saved-model'}", "optimize", model, "-o", "out")


@pytest.mark.parametrize("head", HEADS)
def test_keys_of_run(printed: Callable[..., None], head: str) -> None:
    model = make_checkpoint(Path("model"), head=head, vocab=True)
    given = {"question": ("--pair", "the cat sat", "the dog ran"), "masked": ("the [MASK] sat",)}
    printed(f"run-{head}", "run", model, *given.get(head, ("the cat sat", "the dog")))


def test_keys_of_inspect(printed: Callable[..., None]) -> None:
    printed("inspect-checkpoint", "inspect", MODEL)
    printed("inspect-artifact", "inspect", GOLDEN / "artifact-v1")
    printed("inspect-onnx", "inspect", ONNX)
    printed("inspect-onnx-nodes", "inspect", ONNX, "--nodes")
    printed("inspect-saved-model", "inspect", SAVED, "--everywhere")
    printed("inspect-fused", "inspect", GOLDEN / "onnx/fp32.onnx")


def test_keys_of_explore(printed: Callable[..., None]) -> None:
    printed("explore", "explore", FROZEN)


def test_keys_of_doctor(printed: Callable[..., None]) -> None:
    printed("doctor", "doctor")


def test_keys_of_calibrate(printed: Callable[..., None]) -> None:
    printed("calibrate", "calibrate", MODEL, "--data", GOLDEN / "ranges/texts.txt", "-o", "ranges.json")
    words = ("--method", "percentile", "--data", GOLDEN / "ranges/texts.txt", "-o", "ranges.txt")
    printed("calibrate-percentile", "calibrate", MODEL, *words)


def test_keys_of_compare(printed: Callable[..., None]) -> None:
    given = ("--samples", 2, "--sequence-length", 8)
    printed("compare", "compare", ONNX, GOLDEN / "onnx/int8.onnx", *given)
    printed("compare-different", "compare", ONNX, GOLDEN / "onnx/static.onnx", *given, "--atol", 1e-9, code=1)


def test_keys_of_bench(printed: Callable[..., None]) -> None:
    given = ("-b", 1, "-s", 8, "-n", 1, "-t", 2, "--samples", 2, "--output-dir", ".")
    printed("bench", "bench", ONNX, GOLDEN / "onnx/fp32.onnx", "--precision", "int8", *given)


def test_keys_of_accuracy(printed: Callable[..., None]) -> None:
    model = make_checkpoint(Path("model"), head="sequence", vocab=True)
    printed("accuracy", "accuracy", model, "--task", texts(Path("texts.tsv")), "--precision", "fp32,int8")


def test_keys_of_embed(printed: Callable[..., None]) -> None:
    model = make_checkpoint(Path("model"), vocab=True)
    printed("embed", "embed", model, texts(Path("texts.tsv")), "-o", "vectors")


def test_keys_of_load_test(printed: Callable[..., None], tmp_path: Path) -> None:
    server = Served(make_checkpoint(Path("model"), head="sequence", vocab=True), log=tmp_path / "log")
    given = ("load-test", f"http://127.0.0.1:{server.port}", "--clients", 2, "--warmup", "0s", "--p99", "30s")
    try:
        printed("load-test", *given, "--cycle", 2, "--data", texts(Path("texts.tsv")))
        printed("load-test-rate", *given, "--rate", 50, "--duration", "100ms")
    finally:
        server.stop()


def test_keys_of_the_pattern_tools(printed: Callable[..., None]) -> None:
    pytest.importorskip("tensorflow")
    seed = "bert/encoder/layer_1/output/LayerNorm/batchnorm/add_1"
    barriers = ("bert/encoder/Reshape_1", "bert/encoder/Reshape", "strided_slice", "strided_slice_1")
    printed("extract-pattern", "extract-pattern", FROZEN, "-s", seed, "-b", *barriers, "-B", "Const", "-o", "p.pb")
    printed("make-recipe", "make-recipe", "p.pb", "r.pb", "--model", FROZEN)
    printed("replace-pattern", "replace-pattern", FROZEN, "-r", "r.pb", "-o", "out.pb", "--explain", "--verify")
    printed("configure-op", "configure-op", "out.pb", "-q")


def test_every_command_that_prints_json_has_a_snapshot() -> None:
    import typer

    group: Any = typer.main.get_command(app)
    told = {name for name, command in group.commands.items() if any("--json" in p.opts for p in command.params)}
    kept = {path.stem for path in (SNAPSHOTS / "json").glob("*.txt")}
    assert [name for name in sorted(told) if not any(f"{stem}-".startswith(f"{name}-") for stem in kept)] == []
