"""The runner of SavedModels and frozen TensorFlow graphs."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from copy import copy
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.tensorflow.bert_op import FUSED
from fusebert.match import TENSORFLOW_EFFECTS, skips_hidden
from fusebert.measure.inputs import Input, Told, sizes_of
from fusebert.measure.runners.runner import Runner, endings_of, first_line, import_framework, roles_of, words
from fusebert.ops.graph import Array, Graph
from fusebert.source import SavedModel, TensorFlowSource

_LOG = re.compile(
    rb"[IWE]\d{4} |\d{4}-\d\d-\d\d [\d:.]+: [IWE] |WARNING: All log messages before absl|To enable the following instr"
)


class TensorFlow(Runner):
    """A SavedModel's default signature or a frozen graph, by TensorFlow; one with our op gets our library."""

    framework = "tensorflow"
    _rewrites = True

    def __init__(self, source: TensorFlowSource, threads: int | None = None, told: Told | None = None) -> None:
        path, graph = source.path, source.graph
        with _quietly():
            tf = _tensorflow(path, threads)
            if words(graph).intersection(FUSED):
                import fusebert.tensorflow  # noqa: F401 (brings the op)
            try:
                inputs = self._load(tf, source) if isinstance(source, SavedModel) else self._import(tf, path, graph)
            except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
                raise FusebertError(f"{path} is not accepted by TensorFlow: {first_line(error)}") from error
        self.name = f"{path} by tensorflow"
        self.roles = roles_of(source, inputs, told)
        served = graph.facts.get("served")
        self.endings = endings_of(source, served[1] if served else None)
        self.skips = skips_hidden(graph)
        self._tf = tf

    def _load(self, tf: Any, source: SavedModel) -> list[Input]:
        path, folder = source.path, source.folder
        if folder is None or source.file.file.stem != "saved_model":
            raise UnsupportedError(f"{path} is not in a SavedModel folder, which TensorFlow loads a SavedModel from")
        self._kept = tf.saved_model.load(str(folder))  # a signature does not keep its model alive
        signatures = self._kept.signatures
        if not signatures:
            raise UnsupportedError(f"{path} has no signature to call")
        self._call = signatures["serving_default" if "serving_default" in signatures else sorted(signatures)[0]]
        self.outputs = tuple(sorted(self._call.structured_outputs))
        specs = self._call.structured_input_signature[1]
        tensors = source.graph.facts["served"][0]
        return [_tf_input(name, spec, tensors.get(name, "")) for name, spec in sorted(specs.items())]

    def _import(self, tf: Any, path: Path, graph: Graph) -> list[Input]:
        definition = tf.compat.v1.GraphDef()
        data = path.read_bytes()
        if path.suffix == ".pbtxt" or data[:1] != b"\n":
            from google.protobuf import text_format

            text_format.Parse(data, definition)
        else:
            definition.ParseFromString(data)
        effects = {tensor for node in graph.nodes if node.op in TENSORFLOW_EFFECTS for tensor in node.outputs}
        self._kept = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(definition, name=""), [])
        element = self._kept.graph.as_graph_element
        self.outputs = tuple(tensor for tensor in graph.outputs if tensor not in effects)
        call = self._kept.prune(list(map(element, graph.inputs)), {name: element(name) for name in self.outputs})
        self._call = lambda **given: call(*(given[name] for name in graph.inputs))
        return [_tf_input(name, element(name), name) for name in graph.inputs]

    def prepare(self, ids: Array, mask: Array, types: Array) -> Any:
        return {name: self._tf.constant(array) for name, array in self.feeds(ids, mask, types).items()}

    def answer(self, prepared: Any) -> dict[str, Array]:
        with nullcontext() if self._rewrites else _without_rewriting(self._tf):
            answers = self._call(**prepared)
        return {name: answers[name].numpy() for name in self.outputs}

    def as_written(self) -> TensorFlow:
        same = copy(self)
        same._rewrites = False
        same.name = f"{self.name}, without its own optimisations"
        return same

    def close(self) -> None:
        self._call = self._kept = None


@contextmanager
def _quietly() -> Iterator[None]:
    """TensorFlow's log lines are dropped, some of which no setting of its own stops; what others write is passed on."""
    loggers = [logging.getLogger(name) for name in ("tensorflow", "absl")]
    levels = [logger.level for logger in loggers]
    with tempfile.TemporaryFile() as written:
        try:
            real = os.dup(2)
        except OSError:  # there is no standard error
            yield
            return
        os.dup2(written.fileno(), 2)
        try:
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
        finally:
            os.dup2(real, 2)
            os.close(real)
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
            written.seek(0)
            os.write(2, b"".join(line for line in written if not _LOG.match(line)))


def _tensorflow(path: Path, threads: int | None) -> Any:
    """TensorFlow with that many threads, unless a model has run before: then it keeps those it has."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tf = import_framework("tensorflow", path)
    if threads is not None:
        with suppress(RuntimeError):  # it runs already
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


@contextmanager
def _without_rewriting(tf: Any) -> Iterator[None]:
    """Calls of functions whose graphs TensorFlow does not rewrite. Its remapper makes one operation of a frozen graph's
    GELU on processors with AVX-512, whose oneDNN kernel is 2e-3 off. The option is part of a call, not of a function,
    so it is enough to set it for the call."""
    options = tf.config.optimizer
    before = options.get_experimental_options()["disable_meta_optimizer"]
    options.set_experimental_options({"disable_meta_optimizer": True})
    try:
        yield
    finally:
        options.set_experimental_options({"disable_meta_optimizer": before})


def _tf_input(name: str, tensor: Any, place: str) -> Input:
    sizes = None if tensor.shape.rank is None else sizes_of(tensor.shape.as_list())
    return Input(name, tensor.dtype.name, sizes, place)
