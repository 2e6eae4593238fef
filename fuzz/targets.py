"""Targets: what is attacked, how, and what is then done with it. A target names files of the seeds; for a case one of
them is replaced by a mutated one, and `use` gets the file, or the folder that it is in."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import fusebert
from fusebert.engine.tokenizer import Tokenizer
from fusebert.errors import FusebertError
from fusebert.match import assemble
from fusebert.ops.graph import Graph
from fuzz.graphs import mutated
from fuzz.hostile import COMPONENTS, request
from fuzz.mutate import Mutator, damaged, lines, rewritten, safetensors, wire, zipped

TEXTS = ["the cat sat on the mat!", "unable dogs ran.", "  é\u0301 a  b ", ("the cat", "a mat")]
IDS = [[2, 5, 3], [2, 3, 0]], [[1, 1, 1], [1, 1, 0]]
_FEW = 1 << 18  # numbers of a weight that is read


@dataclass(frozen=True)
class Attack:
    """A file of the seeds that is mutated, and what of the seeds is used: the file itself, or the folder around it."""

    file: str
    used: str
    kinds: tuple[Callable[[bytes], Mutator], ...]


@dataclass(frozen=True)
class Target:
    """`slow` targets run whole pipelines: tens of cases a second instead of thousands."""

    name: str
    attacks: tuple[Attack, ...]
    use: Callable[[Path], None]
    slow: bool = False


# What is done


def read_graph(path: Path) -> None:
    """The graph, and the weights that are not large."""
    _touch(fusebert.read(path))


def _touch(graph: Graph) -> None:
    for own in (graph, *graph.functions.values()):
        for weight in own.weights.values():
            if np.prod(weight.shape, dtype=float) < _FEW:
                with suppress(FusebertError):
                    weight.read()


def find_graph(path: Path) -> None:
    """What is found in it, and the network that it is."""
    with suppress(FusebertError):
        assemble(fusebert.find(fusebert.read(path)))


def inspect_graph(path: Path) -> None:
    """All that is told of it, as text, as JSON and to the page."""
    from fusebert.cli.show import _draw, _json
    from fusebert.drawing.page import page
    from fusebert.explore.model import Shown
    from fusebert.verbs.inspect import inspect

    report = inspect(path, nodes=True, everywhere=True)
    _draw(report), _json(report.data()), page(report, "inspect", {})
    _json(Shown(path).data)


def load_model(path: Path) -> None:
    """A model, and what it makes of ids."""
    model = fusebert.load(path, threads=1)
    model.run(*IDS)
    model.rows(np.array([1, 2, 3]), np.array([0, 1, 3]))


def load_texts(path: Path) -> None:
    """A model, and what it makes of ids and texts."""
    model = fusebert.load(path, threads=1)
    model.run(*IDS)
    model.encode(TEXTS)
    with suppress(FusebertError):
        model.predict(TEXTS)


def read_network(path: Path) -> None:
    """What a folder says, packed and run by nothing."""
    from fusebert.verbs.inspect import inspect

    inspect(path).data()
    source = fusebert.open(path)
    folder = source.tokenizer_folder
    if folder is not None:
        Tokenizer.read(folder, 20)


def tokenize(path: Path) -> None:
    """Tokens of texts, and texts again."""
    tokenizer = Tokenizer.read(path, 64)
    assert tokenizer is not None
    for text in TEXTS:
        with suppress(FusebertError):
            (tokens,) = tokenizer([text])
            tokenizer.decode(tokens.ids)
            tokenizer.words(tokens.ids)


def optimize_graph(path: Path) -> None:
    """The model for its framework again, not compared with the original: that runs hostile graphs in the framework."""
    out = path.with_name(f"out{path.suffix}")
    with _gone(out):
        fusebert.optimize(path, out, "fp32" if path.stat().st_size % 2 else "int8", verify=False)
    with _gone(path.with_name("alone")) as alone:
        fusebert.optimize(path, alone, "int8", "standalone", verify=False)


def optimize_checkpoint(path: Path) -> None:
    """The checkpoint as an artifact, and as an ONNX file."""
    with _gone(path.with_name("alone")) as alone:
        fusebert.optimize(path, alone, "int8", verify=False)
    with _gone(path.with_name("out.onnx")) as out:
        fusebert.optimize(path, out, "int8", verify=False)


class _gone:  # noqa: N801
    """A path where nothing is, before and after."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Path:
        self._remove()
        return self.path

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.unlink(missing_ok=True)


