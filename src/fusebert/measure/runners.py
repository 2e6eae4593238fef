"""Runners: anything that answers a padded batch, behind one face. `open_runner` makes one of a path, told by content:
ONNX Runtime runs ONNX files, TensorFlow its own, transformers checkpoints; fusebert artifacts, and all in a precision.

Frameworks are imported by the runner that needs them; one that is missing is an error that says what to install."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fusebert import artifact
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.files import map_file, read_json
from fusebert.formats import huggingface, onnx, tensorflow
from fusebert.graph import Array, Graph
from fusebert.match.words_tensorflow import EFFECTS
from fusebert.measure.roles import Input, Roles, find_roles
from fusebert.model import Model, load
from fusebert.read import read

LEVELS = (0, 1, 2, 99)  # of ONNX Runtime's optimisation: none, basic, extended, all
_FUSED_OPS = {"Bert", "BertHiddenStates"}

Told = Mapping[str, str | None]
Feeds = Mapping[str, Any]


class Runner(Protocol):
    """Something that answers a padded batch `[sequences, length]`. `outputs` are the names of its answers; `roles` are
    its inputs, and what they take; `framework` runs it."""

    name: str
    framework: str
    roles: Roles
    outputs: tuple[str, ...]

    @property
    def inputs(self) -> Mapping[str, Input]:
        """Its inputs by role: ids, and perhaps mask and types."""
        return self.roles.inputs

    def feeds(self, ids: Array, mask: Array, types: Array) -> dict[str, Array]:
        """The arrays that it is fed, in its own order, by its own names and types."""
        given = {"ids": ids, "mask": mask, "types": types}
        return {one.name: _as_declared(given[role], one) for role, one in (*self.inputs.items(), *self.roles.more)}

    def prepare(self, ids: Array, mask: Array, types: Array) -> Any:
        """The inputs as `answer` takes them."""
        return self.feeds(ids, mask, types)

    def answer(self, prepared: Any) -> dict[str, Array]:
        """Runs prepared inputs; the answers by name."""
        ...

    def run(self, ids: Array, mask: Array, types: Array) -> dict[str, Array]:
        """Runs a batch; inputs that it does not have are left away."""
        try:
            return self.answer(self.prepare(ids, mask, types))
        except FusebertError as error:
            raise type(error)(f"{self.name}: {error}") from error
        except Exception as error:  # frameworks have families of their own, not all of them public
            raise FusebertError(f"{self.name} fails on {ids.shape[0]} x {ids.shape[1]} ids: {_first(error)}") from error

    def close(self) -> None:
        """Lets go of what it holds."""
        ...


def open_runner(
    path: str | Path,
    precision: str | None = None,
    threads: int | None = None,
    level: int = 99,
    traced: bool = False,
    told: Told | None = None,
) -> Runner:
    """A runner of a model by its own framework; by fusebert, if a precision is given or the model is an artifact.

    threads: as many as this process may use, or the framework's own choice, unless given.
    level: ONNX Runtime's optimisation, one of LEVELS.
    traced: a checkpoint is traced and frozen by torch.
    told: names of inputs by role (ids, mask, types), which are found otherwise."""
    path = Path(path)
    if precision is not None or (path.is_dir() and artifact.is_artifact(path)):
        return Fusebert(load(path, precision, threads), str(path))
    if path.is_dir() and tensorflow.is_saved_model(path):
        return TensorFlow(path, threads, told)
    if path.is_dir() and huggingface.is_checkpoint(path):
        return Torch(path, threads, traced)
    if path.is_file():
        data = map_file(path)
        if onnx.looks_like(data):
            return OnnxRuntime(path, threads, level, told)
        if tensorflow.looks_like(data):
            return TensorFlow(path, threads, told)
    raise FusebertError(
        f"{path} is no model: there is no ONNX file, no frozen TensorFlow graph, and no folder with saved_model.pb, "
        "config.json (a Hugging Face checkpoint) or fusebert.json (an artifact)"
    )


class Fusebert(Runner):
    """A model of ours."""

    framework = "fusebert"

    def __init__(self, model: Model, name: str = "model") -> None:
        embeddings = model.network.embeddings
        names = {"ids": "input_ids", "mask": "attention_mask"}
        if embeddings.kind is not None and len(embeddings.kind) > 1:
            names["types"] = "token_type_ids"
        self.name = f"{name} by fusebert {model.plan.precision}"
        self.outputs = _outputs_of(model)
        self.roles = Roles(
            {role: Input(given, "int64", (None, None)) for role, given in names.items()},
            vocabulary=len(embeddings.word),
            kinds=None if embeddings.kind is None else len(embeddings.kind),
            longest=embeddings.longest,
            padding_id=embeddings.padding_id,
            precision=model.plan.precision,
        )
        self._model: Model | None = model

    def answer(self, prepared: Feeds) -> dict[str, Array]:
        assert self._model is not None  # not closed
        return self._model.run(**prepared)

    def close(self) -> None:
        self._model = None


class OnnxRuntime(Runner):
    """An ONNX file, by ONNX Runtime on the CPU; one with our operator gets our library."""

    framework = "onnxruntime"

    def __init__(self, path: Path, threads: int | None = None, level: int = 99, told: Told | None = None) -> None:
        ort = _import("onnxruntime", path)
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
        graph = _read_if_possible(path)
        if graph is not None and any(word.startswith("fusebert.") for word in _words(graph)):
            from fusebert.onnxruntime import session

            self._session = session(path, options)
        else:
            try:
                self._session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            except Exception as error:
                raise FusebertError(f"{path} is not accepted by ONNX Runtime: {_first(error)}") from error
        inputs = [Input(i.name, _ort_type(i.type), _sizes(i.shape)) for i in self._session.get_inputs()]
        self.name = f"{path} by onnxruntime"
        self.roles = _roles_of(path, inputs, graph, told)
        self.outputs = tuple(o.name for o in self._session.get_outputs() if o.type.startswith("tensor("))

    def answer(self, prepared: Feeds) -> dict[str, Array]:
        return dict(zip(self.outputs, self._session.run(self.outputs, prepared), strict=True))

    def close(self) -> None:
        self._session = None


class TensorFlow(Runner):
    """A SavedModel's default signature or a frozen graph, by TensorFlow; one with our op gets our library."""

    framework = "tensorflow"

    def __init__(self, path: Path, threads: int | None = None, told: Told | None = None) -> None:
        tf = _tensorflow(path, threads)
        graph = read(path)
        if _FUSED_OPS.intersection(_words(graph)):
            import fusebert.tensorflow  # noqa: F401 (brings the op)
        try:
            inputs = self._load(tf, path, graph) if path.is_dir() else self._import(tf, path, graph)
        except (OSError, ValueError, KeyError, tf.errors.OpError) as error:
            raise FusebertError(f"{path} is not accepted by TensorFlow: {_first(error)}") from error
        self.name = f"{path} by tensorflow"
        self.roles = _roles_of(path, inputs, _with_inputs(graph, tuple(one.tensor for one in inputs)), told)
        self._constant = tf.constant

    def _load(self, tf: Any, path: Path, graph: Graph) -> list[Input]:
        self._kept = tf.saved_model.load(str(path))  # a signature does not keep its model alive
        signatures = self._kept.signatures
        if not signatures:
            raise UnsupportedError(f"{path} has no signature to call")
        chosen = "serving_default" if "serving_default" in signatures else sorted(signatures)[0]
        self._call = signatures[chosen]
        self.outputs = tuple(sorted(self._call.structured_outputs))
        specs = self._call.structured_input_signature[1]
        names = graph.facts["names"]
        tensors = {names[tensor]: tensor for tensor in reversed(graph.inputs)}
        tensors |= {names[tensor]: tensor for tensor in graph.inputs if tensor.startswith(f"{chosen}_")}
        return [_tf_input(name, spec, tensors.get(name, "")) for name, spec in sorted(specs.items())]

    def _import(self, tf: Any, path: Path, graph: Graph) -> list[Input]:
        definition = tf.compat.v1.GraphDef()
        data = path.read_bytes()
        if path.suffix == ".pbtxt" or data[:1] != b"\n":
            from google.protobuf import text_format

            text_format.Parse(data, definition)
        else:
            definition.ParseFromString(data)
        effects = {tensor for node in graph.nodes if node.word in EFFECTS for tensor in node.outputs}
        self._kept = tf.compat.v1.wrap_function(lambda: tf.graph_util.import_graph_def(definition, name=""), [])
        element = self._kept.graph.as_graph_element
        self.outputs = tuple(tensor for tensor in graph.outputs if tensor not in effects)
        call = self._kept.prune(list(map(element, graph.inputs)), {name: element(name) for name in self.outputs})
        self._call = lambda **given: call(*(given[name] for name in graph.inputs))
        return [_tf_input(name, element(name), name) for name in graph.inputs]

    def prepare(self, ids: Array, mask: Array, types: Array) -> Any:
        return {name: self._constant(array) for name, array in self.feeds(ids, mask, types).items()}

    def answer(self, prepared: Any) -> dict[str, Array]:
        answers = self._call(**prepared)
        return {name: answers[name].numpy() for name in self.outputs}

    def close(self) -> None:
        self._call = self._kept = None


