"""The PyTorch front door: Hugging Face models that run their encoder as one fused operator.

Importing this module is enough for models that are created afterwards; `optimize` is for those that exist. Masks,
outputs, parameters and saving stay as they were (docs/pytorch.md)."""

from __future__ import annotations

from fusebert.torch.adopt import disable, disabled, enable, optimize, restore
from fusebert.torch.settings import configure

__all__ = ["configure", "disable", "disabled", "enable", "optimize", "restore"]

enable()