def read_bundle(path: Path) -> None:
    """Every tensor of a bundle, and its names."""
    from fusebert.formats.tensorflow.bundle import Bundle

    bundle = Bundle(path / "variables" / "variables")
    with suppress(FusebertError):
        bundle.names()
    for key in bundle:
        with suppress(FusebertError):
            bundle[key].read()
            bundle.part(key, "4 4 0,2:-")


def read_ranges(path: Path) -> None:
    """Ranges of some layers."""
    from fusebert.formats.ranges import read_factors

    for layers in (None, 2):
        with suppress(FusebertError):
            read_factors(path, layers)


def use_recipe(path: Path) -> None:
    """A pattern, recipe or node definition, by every command that takes it."""
    from fusebert.recipes.recipe import make_recipe
    from fusebert.recipes.replace import replace_pattern

    home = path.parent
    kind = path.stem.rpartition("-")[2]
    with _gone(home / "made") as out, suppress(FusebertError):
        if kind == "recipe":
            replace_pattern(home / "model.pb", path, out.with_name("made"), explain=True)
        else:
            pattern, node = (path, home / "node.pbtxt") if kind == "pattern" else (home / "pattern.pb", path)
            make_recipe(pattern, out, node)


def read_table(path: Path) -> None:
    """A file of texts, by everyone who reads such files."""
    from fusebert.formats import dataset
    from fusebert.measure.tasks import read_task, read_texts

    if path.suffix in (".tsv", ".csv", ".txt", ""):
        for reader in (read_task, partial(read_task, name="sst2"), partial(read_task, name="stsb"), read_texts):
            with suppress(FusebertError):
                reader(path)
    with suppress(FusebertError):
        dataset.count_rows([path])
        dataset.fingerprint(path)
        for row in dataset.read_rows([path], ["text"], () if dataset.is_plain(path) else ["label"]):
            assert row.reason or row.texts


@cache
def _server() -> Any:
    """All heads behind the application that serve runs, computed in this process."""
    import tempfile

    from checkpoints import HEADS, make_checkpoint

    from fusebert.engine.sentence import Embedder
    from fusebert.serve import worker
    from fusebert.serve.front import Bounds, Server
    from fusebert.serve.service import Request, Service, Task, clock

    class Here(Service):
        async def run(self, task: Task, request: Request) -> Task:
            request.tasks.append((self, task))
            self._prepare(task, request)
            if not task.ids:
                self._encode(task)
                task.tokens = [len(ids) for ids in task.ids]
            types = task.types or [np.zeros(len(ids), np.int64) for ids in task.ids]
            question = worker.Question.make(1, [task.want] * task.count, task.ids, types)
            embed = Embedder(self.model.engine, self.model.network.sentence, None, normalize=False)
            for number, output in enumerate(worker.compute(self.model, embed, question)):
                if isinstance(output, FusebertError):
                    raise output
                task.outputs[number] = output
            task.arrived = task.tokenised = task.started = task.ended = clock()
            return task

        def release(self, task: Task) -> None:
            """It holds nothing."""

    server = Server(bounds=Bounds(texts=16))
    home = Path(tempfile.mkdtemp())
    for head in HEADS:
        model = fusebert.load(make_checkpoint(home / head, head=head, layers=1, vocab=True), threads=1)
        server.services[head] = Here(head, model)
    return server


@cache
def _application() -> Any:
    from fusebert.serve.http import application
    from fusebert.serve.server import CALLS

    return application(_server(), CALLS)


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def ask_http(path: Path) -> None:
    """A request: its path and headers on the first lines, its body after an empty one."""
    head, _, body = path.read_bytes().partition(b"\n\n")
    where, *pairs = head.split(b"\n")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (pair.partition(b":") for pair in pairs)]
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    scope = {
        "type": "http", "method": "POST", "path": where.decode("latin-1"), "headers": headers, "query_string": b"",
        "http_version": "1.1", "scheme": "http", "root_path": "", "server": ("here", 80), "client": ("here", 1),
    }  # fmt: skip
    with _told_defects() as defects:
        _loop().run_until_complete(_application()(scope, receive, send))
    assert told[0]["status"] < 500 or told[0]["status"] in (501, 503), (told, defects)


def ask_grpc(path: Path) -> None:
    """A request: the method on the first line, then the message."""
    from fusebert.serve.grpc import Handler
    from fusebert.serve.protocols import demo, oip_grpc

    name, _, data = path.read_bytes().partition(b"\n")
    for service in (oip_grpc.SERVICE, demo.SERVICE):
        for method in service.methods:
            if method.name.encode() == name and not method.streams:
                with _told_defects() as defects, suppress(_AbortedError):
                    _loop().run_until_complete(Handler(_server(), "/x", method).answer(data, _Context()))
                assert not defects, defects


