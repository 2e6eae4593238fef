"""fusebert::encode, the one operator: embedded rows, mask and weights in, rows out. Whatever runs torch operators can
run it: eager, jit.trace, torch.compile, torch.export. Weights are inputs, so a saved graph has them with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fusebert.errors import FusebertError
from fusebert.torch.masks import masked_batch
from fusebert.torch.packing import PER_LAYER, Recipe, packed_engine, thread_pool

_LIBRARY: Any = torch.library.Library("fusebert", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "encode(Tensor rows, Tensor? mask, Tensor[] weights, Tensor? sample, int[] heads, str activation, float epsilon, "
    "str precision, float[] ranges, str padding, int threads, bool states) -> Tensor[]",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_NO_GRADIENT = "fusebert is for inference only and has no gradient: call .eval() under torch.no_grad(), or .train()"


def _encode(
    rows: torch.Tensor,
    mask: torch.Tensor | None,
    weights: list[torch.Tensor],
    sample: torch.Tensor | None,
    heads: list[int],
    activation: str,
    epsilon: float,
    precision: str,
    ranges: list[float],
    padding: str,
    threads: int,
    states: bool,
) -> list[torch.Tensor]:
    """The rows after the last layer, or after every layer if `states`; each `[sequences, length, hidden]`."""
    engine = packed_engine(weights, Recipe(tuple(heads), activation, epsilon, precision, tuple(ranges)), sample)
    if rows.dim() != 3:
        raise FusebertError(f"rows have shape {tuple(rows.shape)}, but must be [sequences, length, hidden]")
    sequences, length, hidden = rows.shape
    batch = masked_batch(mask, (sequences, length), max(heads), padding)
    given = (
        rows.detach() if rows.dtype == torch.float32 and rows.is_contiguous() else rows.detach().float().contiguous()
    )
    make = np.empty if len(batch.index) == sequences * length else np.zeros
    outputs = [make((sequences * length, hidden), np.float32) for _ in range(len(heads) if states else 1)]
    flat = given.numpy().reshape(-1, hidden)
    engine.run_padded(flat, outputs[-1], batch, outputs if states else [], thread_pool(threads))
    answers = [torch.from_numpy(output.reshape(rows.shape)) for output in outputs]
    return answers if rows.dtype == torch.float32 else [answer.to(rows.dtype) for answer in answers]


def _encode_fake(rows: torch.Tensor, _mask: Any, weights: list[torch.Tensor], *rest: Any) -> list[torch.Tensor]:
    states = rest[-1]
    return [rows.new_empty(rows.shape) for _ in range(len(weights) // PER_LAYER if states else 1)]


class _Refuse(torch.autograd.Function):
    """The rows as they are, and an error for whoever asks for a gradient."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, source: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return rows.view_as(rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        raise RuntimeError(_NO_GRADIENT)


def _encode_autograd(*arguments: Any) -> list[torch.Tensor]:
    with torch._C._AutoDispatchBelowAutograd():
        outputs: list[torch.Tensor] = torch.ops.fusebert.encode.default(*arguments)
    if torch.is_grad_enabled():
        rows, weights = arguments[0], arguments[2]
        source = next((tensor for tensor in (rows, *weights) if tensor.requires_grad), None)
        if source is not None:
            return [_Refuse.apply(output, source) for output in outputs]  # type: ignore[no-untyped-call]
    return outputs


_LIBRARY.impl("encode", _encode, "CPU")
_LIBRARY.impl("encode", _encode_autograd, "Autograd")
torch.library.register_fake("fusebert::encode", _encode_fake, lib=_LIBRARY)
_operator = torch.ops.fusebert.encode.default


def is_tracing() -> bool:
    """Whether torch.jit.trace is at work."""
    return torch._C._get_tracing_state() is not None


@contextmanager
def untraced() -> Iterator[None]:
    """What runs inside leaves no trace in a graph that is being traced."""
    tracer: Any = torch._C
    state = tracer._get_tracing_state()
    tracer._set_tracing_state(None)
    try:
        yield
    finally:
        tracer._set_tracing_state(state)


def encode(*arguments: Any) -> list[torch.Tensor]:
    """Calls the operator; past torch's dispatcher, which looks at every weight, where nobody listens to it."""
    if type(arguments[0]) is torch.Tensor and not (torch.is_grad_enabled() or is_tracing() or _is_watched()):
        return _encode(*arguments)
    return list(_operator(*arguments))


def _is_watched() -> bool:
    """Whether a profiler, a mode (fake tensors, proxies) or a transform such as vmap wants to see every operator."""
    torch_c: Any = torch._C
    return bool(
        torch_c._autograd._profiler_enabled()
        or torch_c._len_torch_dispatch_stack()
        or torch_c._functorch.peek_interpreter_stack() is not None
    )


def encode_compiled(*arguments: Any) -> list[torch.Tensor]:
    """Calls the operator inside torch.compile, which would trace the refusal of a gradient as if it had been asked."""
    with torch.no_grad():
        return list(_operator(*arguments))
