"""Wiring: an encoder of transformers -> its weights in the operator's order, and how they are used.

Read from the modules themselves, not from the config, so that what the user changed in them is seen. Whatever is not
the mathematics of fusebert is refused with the reason."""

from __future__ import annotations

from operator import getitem
from typing import Any

import torch
from torch import nn

from fusebert.errors import UnsupportedError
from fusebert.formats.huggingface import BERT_LAYER, DISTILBERT_LAYER

# Module and class of every encoder that is known -> the names in its layers.
ENCODERS = {
    ("bert", "BertEncoder"): BERT_LAYER,
    ("roberta", "RobertaEncoder"): BERT_LAYER,
    ("xlm_roberta", "XLMRobertaEncoder"): BERT_LAYER,
    ("camembert", "CamembertEncoder"): BERT_LAYER,
    ("electra", "ElectraEncoder"): BERT_LAYER,
    ("distilbert", "Transformer"): DISTILBERT_LAYER,
}
_ORDER = ("query", "key", "value", "attention_out", "attention_norm", "ffn_in", "ffn_out", "output_norm")
_ACTIVATIONS = {
    "GELUActivation": "gelu_erf", "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh", "GELUTanh": "gelu_tanh", "QuickGELUActivation": "gelu_quick", "ReLU": "relu",
}  # fmt: skip
_OWN_MODULES = ("transformers.models.", "transformers.activations", "torch.nn.modules.")


def layer_names(kind: type[nn.Module]) -> Any:
    """The names in the layers of this class of encoder, or None if it is not one."""
    parts = kind.__module__.split(".")
    if len(parts) != 4 or parts[:2] != ["transformers", "models"]:
        return None
    return ENCODERS.get((parts[2], kind.__name__))


class Wiring:
    """Where an encoder's weights are, found once; `intact` says, quickly, whether it is all still there."""

    def __init__(self, encoder: nn.Module, names: dict[str, str]) -> None:
        self._layers: nn.ModuleList = encoder.layer  # type: ignore[assignment]
        layers = list(self._layers)
        if not layers:
            raise UnsupportedError("it has no layers")
        for layer in layers:
            _refuse_other_mathematics(layer)
        self.sources = [layer.get_submodule(names[word]) for layer in layers for word in _ORDER]
        for source in self.sources:
            _check_source(source)
        self._slots = [source._parameters for source in self.sources for _ in (0, 1)]
        self._names = ["weight", "bias"] * len(self.sources)
        parents = [(parent._modules, name, child) for parent in encoder.modules() for name, child in _children(parent)]
        self._parents, self._children, self._modules = (list(column) for column in zip(*parents, strict=True))
        inner = [module for layer in layers for module in layer.modules()]
        self._hooks = [hooks for module in inner for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self.layers = layers
        self.heads = [_heads(layer) for layer in layers]
        self.activation = _same("activation", [_activation(layer) for layer in layers])
        self.epsilon = _same("LayerNorm epsilon", [s.eps for s in self.sources if isinstance(s, nn.LayerNorm)])

    def intact(self) -> bool:
        """Whether no module was put in another's place since."""
        try:
            present = list(map(getitem, self._parents, self._children))
        except KeyError:
            return False
        return present == self._modules and len(self._layers) == len(self.heads)

    def foreign_hooks(self) -> bool:
        """Whether someone listens to modules that the operator does not call, other than transformers' recorders."""
        return any(self._hooks) and any(
            not getattr(hook, "__module__", "").startswith("transformers.")
            for hooks in self._hooks
            for hook in hooks.values()
        )

    def weights(self) -> list[torch.Tensor]:
        """The parameters, 16 per layer."""
        if torch.compiler.is_compiling():  # in words that the compiler knows
            return [tensor for source in self.sources for tensor in (source.weight, source.bias)]  # type: ignore[misc]
        return list(map(getitem, self._slots, self._names))  # type: ignore[arg-type]


def _children(parent: nn.Module) -> list[tuple[str, nn.Module | None]]:
    return list(parent._modules.items())


def _refuse_other_mathematics(layer: nn.Module) -> None:
    for module in layer.modules():
        kind = type(module)
        if not kind.__module__.startswith(_OWN_MODULES) or "forward" in vars(module):
            raise UnsupportedError(f"a layer contains a {kind.__module__}.{kind.__name__} of its own")
        if getattr(module, "position_embedding_type", None) not in (None, "absolute"):
            raise UnsupportedError(f"its positions are {module.position_embedding_type!r}, not absolute")
        if getattr(module, "is_decoder", False):
            raise UnsupportedError("it is a decoder")
        size, scale = getattr(module, "attention_head_size", None), getattr(module, "scaling", None)
        if size and scale is not None and abs(float(scale) * float(size) ** 0.5 - 1) > 1e-6:
            raise UnsupportedError(f"its scores are scaled by {scale}")


def _check_source(source: nn.Module) -> None:
    if type(source) not in (nn.Linear, nn.LayerNorm):
        raise UnsupportedError(f"a {type(source).__name__} stands where a Linear or LayerNorm is expected")
    if source._parameters.get("weight") is None or source._parameters.get("bias") is None:
        raise UnsupportedError(f"a {type(source).__name__} has no weight or bias of its own")


def _heads(layer: nn.Module) -> int:
    attention: Any = layer.attention
    attention = getattr(attention, "self", attention)
    return int(getattr(attention, "num_attention_heads", None) or attention.n_heads)


def _activation(layer: Any) -> str:
    function = layer.intermediate.intermediate_act_fn if hasattr(layer, "intermediate") else layer.ffn.activation
    name = type(function).__name__
    if name == "GELU":
        return "gelu_tanh" if function.approximate == "tanh" else "gelu_erf"
    if name not in _ACTIVATIONS:
        raise UnsupportedError(f"its activation is {name}; these are known: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


def _same(what: str, values: list[Any]) -> Any:
    if len(set(values)) != 1:
        raise UnsupportedError(f"its layers do not share one {what}")
    return values[0]
