"""Source: what a path is, recognised once by its content. A path in; a Checkpoint, Artifact, OnnxFile, SavedModel or
FrozenGraph out, which reads its message, graph, finding and network when they are first asked for, and keeps them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fusebert.errors import FusebertError, UnsupportedError, border, suggest
from fusebert.formats import artifact, hub, huggingface, sentence_transformers
from fusebert.formats.files import map_file, read_json
from fusebert.formats.onnx import read as onnx
from fusebert.formats.tensorflow import read as tensorflow
from fusebert.formats.tensorflow.file import TensorFlowFile, open_file
from fusebert.ops.graph import Graph
from fusebert.values.network import Network
from fusebert.values.plan import Plan

if TYPE_CHECKING:
    from fusebert.match import Assembled, Finding

_SUPPORTED = (
    "Supported: an ONNX file, a frozen TensorFlow graph, or a folder with config.json (a Hugging Face checkpoint), "
    "saved_model.pb (a TensorFlow SavedModel) or fusebert.json (an artifact)"
)


class Source:
    """A model on disk. `kind` is what people call it."""

    kind = ""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<{self.kind} {str(self.path)!r}>"

    @cached_property
    def tokenizer_folder(self) -> Path | None:
        """The folder in or beside the model that has a tokenizer, if there is one."""
        return next(filter(has_tokenizer, self.folders), None)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where the files that belong to the model may be, the likeliest first."""
        if self.path.is_dir():
            return self.path, self.path / "assets", self.path.parent
        return (self.path.parent,)

    @property
    def labels(self) -> list[str]:
        """The names of a classifier's classes, as far as a config.json in or beside the model tells them."""
        for folder in self.folders:
            if (folder / "config.json").is_file():
                named = read_json(folder / "config.json").get("id2label")
                if isinstance(named, dict):
                    return [str(named[key]) for key in sorted(named, key=lambda key: (len(key), key))]
        return []


class Checkpoint(Source):
    """A Hugging Face checkpoint folder: weights, but no graph."""

    kind = "Hugging Face checkpoint"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._networks: dict[str | None, Network] = {}

    def network(self, head: str | None = None) -> Network:
        """The Network, with the head given, or the one that config.json names; a folder of sentence-transformers that
        pools rows has none, whatever its encoder was trained as."""
        if head not in self._networks:
            sentence = sentence_transformers.read(self.path)
            own = "none" if head is None and sentence is not None and not sentence.refusal else head
            network = huggingface.read(sentence_transformers.checkpoint_folder(self.path), own)
            scores = sentence_transformers.scores(self.path)
            self._networks[head] = replace(network, sentence=sentence, scores=scores)
        return self._networks[head]

    @property
    def folders(self) -> tuple[Path, ...]:
        """Where the files that belong to the model may be, the likeliest first."""
        return sentence_transformers.checkpoint_folder(self.path), *super().folders


class Artifact(Source):
    """The folder of a stand-alone model, with a precision of its own."""

    kind = "fusebert artifact"

    @cached_property
    def stored(self) -> tuple[Network, Plan, int]:
        """The Network, its Plan, and the most tokens of a text."""
        return artifact.read(self.path)

    @property
    def labels(self) -> list[str]:
        """The names of a classifier's classes."""
        return list(self.stored[0].labels)


class GraphSource(Source):
    """A model with a graph. `made_from` is the model that it was written from, if this process wrote it: inputs of the
    same names mean the same in both, so that nobody searches the result."""

    made_from: GraphSource | None = None

    @cached_property
    def graph(self) -> Graph:
        """The Graph that is served."""
        raise NotImplementedError

    @cached_property
    def finding(self) -> Finding:
        """The encoders in the graph."""
        from fusebert.match import find  # a third of what is imported, and only graphs need it

        return find(self.graph)

    @cached_property
    def assembled(self) -> Assembled:
        """The graph as a Network, if that is possible."""
        from fusebert.match import assemble

        return assemble(self.finding)


class OnnxFile(GraphSource):
    """An ONNX file."""

    kind = "ONNX model"

    @cached_property
    def message(self) -> onnx.OnnxMessage:
        """The file as a message, which editors copy."""
        return onnx.parse(self.path)

    @cached_property
    def graph(self) -> Graph:
        """The Graph in the file."""
        return self.message.graph()


