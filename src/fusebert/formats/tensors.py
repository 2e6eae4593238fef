"""A checkpoint's tensors by name: from model.safetensors, from shards, or from a pickle through torch's safe loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError
from fusebert.formats.files import Tensors, check_shape, read_json
from fusebert.ops.graph import Array
from fusebert.values.blocks import Linear, Norm


class Weights:
    """A checkpoint's tensors by name, from one file or shards, or as given; the family's prefix may be there or not."""

    def __init__(self, path: Path, prefix: str, tensors: Mapping[str, Array] | None = None) -> None:
        self.path, self._prefix = path, prefix
        self._tensors = _open_weights(path) if tensors is None else tensors
        self._read: dict[str, Array] = {}  # so that a tied weight is the same array wherever it is used

    def find(self, *names: str) -> str | None:
        """The first of these names that exists, as it is stored."""
        for name in names:
            for stored in (name, self._prefix + name):
                if stored in self._tensors:
                    return stored
        return None

    def get(self, *names: str, shape: tuple[int | None, ...]) -> Array:
        """The tensor under the first of these names that exists, with the shape checked (None: any size)."""
        stored = self.find(*names)
        if stored is None:
            raise FusebertError(f"{self.path}: the weights have no tensor {names[0]} (nor {self._prefix}{names[0]})")
        array = self._read.setdefault(stored, self._tensors[stored])
        if array.dtype.name not in ("float32", "float16", "bfloat16"):
            raise FusebertError(f"{self.path}: tensor {stored} has type {array.dtype}; use F32, F16 or BF16")
        check_shape(self.path, stored, array, shape)
        return array

    def linear(
        self, name: str, outputs: int, inputs: int, share: tuple[int, int] = (0, 1), bias: bool = True
    ) -> Linear:
        """A linear map: of the rows under that name, this one of so many equal shares."""
        part, parts = share
        weight = self.get(f"{name}.weight", shape=(parts * outputs, inputs))
        own = self.get(f"{name}.bias", shape=(parts * outputs,)) if bias else None
        if parts == 1:
            return Linear(weight, own)
        rows = slice(part * outputs, (part + 1) * outputs)
        return Linear(weight[rows], None if own is None else own[rows])

    def norm(self, name: str, width: int, epsilon: float, kind: str = "layer", bias: bool = True) -> Norm:
        """A norm under that name, or under the names that gain and bias had in old files."""
        gain = self.get(f"{name}.weight", f"{name}.gamma", shape=(width,))
        own = self.get(f"{name}.bias", f"{name}.beta", shape=(width,)) if bias and kind == "layer" else None
        return Norm(gain, own, epsilon, kind)

    def names_read(self) -> tuple[str, ...]:
        """The names under which tensors were asked for so far."""
        return tuple(self._read)

    def unread(self, places: Set[str], buffers: tuple[str, ...]) -> str | None:
        """A tensor in one of these places that nothing has asked for and whose name does not end like a buffer's."""
        for stored in self._tensors:
            if stored not in self._read and not stored.endswith(buffers):
                words = stored.removeprefix(self._prefix).split(".")
                if any(".".join(words[:count]) in places for count in range(1, len(words))):
                    return stored
        return None


def _open_weights(path: Path) -> Mapping[str, Array]:
    if (path / "model.safetensors").is_file():
        return Tensors(path / "model.safetensors")
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return _open_shards(path, index)
    if (path / "pytorch_model.bin").is_file():
        return open_pickle(path / "pytorch_model.bin")
    raise FusebertError(f"{path} has no model.safetensors, model.safetensors.index.json or pytorch_model.bin")


def _open_shards(path: Path, index: Path) -> Mapping[str, Array]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise FusebertError(f"{index}: weight_map must map tensor names to file names")
    shards = {}
    for file in sorted(set(places.values())):
        if Path(file).name != file or file in ("", ".", ".."):
            raise FusebertError(f"{index}: {file!r} is not the name of a file in that folder")
        shards[file] = Tensors(path / file)
    for name, file in places.items():
        if name not in shards[file]:
            raise FusebertError(f"{path / file} has no tensor {name}, which {index.name} says it has")
    return _Shards(places, shards)


class _Shards(Mapping[str, Array]):
    def __init__(self, places: dict[str, str], shards: Mapping[str, Tensors]) -> None:
        self._places, self._shards = places, shards

    def __getitem__(self, name: str) -> Array:
        return self._shards[self._places[name]][name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def open_pickle(path: Path) -> Mapping[str, Array]:
    """The tensors in a file that torch wrote; nothing in it is run."""
    try:
        import torch
    except ImportError:
        raise FusebertError(
            f"{path} is a pickle, which only torch reads safely; install fusebert[torch] or save as safetensors"
        ) from None
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a broken file
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise FusebertError(f"{path} is refused by torch's weights-only loader: {reason}") from None
    if not isinstance(loaded, dict) or not all(isinstance(v, torch.Tensor) for v in loaded.values()):
        raise FusebertError(f"{path} does not hold a dictionary of tensors")
    return {str(name): _numpy(path, str(name), tensor) for name, tensor in loaded.items()}


def _numpy(path: Path, name: str, tensor: Any) -> Array:
    import ml_dtypes
    import torch

    try:
        tensor = tensor.detach()
        if tensor.dtype == torch.bfloat16:
            return np.asarray(tensor.view(torch.int16).numpy()).view(ml_dtypes.bfloat16)
        array: Array = tensor.numpy()
    except (TypeError, RuntimeError, NotImplementedError) as error:  # sparse, without data, or a type NumPy lacks
        raise FusebertError(f"{path}: tensor {name} cannot be read: {str(error).splitlines()[0]}") from None
    return array
