"""A TensorFlow model file as messages that can be edited and written back: a SavedModel folder, its saved_model.pb
alone, or a frozen graph; binary or text. Large weights stay in the file and are put back when it is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, suggest
from fusebert.formats import write
from fusebert.formats.files import map_file
from fusebert.formats.protobuf.wire import Payload, fill
from fusebert.formats.tensorflow.messages import GRAMMAR, message, parse
from fusebert.formats.tensorflow.read import (
    chosen_meta,
    frozen_graph,
    is_saved_model,
    saved_model_graph,
)
from fusebert.formats.tensorflow.scope import Scope, function_scope, main_scope
from fusebert.formats.tensorflow.store import write_bundle
from fusebert.formats.tensorflow.tensor import Tensors
from fusebert.formats.write import Kind
from fusebert.ops.graph import Graph, Weight

_LARGEST = (1 << 31) - 1  # bytes of a message


@dataclass(frozen=True)
class TensorFlowFile:
    """A model's message, the file it is in, and the bytes of its weights by number. `folder` is set for a SavedModel
    that is there with its variables; `variables` are those that are to be written instead."""

    file: Path
    kind: str  # "SavedModel" or "GraphDef"
    message: Any
    tensors: Tensors
    payloads: list[Payload]
    folder: Path | None
    variables: Mapping[str, Weight] | None = None

    @property
    def metas(self) -> list[Any]:
        """The meta graphs of a SavedModel; a frozen graph has one that has nothing but the graph."""
        if self.kind == "SavedModel":
            return list(self.message.meta_graphs)
        return [_Bare(self.message)]

    def meta(self, number: int) -> Any:
        """A meta graph by its number."""
        metas = self.metas
        if not 0 <= number < len(metas):
            raise FusebertError(f"{self.file} has {len(metas)} meta graphs, so none of number {number}")
        return metas[number]

    def graph(self, meta: Any) -> Graph:
        """The Graph of a meta graph, made from the message that is there."""
        if self.kind == "SavedModel":
            return saved_model_graph(self.message, meta, self.tensors, self.folder)
        return frozen_graph(self.message, self.tensors)

    def serving_graph(self) -> Graph:
        """The Graph of the meta graph that is for serving, or of the first one."""
        return self.tagged_graph(None) if self.kind == "SavedModel" else self.graph(None)

    def tagged_graph(self, tags: Sequence[str] | None) -> Graph:
        """The Graph of the meta graph of a SavedModel that has these tags."""
        return self.graph(chosen_meta(self.message.meta_graphs, tags, self.file))

    def copy(self) -> TensorFlowFile:
        """The same model with a message of its own, to be edited."""
        copied = message(self.kind)
        copied.CopyFrom(self.message)
        return replace(self, message=copied, payloads=list(self.payloads))

    def scopes(self, meta: Any) -> Iterator[Scope]:
        """The main graph, then every function of the library."""
        yield main_scope(meta)
        for function in meta.graph_def.library.function:
            yield function_scope(function)

    def scope(self, meta: Any, function: str | None) -> Scope:
        """The main graph, or the function of that name."""
        if not function:
            return main_scope(meta)
        for one in meta.graph_def.library.function:
            if one.signature.name == function:
                return function_scope(one)
        names = [one.signature.name for one in meta.graph_def.library.function]
        raise FusebertError(f"{self.file} has no function {function!r}{suggest(function, names)}")

    def whole(self, node: Any) -> Any:
        """A copy of a NodeDef with its weights in it."""
        copy = message("NodeDef")
        copy.ParseFromString(b"".join(fill(node.SerializeToString(), GRAMMAR, "NodeDef", self.payloads)))
        return copy

    def write(self, out: Path, overwrite: bool = False) -> None:
        """Writes the model: a complete SavedModel where `out` is no file name, else a file; whole or not at all. Only a
        model of the same kind is ever replaced, and only with `overwrite`."""
        replaces = self.replaces(out) if overwrite else None
        if self.is_folder(out):
            if self.folder is None and self.variables is None:
                raise FusebertError(f"{self.file} is not in a SavedModel folder, so {out} must be a .pb file")
            with write.folder(out, replaces) as made:
                if self.folder is not None:
                    copy_rest(self.folder, made, () if self.variables is None else ("variables",))
                if self.variables:
                    write_bundle(made / "variables" / "variables", self.variables)
                (made / "saved_model.pb").write_bytes(b"".join(self._pieces()))
            return
        if self.variables:
            raise FusebertError(f"{out} is to be a folder, for the variables beside the graph; choose another name")
        pieces: Sequence[Payload] = self._pieces()
        if out.suffix == ".pbtxt":
            from google.protobuf import text_format

            whole = message(self.kind)
            whole.ParseFromString(b"".join(pieces))
            pieces = [text_format.MessageToString(whole).encode()]
        with write.file(out, replaces) as file:
            file.writelines(pieces)

    def replaces(self, out: Path) -> Kind:
        """Tells of what is at `out` whether it is what would be written there; the model itself is, and is not parsed
        again."""
        if out.resolve() in (self.file.resolve(), self.folder and self.folder.resolve()):
            return lambda _: True
        return partial(is_model, folder=self.is_folder(out))

    def is_folder(self, out: Path) -> bool:
        """Whether `out` names a folder: only a SavedModel is written as one."""
        return self.kind == "SavedModel" and out.suffix not in (".pb", ".pbtxt")

    def _pieces(self) -> list[Payload]:
        return pieces_of(self.message, self.kind, self.payloads, str(self.file))


@dataclass(frozen=True)
class _Bare:
    """A frozen graph in the place of a meta graph."""

    graph_def: Any
    signature_def: tuple[Any, ...] = ()
    collection_def: tuple[Any, ...] = ()
    saver_def: None = None
    object_graph_def: None = None


def pieces_of(message: Any, kind: str, payloads: Sequence[Payload], where: str) -> list[Payload]:
    """The bytes of a message with its weights, piece by piece."""
    pieces = fill(message.SerializeToString(), GRAMMAR, kind, payloads)
    if (size := sum(map(len, pieces))) > _LARGEST:
        raise FusebertError(f"{where}: its graph would have {size} bytes, but TensorFlow reads {_LARGEST} at most")
    return pieces


def open_file(path: Path, kind: str, folder: Path | None) -> TensorFlowFile:
    """The model in a file of that kind; `folder` is the SavedModel's, with its variables."""
    parsed, ranges = parse(path, kind)
    data = map_file(path)
    tensors = Tensors(str(path), data, ranges)
    made = TensorFlowFile(path, kind, parsed, tensors, [data[at : at + length] for at, length in ranges], folder)
    if not any(meta.graph_def.node or meta.graph_def.library.function for meta in made.metas):
        raise FusebertError(f"{path} has no nodes; give a model with a graph")
    return made


def is_model(path: Path, folder: bool) -> bool:
    """Whether a path is a SavedModel's folder; or a file, binary or text, with a SavedModel's graphs or a GraphDef."""
    if folder or path.is_dir():
        return folder and is_saved_model(path)
    with suppress(FusebertError):
        if any(meta.graph_def.node for meta in parse(path, "SavedModel")[0].meta_graphs):
            return True
    with suppress(FusebertError):
        nodes = parse(path, "GraphDef")[0].node
        return len(nodes) > 0 and all(node.op for node in nodes)
    return False


def copy_rest(source: Path, folder: Path, without: Sequence[str] = ()) -> None:
    """Everything but the graph itself and some folders, by links where the file system has them."""
    for path in sorted(source.rglob("*")):
        if path.relative_to(source).parts[0] in without:
            continue
        place = folder / path.relative_to(source)
        if path.is_dir():
            place.mkdir()
        elif path.name not in ("saved_model.pb", "saved_model.pbtxt", "fingerprint.pb") or path.parent != source:
            try:
                os.link(path.resolve(), place)
            except OSError:
                shutil.copyfile(path, place)
