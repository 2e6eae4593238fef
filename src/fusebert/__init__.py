"""fusebert: BERT-family inference on CPUs with one fused native encoder.

The public names are imported on first use, so that importing the package costs next to nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusebert.errors import FusebertError, UnsupportedError
    from fusebert.model import Model, load
    from fusebert.optimize import optimize

__version__ = "0.1.0"
__all__ = ["FusebertError", "Model", "UnsupportedError", "load", "optimize"]

_HOMES = {"FusebertError": "errors", "UnsupportedError": "errors", "Model": "model", "load": "model", "optimize": "optimize"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fusebert' has no attribute {name!r}")
    return getattr(import_module(f"fusebert.{_HOMES[name]}"), name)