class Torch(Runner):
    """A Hugging Face checkpoint, by the class that its config.json names; as it is, or traced and frozen."""

    framework = "torch"

    def __init__(self, path: Path, threads: int | None = None, traced: bool = False) -> None:
        torch, transformers = (_import(name, path) for name in ("torch", "transformers"))
        if threads is not None:
            torch.set_num_threads(threads)
        config = read_json(path / "config.json")
        names = config.get("architectures") or ["AutoModel"]
        kind = getattr(transformers, str(names[0]), None)
        if kind is None:
            raise UnsupportedError(f"{path}: transformers {transformers.__version__} has no class {names[0]!r}")
        with _quiet(transformers), _stock_classes():
            try:
                model = kind.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
            except Exception as error:
                raise FusebertError(f"{path} is not accepted by transformers: {_first(error)}") from error
            self.name = f"{path} by torch{' traced' if traced else ''}"
            self.roles = _torch_roles(model)
            self._torch, self._model = torch, model
            self._traced: dict[Any, Any] | None = {} if traced else None  # by shape
            few = np.ones((1, 2), np.int64)
            self.outputs = tuple(self._stock(self.prepare(few, few, few * 0)))

    def prepare(self, ids: Array, mask: Array, types: Array) -> Any:
        return {name: self._torch.from_numpy(array) for name, array in self.feeds(ids, mask, types).items()}

    def answer(self, prepared: Any) -> dict[str, Array]:
        if self._traced is None:
            return {name: value.numpy() for name, value in self._stock(prepared).items()}
        shape = next(iter(prepared.values())).shape
        if shape not in self._traced:
            self._traced[shape] = self._trace(prepared)
        with self._torch.inference_mode():
            answers = self._traced[shape](*prepared.values())
        return {name: value.numpy() for name, value in zip(self.outputs, answers, strict=True)}

    def _stock(self, prepared: Any) -> dict[str, Any]:
        with self._torch.inference_mode():
            answers = self._model(**prepared)
        return {name: value for name, value in answers.items() if isinstance(value, self._torch.Tensor)}

    def _trace(self, prepared: Any) -> Any:
        """The model as a traced and frozen module for inputs of one shape; it takes and gives tensors in order."""
        model, names, wanted = self._model, list(prepared), self.outputs

        class Plain(self._torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, *given: Any) -> Any:
                answers = self.model(**dict(zip(names, given, strict=True)))
                return tuple(answers[name] for name in wanted)

        with warnings.catch_warnings(), self._torch.no_grad():
            warnings.simplefilter("ignore")  # on what is settled by tracing, and that it is no longer the fashion
            traced = self._torch.jit.trace(Plain().eval(), tuple(prepared.values()), check_trace=False)
            return self._torch.jit.freeze(traced.eval())

    def close(self) -> None:
        self._model = self._traced = None


