"""The modules around an encoder -> whether any of them reads rows that the mask hides."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

# Ends of class names whose answers depend on a hidden row only at that row, or on the first one.
_READ_NO_OTHER = (
    "ForSequenceClassification", "ForTokenClassification", "ForMaskedLM", "ForPreTraining", "ForNextSentencePrediction",
    "ForMultipleChoice",
)  # fmt: skip
_UNLESS = ("ElectraForMultipleChoice",)  # its summary may be a mean
_AFTER_POOLING = ("Normalize", "Dense", "Dropout", "LayerNorm")


def may_skip(above: Sequence[nn.Module]) -> bool:
    """Whether hidden rows may be skipped but for the first ones, by the modules that contain the encoder, outermost
    first."""
    if any(_pools_masked(module) or _is_gliner(module) for module in above):
        return True
    models = [type(module) for module in above if isinstance(module, PreTrainedModel)]
    return bool(models) and _reads_no_other(models[0])


def _reads_no_other(kind: type[nn.Module]) -> bool:
    known = kind.__module__.startswith("transformers.models.") and kind.__name__ not in _UNLESS
    return known and kind.__name__.endswith(_READ_NO_OTHER)


def _is_gliner(module: nn.Module) -> bool:
    """Whether it is a GLiNER, which picks the rows of words and labels."""
    return type(module).__module__.startswith("gliner.")


def _pools_masked(module: nn.Module) -> bool:
    """Whether it is a SentenceTransformer whose pooling, which heeds the mask, alone reads the rows."""
    kind = type(module)
    if kind.__name__ != "SentenceTransformer" or not kind.__module__.startswith("sentence_transformers."):
        return False
    _, *rest = module.children()
    names = [type(step).__name__ for step in rest]
    own = all(type(step).__module__.startswith("sentence_transformers.") for step in rest)
    pooled = all(getattr(step, "module_input_name", "sentence_embedding") == "sentence_embedding" for step in rest[1:])
    return own and pooled and names[:1] == ["Pooling"] and set(names[1:]) <= set(_AFTER_POOLING)
