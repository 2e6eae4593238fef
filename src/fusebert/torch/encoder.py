"""Fused: an encoder of transformers, or a model, that runs as one operator, with the same class, parameters and names
as before.

It is the original with another class put in front of it, so that state_dict, saving, copying and isinstance see no
difference; the original forward stays at hand for training and for whatever the operator does not compute."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.compiler import is_compiling

from fusebert.engine.quantize import random_ids
from fusebert.errors import UnsupportedError
from fusebert.ops.graph import Array
from fusebert.torch.masks import masked_batch
from fusebert.torch.operator import Run, done, encode, encode_compiled, is_plain, is_tracing, prepare
from fusebert.torch.packing import Packed, packed_engine, packed_form
from fusebert.torch.settings import Settings
from fusebert.torch.wiring import LayerWiring, Wiring, layer_names
from fusebert.values.batch import Batch
from fusebert.values.plan import PRODUCTS

_OTHER = ("head_mask", "encoder_hidden_states", "encoder_attention_mask", "past_key_values", "past_key_value")
_WITHOUT_EFFECT = ("position_ids", "cache_position", "return_dict", "output_hidden_states", "num_items_in_batch")


class State:
    """What a fused encoder knows beside its parameters. `base` is the model around it, whose embeddings give a sample
    of rows for int8; `hidden_rows` is what becomes of the rows that a mask hides."""

    def __init__(self, settings: Settings, hidden_rows: str, config: Any, base: nn.Module | None) -> None:
        self.settings, self.hidden_rows, self.base = settings, hidden_rows, base
        self.config = config or SimpleNamespace()
        self.sample: torch.Tensor | None = None
        self.ranges: Array | None = None
        self.warned: set[str] = set()
        self.wiring: Wiring | None = None
        self.packed: Packed | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "wiring": None, "packed": None}


class Fused(nn.Module):
    """Stands before an encoder's own class."""

    fusebert: State

    @classmethod
    def wire(cls, encoder: nn.Module) -> Wiring:
        """Where the weights of an encoder are now, fused or not."""
        raise NotImplementedError

    def get_quantization_factors(self) -> list[float]:
        """The ranges that calibration saw so far, 8 numbers per layer."""
        return [] if self.fusebert.ranges is None else [float(number) for number in self.fusebert.ranges.ravel()]

    def sample_rows(self) -> torch.Tensor | None:
        """Rows of random ids, embedded by the model around it, on which int8 smoothing observes the inputs."""
        return in_a_thread(partial(_embedded_sample, self.fusebert.base))

    def _reason_inside(self) -> str:
        """Why the modules inside may not be passed over, if so."""
        wiring = self.fusebert.wiring
        if is_compiling():
            return "" if wiring else "its layers have not run since they changed"
        if wiring is None or not wiring.intact():
            try:
                wiring = self.fusebert.wiring = self.wire(self)
                self.fusebert.packed = None  # its weights may be the same, what surrounds them is not
            except UnsupportedError as error:
                return str(error)
        if wiring.trains and not self.training:
            return "modules inside it are in train mode"
        return "hooks listen to its layers" if wiring.foreign_hooks() else ""

    def _wants(self, name: str, named: dict[str, Any]) -> Any:
        value = named.get(name)
        if value is not None or is_compiling():
            return value if value is not None else getattr(self.fusebert.config, name, False)
        fields = object.__getattribute__(self.fusebert.config, "__dict__")  # transformers' own lookup is slow
        return fields.get(name) or fields.get(f"_{name}")

    def _warn(self, reason: str) -> None:
        if reason not in self.fusebert.warned and not is_compiling():
            self.fusebert.warned.add(reason)
            warnings.warn(f"fusebert: {type(self).__name__} runs the original encoder: {reason}", stacklevel=4)

    def _prepare(
        self, rows: torch.Tensor, mask: torch.Tensor | None, states: bool, hidden_rows: str = ""
    ) -> tuple[Sequence[torch.Tensor], Run]:
        """The rows after every layer, or the last, and the call that fills them in; `hidden_rows` as it is set unless
        given."""
        state = self.fusebert
        wiring, settings = state.wiring, state.settings
        assert wiring is not None  # made when the encoder was
        weights = wiring.weights()
        own = "compute" if states and settings.padding == "auto" else state.hidden_rows
        hidden_rows = hidden_rows or own
        if settings.precision.startswith("int8") and not settings.ranges and state.sample is None:
            state.sample = self.sample_rows() if _real(rows) else None
        if settings.calibrate and _real(rows) and not is_tracing():
            self._observe(rows, mask, weights, wiring)
        if not is_compiling() and is_plain(rows):
            packed = state.packed
            if packed is None or not packed.fits(weights):
                packed = state.packed = packed_form(weights, wiring.recipe(settings), state.sample)
            shown = wiring.depth if states else 0
            return prepare(packed.engine, rows, mask, wiring.heads, hidden_rows, settings.threads, shown)
        how = (*wiring.arguments(settings), hidden_rows, settings.threads, states)
        call = encode_compiled if is_compiling() else encode
        return call(wiring.operator, rows, mask, weights, state.sample, *how), done

    def _observe(self, rows: Any, mask: Any, weights: list[torch.Tensor], wiring: Wiring) -> None:
        ranges = self.fusebert.ranges
        if ranges is None:
            ranges = self.fusebert.ranges = np.zeros((wiring.blocks // 2, len(PRODUCTS), 2), np.float32)

        by_block = ranges.reshape(-1, 2, 2)

        def widen(place: int, product: int, inputs: Array) -> None:
            if inputs.size:
                block = wiring.order[place]
                low, high = by_block[block, product]
                by_block[block, product] = min(low, inputs.min()), max(high, inputs.max())

        batch: Batch = masked_batch(mask, tuple(rows.shape[:2]), wiring.heads, "skip")
        flat = rows.detach().float().reshape(-1, rows.shape[-1]).numpy()
        engine = packed_engine(weights, wiring.recipe(Settings()))
        engine.run(np.ascontiguousarray(flat[batch.index]), batch, observer=widen)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self).revive, (type(self).original,), self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._reason_inside()

    original: type[nn.Module]
    output_type: type[Any]
    revive: Any  # what makes an empty one, for unpickling and copying


class FusedEncoder(Fused):
    """An encoder with BERT's layers."""

    returns_dict: Any  # the original's default; ... where it has no choice

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As the original, which also runs in training and where something else than encoding is asked for."""
        if self.training:
            return type(self).original.forward(self, *args, **kwargs)
        named = dict(kwargs)
        rows = args[0] if args else named.pop("hidden_states", None)
        mask = args[1] if len(args) > 1 else named.pop("attention_mask", None)
        rows, mask = named.pop("x", rows), named.pop("attn_mask", mask)
        reason = self._reason_against(rows, mask, args[2:], named)
        if reason:
            self._warn(reason)
            return type(self).original.forward(self, *args, **kwargs)
        states = bool(self._wants("output_hidden_states", named))
        outputs, run = self._prepare(rows, mask, states)
        recorded = (rows, *outputs) if states else None
        answer = self._answer(outputs[-1], recorded, named.get("return_dict", self.returns_dict))
        run()  # last, for it leaves the caches empty
        if recorded:
            self._tell_recorders(recorded)
        return answer

    @classmethod
    def wire(cls, encoder: nn.Module) -> LayerWiring:
        """Where the weights of an encoder are now, fused or not."""
        return LayerWiring(encoder, layer_names(cls.original))

    def _reason_against(self, rows: Any, mask: Any, more: tuple[Any, ...], named: dict[str, Any]) -> str:
        if more and any(value is not None for value in more):
            return "arguments after the mask are given by position"
        if self._wants("output_attentions", named):
            return "output_attentions is asked for"
        for name, value in named.items():
            if name in _WITHOUT_EFFECT or name == "output_attentions" or value is None or value is False:
                continue
            if name == "head_mask" and isinstance(value, (list, tuple)) and all(part is None for part in value):
                continue
            return f"{name} is given" if name in _OTHER else f"{name} is not known to fusebert"
        if not isinstance(rows, torch.Tensor) or rows.dim() != 3 or not rows.is_cpu:
            return "the embedded rows are not a CPU tensor of three dimensions"
        if mask is not None and (not isinstance(mask, torch.Tensor) or not mask.is_cpu):
            return f"the attention mask is a {type(mask).__name__} or not on the CPU"
        return self._reason_inside()

    def _answer(self, last: torch.Tensor, recorded: tuple[torch.Tensor, ...] | None, as_dict: Any) -> Any:
        if as_dict or self.returns_dict is ...:
            if is_compiling():
                return self.output_type(last_hidden_state=last, hidden_states=recorded)
            return quick_output(self.output_type, last, recorded)
        return (last, recorded) if recorded else (last,)

    def _tell_recorders(self, states: tuple[torch.Tensor, ...]) -> None:
        """Since version 5, transformers records hidden states by hooks on the layers, which are not called here."""
        wiring = self.fusebert.wiring
        assert wiring is not None
        for layer, before, after in zip(wiring.layers, states[:-1], states[1:], strict=True):
            for hook in list(layer._forward_hooks.values()):
                hook(layer, (before,), after)


def quick_output(kind: type[Any], rows: torch.Tensor, states: tuple[torch.Tensor, ...] | None) -> Any:
    """What that class of outputs makes of these; its own constructor takes longer than everything else here."""
    output: Any = OrderedDict.__new__(kind)
    vars(output).update(dict.fromkeys(kind.__dataclass_fields__), last_hidden_state=rows, hidden_states=states)
    OrderedDict.__setitem__(output, "last_hidden_state", rows)
    if states is not None:
        OrderedDict.__setitem__(output, "hidden_states", states)
    return output


def in_a_thread(embed: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
    """What that gives when a thread of its own calls it, because the threads that OpenMP starts for it end with it:
    left to the caller, they would make the first parallel operator of a forked child wait for ever. Nor is it traced
    there."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(embed).result()


def _embedded_sample(base: Any) -> torch.Tensor | None:
    embeddings = getattr(base, "embeddings", None)
    words = getattr(embeddings, "word_embeddings", None)
    if embeddings is None or words is None or words.weight.device.type != "cpu":
        return None
    with torch.no_grad():
        max_positions = embeddings.position_embeddings.num_embeddings - (words.padding_idx or 0) - 1
        ids = torch.from_numpy(random_ids(words.num_embeddings, max(1, min(64, max_positions))))
        rows = embeddings(input_ids=ids)
        project = getattr(base, "embeddings_project", None)
        rows = rows if project is None else project(rows)
        return rows.float().contiguous()  # type: ignore[no-any-return]


def _real(rows: torch.Tensor) -> bool:
    return type(rows) is torch.Tensor and not is_compiling()