def _outputs_of(model: Model) -> tuple[str, ...]:
    return tuple(model.run(np.zeros((1, 1), np.int64)))


def _roles_of(path: Path, inputs: Sequence[Input], graph: Graph | None, told: Told | None) -> Roles:
    try:
        return find_roles(inputs, graph, told)
    except FusebertError as error:
        raise type(error)(f"{path}: {error}") from None


def _torch_roles(model: Any) -> Roles:
    """What a stock model takes: its config says so."""
    import inspect

    config = model.config
    names = {"ids": "input_ids", "mask": "attention_mask"}
    kinds = getattr(config, "type_vocab_size", None)
    if kinds and kinds > 1 and "token_type_ids" in inspect.signature(model.forward).parameters:
        names["types"] = "token_type_ids"
    padding = config.pad_token_id if "roberta" in config.model_type or config.model_type == "camembert" else None
    longest = getattr(config, "max_position_embeddings", None)
    return Roles(
        {role: Input(name, "int64", (None, None)) for role, name in names.items()},
        vocabulary=config.vocab_size,
        kinds=kinds,
        longest=longest if longest is None or padding is None else longest - padding - 1,
        padding_id=padding,
    )


def _as_declared(array: Array, declared: Input) -> Array:
    """An input as a model declares it: of its type, and a mask of one dimension as the number of ones."""
    rank = 2 if declared.shape is None else len(declared.shape)
    if rank == 1:
        array = array.sum(1)
    elif rank != 2:
        raise UnsupportedError(f"input {declared.name} has {rank} dimensions; 1 (lengths) or 2 can be filled")
    return np.ascontiguousarray(array, declared.dtype)


