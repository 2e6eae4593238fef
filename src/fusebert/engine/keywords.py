"""Keywords that callers of sentence-transformers write -> what they mean here. One that asks for something else than
is done here is refused with a sentence that names the way to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fusebert.errors import FusebertError

_OF_VECTORS = ("normalize_embeddings", "convert_to_numpy", "convert_to_tensor")
_READ_SCORES = "a Label has the probability of every class in scores"
# What may be said because it is so anyway, and what to do instead of asking for something else.
_AS_IT_IS: dict[str, tuple[str, str]] = {
    "device": ("cpu", "models run on the CPU; omit it"),
    "precision": ("float32", "vectors are float32; the precision of the weights is given to fusebert.load"),
    "output_value": ("sentence_embedding", "encode_tokens gives the rows of tokens"),
    "truncate_dim": ("", "take the first columns of the answer"),
    "pool": ("", "one process uses all cores; omit it"),
    "chunk_size": ("", "give batch_tokens"),
    "apply_softmax": ("True", _READ_SCORES),
    "activation_fn": ("", _READ_SCORES),
}


@dataclass(frozen=True)
class Meant:
    """What a call means: our settings, and whether its vectors become a tensor, or a list of tensors, of PyTorch."""

    progress: bool
    normalize: bool | None = None
    as_tensor: bool = False
    as_list: bool = False

    def convert(self, vectors: Any) -> Any:
        """The vectors as they were asked for."""
        if not (self.as_tensor or self.as_list):
            return vectors
        import torch

        tensor = torch.from_numpy(vectors)
        return list(tensor) if self.as_list and tensor.dim() == 2 else tensor


def understand_encode(theirs: Mapping[str, Any], progress: bool, normalize: bool | None, has_own: bool) -> Meant:
    """What their keywords mean to `encode` beside ours. `has_own` says whether the model's folder tells if vectors are
    normalised: what it says is done even where a caller does not ask for it, as sentence-transformers does."""
    _check(theirs, _OF_VECTORS)
    asked = theirs.get("normalize_embeddings")
    if asked is not None:
        normalize = None if has_own and not asked else bool(asked)
    as_tensor = bool(theirs.get("convert_to_tensor"))
    as_list = not as_tensor and not theirs.get("convert_to_numpy", True)
    return Meant(_progress(theirs, progress), normalize, as_tensor, as_list)


def understand_predict(theirs: Mapping[str, Any], progress: bool) -> Meant:
    """What their keywords mean to `predict` beside ours."""
    for name in filter(theirs.__contains__, _OF_VECTORS):
        raise FusebertError(f"{name}: predict gives Labels, Spans or words, not an array; read their score")
    _check(theirs, ())
    return Meant(_progress(theirs, progress))


def _progress(theirs: Mapping[str, Any], progress: bool) -> bool:
    shown = theirs.get("show_progress_bar")
    return progress if shown is None else bool(shown)


def _check(theirs: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name, value in theirs.items():
        if name in _AS_IT_IS:
            accepted, instead = _AS_IT_IS[name]
            if value is not None and str(value) != accepted:
                raise FusebertError(f"{name}={value!r:.40} is not possible: {instead}")
        elif name not in known and name != "show_progress_bar":
            raise TypeError(f"unexpected keyword argument {name!r}")
