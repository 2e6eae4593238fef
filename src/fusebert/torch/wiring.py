"""Wiring: an encoder of transformers -> its weights in the operator's order, and how they are used.

Layers of BERT are read from the modules themselves, so that what the user changed in them is seen. Of other families
the whole model is wired: its config says what its weights mean, and what its modules say of themselves must agree with
that. Whatever is not the mathematics of fusebert is refused with the reason."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.families import bert, distilbert
from fusebert.torch.form import Shape, form, shape_of, words
from fusebert.torch.packing import FormRecipe, Recipe
from fusebert.torch.settings import Settings
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
# Module and class of every model that is wired whole.
MODELS = {
    ("mpnet", "MPNetModel"), ("xlm_roberta_xl", "XLMRobertaXLModel"), ("albert", "AlbertModel"),
    ("deberta", "DebertaModel"), ("deberta_v2", "DebertaV2Model"), ("modernbert", "ModernBertModel"),
    ("nomic_bert", "NomicBertModel"), ("gte", "GteModel"), ("jina_embeddings_v3", "JinaEmbeddingsV3Model"),
    ("eurobert", "EuroBertModel"), ("gemma3", "Gemma3TextModel"),
}  # fmt: skip
_AROUND = ("embeddings", "embed_tokens", "pooler", "pooler_activation")  # of a model: what is not its encoder
_ACTIVATIONS = {
    "GELUActivation": "gelu_erf", "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh", "GELUTanh": "gelu_tanh", "QuickGELUActivation": "gelu_quick", "ReLU": "relu",
    "SiLUActivation": "silu", "SiLU": "silu", "Tanh": "tanh",
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


def is_model(kind: type[nn.Module]) -> bool:
    """Whether it is a class of models that are wired whole."""
    parts = kind.__module__.split(".")
    return len(parts) == 4 and parts[:2] == ["transformers", "models"] and (parts[2], kind.__name__) in MODELS


class Wiring:
    """Where an encoder's weights are, found once; `intact` says whether it is all still there. It is asked in every
    call, after the engine has emptied the caches: what counts is how few objects it looks at."""

    operator: str
    heads: int  # the most that a layer has
    order: Sequence[int]  # of blocks
    layers: list[nn.Module]
    depth: int  # in layers

    def __init__(
        self, encoder: nn.Module, inner: list[nn.Module], sources: list[nn.Module], weights: list[torch.Tensor]
    ) -> None:
        owners = [module._modules for module in encoder.modules() if module._modules]
        attributes = [vars(module) for module in inner]  # an epsilon, a forward of its own, train mode
        attributes += [vars(config) for config in _configs(inner)]  # how attention is computed
        self._owners: list[dict[str, Any]] = [*owners, *(source._parameters for source in sources), *attributes]
        self._versions = list(map(dict_version, self._owners))
        self._weights = weights
        self._classes = list({type(module) for module in inner})
        self._forwards = [kind.forward for kind in self._classes]
        self.trains = any(module.training and _drops(module) for module in inner)
        self._hooks = [hooks for module in inner for hooks in (module._forward_hooks, module._forward_pre_hooks)]
        self._unhooked = -1  # what RemovableHandle counted when nobody listened

    def recipe(self, settings: Settings) -> Any:
        """How its weights are packed."""
        raise NotImplementedError

    def arguments(self, settings: Settings) -> tuple[Any, ...]:
        """The same, as the operator takes it."""
        raise NotImplementedError

    @property
    def blocks(self) -> int:
        """How many blocks are packed."""
        return max(self.order) + 1

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
        """The parameters in the operator's order, while it is intact."""
        return self._weights


class LayerWiring(Wiring):
    """Of an encoder with BERT's layers: 16 weights each."""

    operator = "encode"

    def __init__(self, encoder: nn.Module, names: dict[str, str]) -> None:
        self.layers = list(encoder.layer)  # type: ignore[arg-type]
        if not self.layers:
            raise UnsupportedError("it has no layers")
        for layer in self.layers:
            _refuse_other_mathematics(layer)
        self.sources = [layer.get_submodule(names[path]) for layer in self.layers for path in POST_NORM_PARTS]
        weights = [_own(source, name) for source in self.sources for name in ("weight", "bias")]
        inner = [module for layer in self.layers for module in layer.modules()]
        super().__init__(encoder, inner, self.sources, weights)
        self._heads = [_heads(layer) for layer in self.layers]
        self.heads, self.depth, self.order = max(self._heads), len(self.layers), range(2 * len(self.layers))
        self.activation = _same("activation", [_activation(layer) for layer in self.layers])
        self.epsilon = _same("LayerNorm epsilon", [s.eps for s in self.sources if isinstance(s, nn.LayerNorm)])

    def recipe(self, settings: Settings) -> Recipe:
        """How its weights are packed."""
        return Recipe(tuple(self._heads), self.activation, self.epsilon, settings.precision, settings.ranges)

    def arguments(self, settings: Settings) -> tuple[Any, ...]:
        """The same, as the operator takes it."""
        return self._heads, self.activation, self.epsilon, settings.precision, list(settings.ranges)

    def weights(self) -> list[torch.Tensor]:
        """The parameters, 16 per layer, while it is intact."""
        if torch.compiler.is_compiling():  # in words that the compiler knows
            return [tensor for source in self.sources for tensor in (source.weight, source.bias)]  # type: ignore[misc]
        return self._weights


