"""Models in, the same models with fused encoders out: one at a time, or every one that transformers creates."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch import nn
from transformers import PreTrainedModel

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.torch.classes import fused_class, is_known
from fusebert.torch.consumers import may_skip
from fusebert.torch.encoder import Fused, State
from fusebert.torch.packing import forget
from fusebert.torch.settings import chosen
from fusebert.values.batch import hidden_rows
from fusebert.values.plan import make_plan

Model = TypeVar("Model", bound=nn.Module)

_post_init = PreTrainedModel.post_init  # what every model of transformers calls when it is complete


def optimize(
    model: Model,
    precision: str | None = None,
    padding: str | None = None,
    threads: int | None = None,
    ranges: Any = None,
    calibrate: bool | None = None,
) -> Model:
    """Fuses every encoder in a model that exists, in place, and returns the model.

    precision: fp32, bf16, int8 or int8-bf16. padding: what becomes of hidden positions, "auto", "skip" or "compute".
    threads: as many as torch uses, unless given. ranges: 8 numbers per layer that make int8 static, as calibration
    gives them. calibrate: record them while fp32 runs; `get_quantization_factors` of the encoder has them."""
    if not isinstance(model, nn.Module):
        raise FusebertError(f"optimize takes a torch module, not a {type(model).__name__}")
    wanted = {"precision": precision, "padding": padding, "threads": threads, "ranges": ranges, "calibrate": calibrate}
    found = _encoders(model)
    if not found:
        raise UnsupportedError(f"{type(model).__name__} contains no encoder of a family that fusebert knows")
    for name, encoder in found:
        try:
            _fuse(model, name, encoder, wanted)
        except UnsupportedError as error:
            raise UnsupportedError(f"{name or type(encoder).__name__} cannot be fused: {error}") from None
        _start_afresh(encoder)
    return model


def restore(model: Model) -> Model:
    """Puts every original encoder back, in place, and returns the model."""
    for _, encoder in _encoders(model):
        if isinstance(encoder, Fused):
            encoder.__class__ = type(encoder).original  # type: ignore[assignment]
            del encoder.fusebert
    return model


def enable() -> None:
    """From now on, models that transformers creates are fused."""
    PreTrainedModel.post_init = _fusing_post_init  # type: ignore[method-assign]


def disable() -> None:
    """From now on, models are created as transformers has them; those that are fused stay so (see `restore`)."""
    PreTrainedModel.post_init = _post_init  # type: ignore[method-assign]


@contextmanager
def disabled() -> Iterator[None]:
    """A stretch of code in which models are created as transformers has them."""
    before = PreTrainedModel.post_init
    disable()
    try:
        yield
    finally:
        PreTrainedModel.post_init = before  # type: ignore[method-assign]


@functools.wraps(_post_init)
def _fusing_post_init(self: PreTrainedModel) -> None:
    _post_init(self)  # type: ignore[no-untyped-call]
    for name, encoder in _encoders(self):
        try:
            _fuse(self, name, encoder, {})
        except UnsupportedError as error:
            warnings.warn(f"fusebert: {type(self).__name__} keeps its original encoder: {error}", stacklevel=3)


def _start_afresh(encoder: nn.Module) -> None:
    """Forgets what was packed, and takes int8's sample now: a graph may be exported before anything runs."""
    assert isinstance(encoder, Fused)
    state = encoder.fusebert
    assert state.wiring is not None
    forget(state.wiring.weights())
    if state.settings.precision.startswith("int8") and not state.settings.ranges:
        state.sample = encoder.sample_rows()


def _encoders(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, module) for name, module in model.named_modules() if is_known(module)]


def _fuse(root: nn.Module, name: str, encoder: nn.Module, wanted: dict[str, Any]) -> None:
    parts = name.split(".") if name else []
    above = [root.get_submodule(".".join(parts[:depth])) for depth in range(len(parts))]
    base = above[-1] if above else None
    config = getattr(encoder, "config", None) or getattr(base, "config", None)
    kind = type(encoder) if isinstance(encoder, Fused) else fused_class(type(encoder))
    wiring = kind.wire(encoder)
    settings = chosen(config, **wanted)
    make_plan(settings.precision, wiring.blocks, settings.ranges or None)  # refuses ranges that do not fit
    state = State(settings, hidden_rows(settings.padding, may_skip(above), reads_first=True), config, base)
    state.wiring = wiring
    encoder.__class__ = kind
    encoder.fusebert = state  # type: ignore[assignment]
