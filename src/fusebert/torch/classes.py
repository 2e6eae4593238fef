"""A class of transformers -> the fused class before it; always the same for the same."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn
from transformers import modeling_outputs as outputs

from fusebert.torch.encoder import Fused, FusedEncoder
from fusebert.torch.model import FusedModel
from fusebert.torch.wiring import is_model, layer_names

_classes: dict[type[nn.Module], type[Fused]] = {}
_OUTPUTS = {
    "Transformer": outputs.BaseModelOutput, "ModernBertModel": outputs.BaseModelOutput,
    "DebertaModel": outputs.BaseModelOutput, "DebertaV2Model": outputs.BaseModelOutput,
    "EuroBertModel": outputs.BaseModelOutput, "Gemma3TextModel": outputs.BaseModelOutputWithPast,
    "XLMRobertaXLModel": outputs.BaseModelOutputWithPoolingAndCrossAttentions,
}  # fmt: skip


def is_known(module: nn.Module) -> bool:
    """Whether it is, or was, of a class that can be fused."""
    if isinstance(module, Fused) or layer_names(type(module)) is not None:
        return True
    if not is_model(type(module)):
        return False
    # Gemma's class is also that of decoders.
    return getattr(module.config, "use_bidirectional_attention", True) is not False


def fused_class(original: type[nn.Module]) -> type[Fused]:
    """Fused before that class."""
    if original not in _classes:
        _classes[original] = _make_model(original) if is_model(original) else _make_encoder(original)
    return _classes[original]


def _make_encoder(original: type[nn.Module]) -> type[Fused]:
    choice = inspect.signature(original.forward).parameters.get("return_dict")
    members = {
        "original": original,
        "output_type": _OUTPUTS.get(original.__name__, outputs.BaseModelOutputWithPastAndCrossAttentions),
        "returns_dict": ... if choice is None else choice.default,
        "revive": staticmethod(revive),
        "__doc__": original.__doc__,
    }
    return type(f"Fused{original.__name__}", (FusedEncoder, original), members)


def _make_model(original: type[nn.Module]) -> type[Fused]:
    _, *names = inspect.signature(original.forward).parameters
    members: dict[str, Any] = {
        "original": original,
        "output_type": _OUTPUTS.get(original.__name__, outputs.BaseModelOutputWithPooling),
        "arguments": tuple(names),
        "revive": staticmethod(revive),
        "__doc__": original.__doc__,
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
    }
    return type(original.__name__, (FusedModel, original), members)


def revive(original: type[nn.Module]) -> Fused:
    """An empty fused module, for unpickling and copying."""
    kind = fused_class(original)
    return kind.__new__(kind)