class _AbortedError(Exception):
    pass


class _Context:
    """What grpc gives a handler."""

    def add_done_callback(self, _: object) -> None:
        """Nobody leaves."""

    def invocation_metadata(self) -> Sequence[tuple[str, str]]:
        """No headers."""
        return ()

    def time_remaining(self) -> None:
        """No deadline."""

    def set_trailing_metadata(self, _: object) -> None:
        """Nobody reads it."""

    async def abort(self, *_: object) -> None:
        """How an error is told."""
        raise _AbortedError


class _told_defects:  # noqa: N801
    """What the server logs as its own failures, raised again."""

    def __enter__(self) -> list[BaseException]:
        import logging

        self._found: list[BaseException] = []
        log = logging.getLogger("fusebert.serve")
        log.propagate = False
        self._handler = logging.Handler()
        self._handler.emit = lambda record: self._found.append(record.exc_info[1])  # type: ignore[method-assign,index]
        log.addHandler(self._handler)
        return self._found

    def __exit__(self, *_: object) -> None:
        import logging

        logging.getLogger("fusebert.serve").removeHandler(self._handler)
        if self._found:
            raise self._found[0]


# In memory: no file can say some of this, but readers of other formats may come to


class Graphs:
    """A sound graph whose nodes, weights and types a case makes wrong."""

    def __init__(self, path: Path) -> None:
        self._graph = fusebert.read(path)

    @cached_property
    def _functions(self) -> list[str]:
        return sorted(self._graph.functions)

    def case(self, random: Random) -> Graph:
        """The graph, or one of its functions, wrong here and there."""
        from dataclasses import replace

        if self._functions and random.random() < 0.7:
            name = random.choice(self._functions)
            if self._graph.functions[name].nodes:
                wrong = mutated(self._graph.functions[name], random)
                return replace(self._graph, functions={**self._graph.functions, name: wrong})
        return mutated(self._graph, random)


def _files(used: str, kinds: Sequence[Callable[[bytes], Mutator]], *files: str) -> Iterator[Attack]:
    for file in files:
        yield Attack(file, used or file, tuple(kinds))


def _folder(folder: str, kinds: Sequence[Callable[[bytes], Mutator]], *files: str) -> Iterator[Attack]:
    return _files(folder, kinds, *(f"{folder}/{file}" for file in files))


_JSON = (rewritten, rewritten, damaged)
_WIRE = (wire, wire, wire, damaged)
_ONNX = ("onnx/one.onnx", "onnx/late.onnx", "onnx/ort-fused-bert.onnx", "onnx/int8.onnx", "onnx/int8-qdq-bert.onnx")
_SMALL = ("onnx/one.onnx", "onnx/late.onnx", "onnx/int8.onnx")
_TF = ("tensorflow/toy.pb", "tensorflow/source.pb", "tensorflow/int8.pb")
_TOKENIZER = (partial(rewritten, values=COMPONENTS), partial(rewritten, values=COMPONENTS), rewritten, damaged)

