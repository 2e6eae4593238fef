"""The runner of ONNX files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from fusebert.errors import FusebertError
from fusebert.formats.onnx.edit import write_repaired
from fusebert.match import skips_hidden
from fusebert.measure.inputs import Input, Told, sizes_of
from fusebert.measure.runners.runner import Feeds, Runner, endings_of, first_line, import_framework, roles_of, words
from fusebert.ops.graph import Array, Graph
from fusebert.source import OnnxFile

LEVELS = (0, 1, 2, 99)  # of ONNX Runtime's optimisation: none, basic, extended, all


class OnnxRuntime(Runner):
    """An ONNX file, by ONNX Runtime on the CPU; one with our operator gets our library."""

    framework = "onnxruntime"

    def __init__(self, source: OnnxFile, threads: int | None = None, level: int = 99, told: Told | None = None) -> None:
        path = source.path
        ort = import_framework("onnxruntime", path)
        if level not in LEVELS:
            raise FusebertError(f"optimisation level {level} is unknown; use one of {', '.join(map(str, LEVELS))}")
        levels = ort.GraphOptimizationLevel
        options = ort.SessionOptions()
        options.graph_optimization_level = dict(
            zip(LEVELS, (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC, levels.ORT_ENABLE_EXTENDED,
                         levels.ORT_ENABLE_ALL), strict=True)
        )[level]  # fmt: skip
        options.log_severity_level = 4  # errors are raised as well
        if threads is not None:
            options.intra_op_num_threads = threads
        graph = _graph_if_readable(source)
        self.remarks = () if graph is None else graph.facts.get("repairs", ())
        with _repaired(source) if self.remarks else nullcontext(path) as file:
            if graph is not None and any(word.startswith("fusebert.") for word in words(graph)):
                from fusebert.onnxruntime import session

                self._session = session(file, options)
            else:
                try:
                    self._session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
                except Exception as error:
                    raise FusebertError(f"{path} is not accepted by ONNX Runtime: {first_line(error)}") from error
        inputs = [Input(i.name, _ort_type(i.type), sizes_of(i.shape)) for i in self._session.get_inputs()]
        self.name = f"{path} by onnxruntime"
        self.roles = roles_of(source, inputs, told)
        self.endings = endings_of(source)
        self.skips = graph is not None and skips_hidden(graph)
        self.outputs = tuple(o.name for o in self._session.get_outputs() if o.type.startswith("tensor("))

    def answer(self, prepared: Feeds) -> dict[str, Array]:
        return dict(zip(self.outputs, self._session.run(self.outputs, prepared), strict=True))

    def close(self) -> None:
        self._session = None


@contextmanager
def _repaired(source: OnnxFile) -> Iterator[Path]:
    """A file with the repairs that a model needs to be loaded, gone at the end."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / source.path.name
        write_repaired(source.message, file)
        yield file


def _graph_if_readable(source: OnnxFile) -> Graph | None:
    try:
        return source.graph
    except FusebertError:
        return None


def _ort_type(declared: str) -> str:
    """tensor(int64) -> int64."""
    names = {"float": "float32", "double": "float64"}
    inner = declared.removeprefix("tensor(").removesuffix(")")
    return names.get(inner, inner)