def _import(name: str, path: Path) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError as error:
        raise FusebertError(f"{path} needs {name}, which is missing: {error}; try: pip install {name}") from error


def _tensorflow(path: Path, threads: int | None) -> Any:
    """TensorFlow with that many threads, unless a model has run before: then it keeps those it has."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    tf = _import("tensorflow", path)
    if threads is not None:
        with suppress(RuntimeError):  # it runs already
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def _tf_input(name: str, tensor: Any, place: str) -> Input:
    sizes = None if tensor.shape.rank is None else _sizes(tensor.shape.as_list())
    return Input(name, tensor.dtype.name, sizes, place)


def _with_inputs(graph: Graph, inputs: tuple[str, ...]) -> Graph:
    """A graph without what needs other inputs: other signatures."""
    maker = {tensor: node for node in graph.nodes for tensor in node.outputs}

    def needed(output: str) -> set[str]:
        seen, left = {output}, [output]
        while left:
            node = maker.get(left.pop())
            new = set(() if node is None else node.inputs) - seen
            seen |= new
            left += new
        return seen

    others = set(graph.inputs) - set(inputs)
    return replace(graph, inputs=inputs, outputs=tuple(name for name in graph.outputs if not needed(name) & others))


def _stock_classes() -> AbstractContextManager[None]:
    """Models are made as transformers makes them, even after `import fusebert.torch`, which changes that."""
    if "fusebert.torch" not in sys.modules:
        return nullcontext()
    from fusebert.torch import disabled

    return disabled()


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bar and no advice while a model is loaded."""
    logging = transformers.utils.logging
    verbosity, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()


def _read_if_possible(path: Path) -> Graph | None:
    try:
        return read(path)
    except FusebertError:
        return None


def _words(graph: Graph) -> set[str]:
    functions = (function.nodes for function in graph.functions.values())
    return {node.word for nodes in (graph.nodes, *functions) for node in nodes}


def _sizes(shape: Any) -> tuple[int | None, ...] | None:
    return None if shape is None else tuple(n if isinstance(n, int) and n >= 0 else None for n in shape)


def _ort_type(declared: str) -> str:
    """tensor(int64) -> int64."""
    names = {"float": "float32", "double": "float64"}
    inner = declared.removeprefix("tensor(").removesuffix(")")
    return names.get(inner, inner)


def _first(error: BaseException) -> str:
    """The first line of what a framework says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