TARGETS = (
    Target("onnx", (*_files("", _WIRE, *_ONNX, "onnx/source.onnx", "onnx/beside/model.onnx"),), read_graph),
    Target(
        "frozen-graph", (*_files("", _WIRE, *_TF), *_files("", (lines, damaged), "tensorflow/text.pbtxt")), read_graph
    ),
    Target(
        "saved-model",
        (
            *_folder("tensorflow/saved", _WIRE, "saved_model.pb"),
            *_folder("tensorflow/saved1", _WIRE, "saved_model.pb"),
            *_folder("tensorflow/saved", (damaged, wire), "variables/variables.index"),
        ),
        read_graph,
    ),
    Target(
        "tensor-bundle",
        (
            *_folder(
                "tensorflow/saved", (damaged,), "variables/variables.index", "variables/variables.data-00000-of-00001"
            ),
            *_folder("tensorflow/saved1", (damaged,), "variables/variables.index"),
        ),
        read_bundle,
    ),
    Target(
        "checkpoint",
        (
            *_folder("checkpoints/plain", _JSON, "config.json", "tokenizer_config.json", "sentence_bert_config.json"),
            *_folder("checkpoints/plain", (safetensors, safetensors, damaged), "model.safetensors"),
            *_folder("checkpoints/plain", (lines, damaged), "vocab.txt"),
            *_folder("checkpoints/sharded", _JSON, "model.safetensors.index.json"),
            *_folder("checkpoints/roberta", _JSON, "config.json"),
            *_folder("checkpoints/distilbert", _JSON, "config.json"),
        ),
        read_network,
    ),
    Target("pickle", (*_folder("checkpoints/pickled", (zipped, zipped, damaged), "pytorch_model.bin"),), read_network),
    Target(
        "tokenizer",
        tuple(
            a
            for name in ("word-piece", "unigram", "pair")
            for a in _folder(f"tokenizers/{name}", _TOKENIZER, "tokenizer.json")
        ),
        tokenize,
    ),
    Target(
        "artifact",
        tuple(
            a
            for name in ("artifact", "version1")
            for a in (
                *_folder(f"artifacts/{name}", _JSON, "fusebert.json"),
                *_folder(f"artifacts/{name}", (safetensors, safetensors, damaged), "model.safetensors"),
            )
        ),
        load_model,
    ),
    Target(
        "sentence-transformers",
        (
            *_folder(
                "sentences/model",
                _JSON,
                "modules.json",
                "1_Pooling/config.json",
                "2_Dense/config.json",
                "config_sentence_transformers.json",
                "sentence_bert_config.json",
            ),
            *_folder("sentences/model", (safetensors,), "2_Dense/model.safetensors"),
        ),
        load_texts,
    ),
    Target(
        "recipe",
        (
            *_files(
                "",
                _WIRE,
                "recipes/pattern.pb",
                "recipes/recipe.pb",
                "recipes/golden-pattern.pb",
                "recipes/golden-recipe.pb",
            ),
            *_files(
                "",
                (lines, damaged),
                "recipes/pattern.pbtxt",
                "recipes/recipe.pbtxt",
                "recipes/node_def.pbtxt",
                "recipes/node.pbtxt",
            ),
        ),
        use_recipe,
    ),
    Target(
        "ranges",
        (*_files("", _JSON, "tables/ranges.json"), *_files("", (lines, damaged), "tables/ranges.txt")),
        read_ranges,
    ),
    Target(
        "table",
        (
            *_files(
                "",
                (lines, damaged),
                "tables/pairs.tsv",
                "tables/bare.tsv",
                "tables/pairs.csv",
                "tables/texts.txt",
                "tables/sst2",
                "tables/rows.jsonl",
            ),
            *_files("", (damaged,), "tables/rows.parquet", "tables/texts.txt.gz"),
        ),
        read_table,
    ),
    Target(
        "http",
        tuple(
            _files(
                "",
                (partial(request, inner=rewritten), partial(request, inner=damaged), damaged),
                *(f"requests/{i}.http" for i in range(14)),
            )
        ),
        ask_http,
    ),
    Target(
        "grpc",
        tuple(
            _files(
                "",
                (partial(request, inner=wire, end=b"\n"), partial(request, inner=damaged, end=b"\n")),
                *(f"requests/{i}.grpc" for i in range(4)),
            )
        ),
        ask_grpc,
    ),
    Target("find-onnx", (*_files("", _WIRE, *_SMALL),), find_graph, slow=True),
    Target(
        "find-tensorflow",
        (
            *_files("", _WIRE, "tensorflow/toy.pb", "tensorflow/source.pb"),
            *_folder("tensorflow/official", _WIRE, "saved_model.pb"),
        ),
        find_graph,
        slow=True,
    ),
    Target(
        "inspect", (*_files("", _WIRE, *_SMALL, "tensorflow/toy.pb", "tensorflow/source.pb"),), inspect_graph, slow=True
    ),
    Target(
        "load",
        (
            *_files("", _WIRE, *_SMALL, "tensorflow/source.pb"),
            *_folder("checkpoints/plain", _JSON, "config.json"),
            *_folder("checkpoints/plain", (safetensors, damaged), "model.safetensors"),
        ),
        load_model,
        slow=True,
    ),
    Target(
        "optimize",
        (*_files("", _WIRE, "onnx/one.onnx", "onnx/late.onnx", "tensorflow/source.pb"),),
        optimize_graph,
        slow=True,
    ),
    Target(
        "optimize-checkpoint",
        (
            *_folder("checkpoints/plain", _JSON, "config.json"),
            *_folder("checkpoints/plain", (safetensors,), "model.safetensors"),
        ),
        optimize_checkpoint,
        slow=True,
    ),
)