class ModelWiring(Wiring):
    """Of a whole model: the weights that its family's table names."""

    operator = "encode_form"

    def __init__(self, model: nn.Module) -> None:
        inside = [child for name, child in model.named_children() if name not in _AROUND]
        inner = [module for child in inside for module in child.modules()]
        for module in inside:
            _refuse_other_mathematics(module)
        config = words(_fields(model.config))
        self.shape = shape = _shape(config, model)
        for module in inner:
            _refuse_another(module, shape)
        self._names = [name.rpartition(".") for name in shape.names]
        self._sources = [model.get_submodule(place) for place, _, _ in self._names]
        weights = [source._parameters[name] for source, (_, _, name) in zip(self._sources, self._names, strict=True)]
        super().__init__(model, inner, list({id(s): s for s in self._sources}.values()), weights)  # type: ignore[arg-type]
        self.layers, self.depth, self.order, self.heads = [], shape.layers, shape.order, shape.heads
        self._form = form(config, shape)
        self.embeds = _parameters(getattr(model, "embeddings", None))
        self.returns_tuples = "return_dict" in inspect.signature(model.forward).parameters

    def recipe(self, settings: Settings) -> FormRecipe:
        """How its weights are packed."""
        return FormRecipe(self._form, settings.precision, settings.ranges)

    def arguments(self, settings: Settings) -> tuple[Any, ...]:
        """The same, as the operator takes it."""
        return self._form, self.heads, settings.precision, list(settings.ranges)

    def weights(self) -> list[torch.Tensor]:
        """The parameters by the form's names, while it is intact."""
        if torch.compiler.is_compiling():
            return [getattr(s, name) for s, (_, _, name) in zip(self._sources, self._names, strict=True)]
        return self._weights


def _fields(config: Any) -> dict[str, Any]:
    """A config's fields as config.json has them."""
    fields: dict[str, Any] = config.to_dict()
    if getattr(config, "use_bidirectional_attention", False):  # in memory it is half of the file's, and one more
        fields["sliding_window"] = 2 * (config.sliding_window - 1)
    return fields


def _shape(config: str, model: nn.Module) -> Shape:
    sizes = tuple((name, tuple(parameter.shape)) for name, parameter in model.named_parameters(remove_duplicate=False))
    try:
        return shape_of(config, sizes)
    except UnsupportedError:
        raise
    except FusebertError as error:  # modules that were taken out or made smaller
        raise UnsupportedError(str(error)) from None


def _refuse_another(module: nn.Module, shape: Shape) -> None:
    """Refuses a module that says otherwise than its model's config."""
    kind = type(module).__name__
    epsilon = getattr(module, "eps", None) or getattr(module, "variance_epsilon", None)
    if epsilon is not None and epsilon not in shape.epsilons:
        raise UnsupportedError(f"a {kind} has epsilon {epsilon}, its config says {min(shape.epsilons)}")
    if kind in _ACTIVATIONS or kind == "GELU":
        name = _activation_name(module)
        if name not in shape.activations:
            raise UnsupportedError(f"a {kind} stands where its config says {', '.join(shape.activations)}")
    heads = getattr(module, "num_attention_heads", None)
    if isinstance(heads, int) and heads != shape.heads:
        raise UnsupportedError(f"a {kind} has {heads} heads, its config says {shape.heads}")
    scale = getattr(module, "scaling", None)
    if isinstance(scale, float) and not any(abs(scale / own - 1) < 1e-6 for own in shape.scales):
        raise UnsupportedError(f"its scores are scaled by {scale}")


def _parameters(module: Any) -> frozenset[str]:
    """The names that a module's forward takes."""
    return frozenset() if module is None else frozenset(inspect.signature(module.forward).parameters)


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
    for config in _configs(list(layer.modules())):
        if (name := getattr(config, "_attn_implementation", None)) not in _ATTENTION:
            raise UnsupportedError(f"its attention is {name!r}, not one of transformers' own")


def _configs(modules: list[nn.Module]) -> list[Any]:
    """The configs that these modules read when they are called."""
    found = [getattr(module, "config", None) for module in modules]
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
    return _activation_name(
        layer.intermediate.intermediate_act_fn if hasattr(layer, "intermediate") else layer.ffn.activation
    )


def _activation_name(function: Any) -> str:
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