class TensorFlowSource(GraphSource):
    """A TensorFlow model: messages in `file`, which editors copy."""

    @cached_property
    def file(self) -> TensorFlowFile:
        """The messages, and where weights are."""
        raise NotImplementedError

    @cached_property
    def graph(self) -> Graph:
        """The Graph that is for serving, or the first one."""
        return self.file.serving_graph()


class SavedModel(TensorFlowSource):
    """A SavedModel: its folder, or its saved_model.pb alone."""

    kind = "TensorFlow SavedModel"

    @cached_property
    def folder(self) -> Path | None:
        """The folder with the variables, if the graph is in one."""
        if self.path.is_dir():
            return self.path
        return self.path.parent if (self.path.parent / "variables").is_dir() else None

    @cached_property
    def file(self) -> TensorFlowFile:
        """The messages, and where weights are."""
        file = tensorflow.saved_model_file(self.path) if self.path.is_dir() else self.path
        return open_file(file, "SavedModel", self.folder)


class FrozenGraph(TensorFlowSource):
    """A frozen TensorFlow graph, binary or text."""

    kind = "frozen TensorFlow graph"

    @cached_property
    def file(self) -> TensorFlowFile:
        """The messages, and where weights are."""
        return open_file(self.path, "GraphDef", None)


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer's file."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt"))


@border
def open(path: str | Path | Source) -> Source:
    """The model at a path; a Source is returned as it is."""
    if isinstance(path, Source):
        return path
    if not isinstance(path, str | Path):
        raise FusebertError(f"the path of a model is expected, not a {type(path).__name__}")
    path = hub.find(str(path)) or Path(path)
    if artifact.is_artifact(path):
        return Artifact(path)
    if tensorflow.is_saved_model(path):
        return SavedModel(path)
    if huggingface.is_checkpoint(sentence_transformers.checkpoint_folder(path)):
        return Checkpoint(path)
    if path.is_file():
        return _file(path)
    if path.exists():
        raise FusebertError(f"{path} is not a supported model. {_SUPPORTED}")
    advice = f"If it is a name on the hub, fetch it first: hf download {path}" if hub.is_name(str(path)) else _SUPPORTED
    raise FusebertError(f"{path} does not exist{_similar(path) or '.'} {advice}")


def _similar(path: Path) -> str:
    """What a missing path may have meant."""
    try:
        names = [other.name for other in path.parent.iterdir()]
    except OSError:
        return ""
    return suggest(path.name, names)


def _file(path: Path) -> Source:
    data = map_file(path)
    if tensorflow.looks_like_saved_model(data):
        return SavedModel(path)
    if onnx.looks_like(data):
        return OnnxFile(path)
    if tensorflow.looks_like(data):
        return FrozenGraph(path)
    raise UnsupportedError(f"{path} is neither an ONNX model nor a TensorFlow graph. {_SUPPORTED}")


def open_graph(path: str | Path | Source) -> GraphSource:
    """The model at a path, which must have a graph."""
    source = open(path)
    if not isinstance(source, GraphSource):
        raise FusebertError(f"{source.path} is a {source.kind}, which has no graph; give an ONNX or TensorFlow model")
    return source


def open_tensorflow(path: str | Path | Source) -> TensorFlowSource:
    """The model at a path, which must be one of TensorFlow's."""
    source = open(path)
    if not isinstance(source, TensorFlowSource):
        raise FusebertError(f"{source.path} is a {source.kind}; give a SavedModel or a frozen TensorFlow graph")
    return source


def open_result(path: Path, made_from: GraphSource) -> GraphSource:
    """A model that was just written from another one."""
    source = open_graph(path)
    source.made_from = made_from
    return source


@border
def read(path: str | Path, tags: Sequence[str] | None = None) -> Graph:
    """The Graph in a model file. Nothing is executed, and weights are not read until they are asked for. `tags` choose
    among the graphs of a SavedModel (`facts["tags"]` lists them); without them it is the one for serving."""
    source = open_graph(path)
    if tags is None:
        return source.graph
    if not isinstance(source, SavedModel):
        raise FusebertError(f"{path} is not a SavedModel, the only kind of model that has graphs with tags")
    return source.file.tagged_graph(tags)
