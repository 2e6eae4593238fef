"""fusebert::encode and fusebert::encode_form: embedded rows, mask and weights in, rows out. Whatever runs torch
operators can run them: eager, jit.trace, torch.compile, torch.export. Weights are inputs, so a saved graph has them
with it: BERT's in their order, those of other families by the names in a form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, from_numpy, is_grad_enabled
from torch._C import _get_tracing_state, _len_torch_dispatch_stack
from torch._C._autograd import _profiler_enabled
from torch._C._functorch import peek_interpreter_stack

from fusebert.engine.native import EncoderEngine
from fusebert.errors import FusebertError
from fusebert.ops.graph import Array
from fusebert.torch.form import form_layers
from fusebert.torch.masks import masked_batch
from fusebert.torch.packing import PER_LAYER, FormRecipe, Recipe, packed_engine, thread_pool

_LIBRARY: Any = torch.library.Library("fusebert", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "encode(Tensor rows, Tensor? mask, Tensor[] weights, Tensor? sample, int[] heads, str activation, float epsilon, "
    "str precision, float[] ranges, str padding, int threads, bool states) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_LIBRARY.define(
    "encode_form(Tensor rows, Tensor? mask, Tensor[] weights, Tensor? sample, str form, int heads, str precision, "
    "float[] ranges, str padding, int threads, bool states) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_FLOATS = torch.float32
Run = Callable[[], None]
_NO_GRADIENT = "fusebert is for inference only and has no gradient: call .eval() under torch.no_grad(), or .train()"


def _encode(
    rows: torch.Tensor, mask: torch.Tensor | None, weights: list[torch.Tensor], sample: torch.Tensor | None, *rest: Any
) -> list[torch.Tensor]:
    heads, activation, epsilon, precision, ranges, padding, threads, states = rest
    engine = packed_engine(weights, Recipe(tuple(heads), activation, epsilon, precision, tuple(ranges)), sample)
    outputs, run = prepare(engine, rows, mask, max(heads), padding, threads, len(heads) if states else 0)
    run()
    return outputs


def _encode_form(
    rows: torch.Tensor, mask: torch.Tensor | None, weights: list[torch.Tensor], sample: torch.Tensor | None, *rest: Any
) -> list[torch.Tensor]:
    form, heads, precision, ranges, padding, threads, states = rest
    engine = packed_engine(weights, FormRecipe(form, precision, tuple(ranges)), sample)
    outputs, run = prepare(engine, rows, mask, heads, padding, threads, form_layers(form) if states else 0)
    run()
    return outputs


def prepare(
    engine: EncoderEngine,
    rows: torch.Tensor,
    mask: torch.Tensor | None,
    heads: int,
    padding: str,
    threads: int,
    states: int,
) -> tuple[list[torch.Tensor], Run]:
    """The rows after the last layer, or after each of so many layers if `states` are wanted, each
    `[sequences, length, hidden]`, and the call that fills them in.

    It reads weights so large that afterwards nothing is in the caches: each function of torch then costs far more than
    what it does. So there are few of them here, and none need follow the call."""
    given = _floats(rows)
    shape = given.shape
    if len(shape) != 3:
        raise FusebertError(f"rows have shape {shape}, but must be [sequences, length, hidden]")
    batch = masked_batch(mask, shape[:2], heads, padding)
    flat = given.reshape(-1, shape[2])
    flat = flat if flat.flags.c_contiguous else flat.copy()
    make = np.empty_like if len(batch.index) == len(flat) else np.zeros_like
    arrays = [make(flat) for _ in range(states or 1)]
    outputs = [from_numpy(array.reshape(shape)) for array in arrays]
    pool = thread_pool(threads)
    run = partial(engine.run_padded, flat, arrays[-1], batch, arrays if states else [], pool)
    if rows.dtype == _FLOATS:
        return outputs, run
    run()
    return [output.to(rows.dtype) for output in outputs], done


def done() -> None:
    """The call where all is filled in."""


def _floats(tensor: torch.Tensor) -> Array:
    if tensor.dtype != _FLOATS or tensor.requires_grad:
        tensor = tensor.detach().float()
    array: Array = tensor.numpy()
    return array


def _encode_fake(rows: torch.Tensor, _mask: Any, weights: list[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
    states = rest[-1]
    return [rows.new_empty(rows.shape) for _ in range(len(weights) // PER_LAYER if states else 1)]


def _encode_form_fake(
    rows: torch.Tensor, _mask: Any, _weights: Any, _sample: Any, form: str, *rest: Any
) -> list[torch.Tensor]:
    return [rows.new_empty(rows.shape) for _ in range(form_layers(form) if rest[-1] else 1)]


class _Refuse(torch.autograd.Function):
    """The rows as they are, and an error for whoever asks for a gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, source: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        raise RuntimeError(_NO_GRADIENT)


def _with_gradient(operator: Any, *arguments: Any) -> list[torch.Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        outputs: list[torch.Tensor] = operator(*arguments)
    if torch.is_grad_enabled():
        rows, weights = arguments[0], arguments[2]
        source = next((tensor for tensor in (rows, *weights) if tensor.requires_grad), None)
        if source is not None:
            return [_Refuse.apply(output, source) for output in outputs]  # type: ignore[no-untyped-call]
    return outputs


_OPERATORS: dict[str, Any] = {}
for _name, _run, _fake in (("encode", _encode, _encode_fake), ("encode_form", _encode_form, _encode_form_fake)):
    _OPERATORS[_name] = getattr(torch.ops.fusebert, _name).default
    _LIBRARY.impl(_name, _run, "CPU")
    _LIBRARY.impl(_name, partial(_with_gradient, _OPERATORS[_name]), "Autograd")
    torch.library.register_fake(f"fusebert::{_name}", _fake, lib=_LIBRARY)


def is_tracing() -> bool:
    """Whether torch.jit.trace is at work."""
    return _get_tracing_state() is not None


def encode(name: str, *arguments: Any) -> list[torch.Tensor]:
    """Calls the operator of that name."""
    return list(_OPERATORS[name](*arguments))


def is_plain(rows: torch.Tensor) -> bool:
    """Whether the engine may be called past the dispatcher, which looks at every weight: no gradient is kept, and
    nobody wants to see every operator: no tracer, profiler, mode (fake tensors, proxies) or transform such as vmap."""
    return type(rows) is Tensor and not (
        is_grad_enabled()
        or _get_tracing_state() is not None
        or _profiler_enabled()
        or _len_torch_dispatch_stack()
        or peek_interpreter_stack() is not None
    )


def encode_compiled(name: str, *arguments: Any) -> list[torch.Tensor]:
    """Calls the operator of that name inside torch.compile, which would trace the refusal of a gradient as if it had
    been asked."""
    with torch.no_grad():
        return list(_OPERATORS[name](*arguments))
