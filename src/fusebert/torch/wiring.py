"""Wiring: an encoder of transformers -> its weights in the operator's order, and how they are used.

Read from the modules themselves, not from the config, so that what the user changed in them is seen. Whatever is not
the mathematics of fusebert is refused with the reason."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fusebert.errors import UnsupportedError
from fusebert.formats.families import bert, distilbert
from fusebert.values.traverse import POST_NORM_PARTS

# Module and class of every encoder that is known -> the names in its layers.
ENCODERS = {
    ("bert", "BertEncoder"): bert.LAYER,
    ("roberta", "RobertaEncoder"): bert.LAYER,
    ("xlm_roberta", "XLMRobertaEncoder"): bert.LAYER,
    ("camembert", "CamembertEncoder"): bert.LAYER,
    ("electra", "ElectraEncoder"): bert.LAYER,
    ("distilbert", "Transformer"): distilbert.LAYER,
}
_ACTIVATIONS = {
    "GELUActivation": "gelu_erf", "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh", "GELUTanh": "gelu_tanh", "QuickGELUActivation": "gelu_quick", "ReLU": "relu",
}  # fmt: skip
_ATTENTION = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")  # all the same numbers
try:
    from torch._C._dynamo.guards import dict_version
except ImportError:  # it is private to torch

    def dict_version(d: dict[Any, Any]) -> int:
        """A number that changes when an entry of a dictionary is replaced, added or removed."""
        plain = (bool, int, float, str)
        return hash(tuple((name, value if isinstance(value, plain) else id(value)) for name, value in d.items()))


_OWN_MODULES = ("transformers.models.", "transformers.activations", "torch.nn.modules.")


def layer_names(kind: type[nn.Module]) -> Any:
    """The names in the layers of this class of encoder, or None if it is not one."""
    parts = kind.__module__.split(".")
    if len(parts) != 4 or parts[:2] != ["transformers", "models"]:
        return None
    return ENCODERS.get((parts[2], kind.__name__))


class Wiring:
    """Where an encoder's weights are, found once; `intact` says whether it is all still there. It is asked in every
    call, after the engine has emptied the caches: what counts is how few objects it looks at."""

    def __init__(self, encoder: nn.Module, names: dict[str, str]) -> None:
        self.layers: list[nn.Module] = list(encoder.layer)  # type: ignore[arg-type]
        if not self.layers:
            raise UnsupportedError("it has no layers")
        for layer in self.layers:
            _refuse_other_mathematics(layer)
        self.sources = [layer.get_submodule(names[path]) for layer in self.layers for path in POST_NORM_PARTS]
        owners = [module._modules for module in encoder.modules() if module._modules]
        inner = [module for layer in self.layers for module in layer.modules()]
        attributes = [vars(module) for module in inner]  # an epsilon, a forward of its own, train mode
        attributes += [vars(config) for config in _configs(self.layers)]  # how attention is computed
        self._owners: list[dict[str, Any]] = [*owners, *(source._parameters for source in self.sources), *attributes]
        self._versions = list(map(dict_version, self._owners))
        self._weights = [_own(source, name) for source in self.sources for name in ("weight", "bias")]
        self._classes = list({type(module) for module in inner})
        self._forwards = [kind.forward for kind in self._classes]
        self.trains = any(module.training and _drops(module) for module in inner)
        self._hooks = [hooks for module in inner for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self._unhooked = -1  # what RemovableHandle counted when nobody listened
        self.heads = [_heads(layer) for layer in self.layers]
        self.activation = _same("activation", [_activation(layer) for layer in self.layers])
        self.epsilon = _same("LayerNorm epsilon", [s.eps for s in self.sources if isinstance(s, nn.LayerNorm)])

    def intact(self) -> bool:
        """Whether no module, parameter, attribute or forward was replaced since."""
        together = self._owners[:]  # copying a list fetches all that is in it, one does not wait for the other
        return (
            list(map(dict_version, together)) == self._versions
            and [kind.forward for kind in self._classes] == self._forwards
        )

    def foreign_hooks(self) -> bool:
        """Whether someone listens to modules that the operator does not call, other than transformers' recorders."""
        handles = RemovableHandle.next_id  # every hook takes a number
        if handles == self._unhooked:
            return False
        found = any(
            not getattr(hook, "__module__", "").startswith("transformers.")
            for hooks in self._hooks
            for hook in hooks.values()
        )
        self._unhooked = -1 if found else handles
        return found

    def weights(self) -> list[torch.Tensor]:
        """The parameters, 16 per layer, while it is intact."""
        if torch.compiler.is_compiling():  # in words that the compiler knows
            return [tensor for source in self.sources for tensor in (source.weight, source.bias)]  # type: ignore[misc]
        return self._weights


def _refuse_other_mathematics(layer: nn.Module) -> None:
    for module in layer.modules():
        kind = type(module)
        own = kind.__module__.startswith(_OWN_MODULES) and kind.forward.__module__.startswith(_OWN_MODULES)
        replaced = [name for name, value in vars(module).items() if callable(value) and callable(vars(kind).get(name))]
        if not own or "forward" in vars(module) or replaced:
            raise UnsupportedError(f"a layer contains a {kind.__module__}.{kind.__name__} of its own")
        if getattr(module, "position_embedding_type", None) not in (None, "absolute"):
            raise UnsupportedError(f"its positions are {module.position_embedding_type!r}, not absolute")
        if getattr(module, "is_decoder", False) or getattr(module, "is_causal", False):
            raise UnsupportedError("it is a decoder")
        size, scale = getattr(module, "attention_head_size", None), getattr(module, "scaling", None)
        if size and scale is not None and abs(float(scale) * float(size) ** 0.5 - 1) > 1e-6:
            raise UnsupportedError(f"its scores are scaled by {scale}")
    for config in _configs([layer]):
        if (name := getattr(config, "_attn_implementation", None)) not in _ATTENTION:
            raise UnsupportedError(f"its attention is {name!r}, not one of transformers' own")


def _configs(layers: list[nn.Module]) -> list[Any]:
    """The configs that modules in these layers read when they are called."""
    found = [getattr(module, "config", None) for layer in layers for module in layer.modules()]
    return list({id(config): config for config in found if config is not None}.values())


def _drops(module: nn.Module) -> bool:
    """Whether train mode makes a difference: to dropout, and to attention, which drops scores by its own mode."""
    return isinstance(module, nn.Dropout) or type(module).__module__.startswith("transformers.models.")


def _own(source: nn.Module, name: str) -> torch.Tensor:
    if type(source) not in (nn.Linear, nn.LayerNorm):
        raise UnsupportedError(f"a {type(source).__name__} stands where a Linear or LayerNorm is expected")
    tensor = source._parameters.get(name)
    if tensor is None:
        raise UnsupportedError(f"a {type(source).__name__} has no weight or bias of its own")
    return tensor


def _heads(layer: nn.Module) -> int:
    attention: Any = layer.attention
    attention = getattr(attention, "self", attention)
    heads = int(getattr(attention, "num_attention_heads", None) or attention.n_heads)
    query = getattr(attention, "query", None) or attention.q_lin
    if heads * getattr(attention, "attention_head_size", query.out_features // heads) != query.out_features:
        raise UnsupportedError(f"its {heads} heads are not as wide as their attention_head_size says")
    return heads


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
