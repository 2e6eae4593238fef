"""The runner of Hugging Face checkpoints."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fusebert.errors import FusebertError, UnsupportedError
from fusebert.formats.files import read_json
from fusebert.measure.inputs import Input, Roles
from fusebert.measure.runners.runner import Runner, first_line, import_framework
from fusebert.ops.graph import Array


class Torch(Runner):
    """A Hugging Face checkpoint, by the class that its config.json names; as it is, or traced and frozen; and with its
    own encoder, or ours in a precision."""

    framework = "torch"

    def __init__(
        self, path: Path, threads: int | None = None, traced: bool = False, precision: str | None = None
    ) -> None:
        torch, transformers = (import_framework(name, path) for name in ("torch", "transformers"))
        if threads is not None:
            torch.set_num_threads(threads)
        config = read_json(path / "config.json")
        names = config.get("architectures") or ["AutoModel"]
        kind = getattr(transformers, str(names[0]), None)
        if kind is None:
            raise UnsupportedError(f"{path}: transformers {transformers.__version__} has no class {names[0]!r}")
        with _quiet(transformers), _stock_classes():
            try:
                model = kind.from_pretrained(path, dtype=torch.float32, local_files_only=True).eval()
            except Exception as error:
                raise FusebertError(f"{path} is not accepted by transformers: {first_line(error)}") from error
            if precision is not None:
                _fuse(model, precision)
            fused = f" with fusebert {precision}" if precision else ""
            self.name = f"{path} by torch{' traced' if traced else ''}{fused}"
            self.roles = replace(_torch_roles(model), precision=precision or "fp32")
            self._torch, self._model = torch, model
            self._traced: dict[Any, Any] | None = {} if traced else None  # by shape
            few = np.ones((1, 2), np.int64)
            self.outputs = tuple(self._stock(self.prepare(few, few, few * 0)))

    def prepare(self, ids: Array, mask: Array, types: Array) -> Any:
        return {name: self._torch.from_numpy(array) for name, array in self.feeds(ids, mask, types).items()}

    def answer(self, prepared: Any) -> dict[str, Array]:
        if self._traced is None:
            return {name: value.numpy() for name, value in self._stock(prepared).items()}
        shape = next(iter(prepared.values())).shape
        if shape not in self._traced:
            self._traced[shape] = self._trace(prepared)
        with self._torch.inference_mode():
            answers = self._traced[shape](*prepared.values())
        return {name: value.numpy() for name, value in zip(self.outputs, answers, strict=True)}

    def _stock(self, prepared: Any) -> dict[str, Any]:
        with self._torch.inference_mode():
            answers = self._model(**prepared)
        return {name: value for name, value in answers.items() if isinstance(value, self._torch.Tensor)}

    def _trace(self, prepared: Any) -> Any:
        """The model as a traced and frozen module for inputs of one shape; it takes and gives tensors in order."""
        model, names, wanted = self._model, list(prepared), self.outputs

        class Plain(self._torch.nn.Module):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.model = model

            def forward(self, *given: Any) -> Any:
                answers = self.model(**dict(zip(names, given, strict=True)))
                return tuple(answers[name] for name in wanted)

        with warnings.catch_warnings(), self._torch.no_grad():
            warnings.simplefilter("ignore")  # on what is settled by tracing, and that it is no longer the fashion
            traced = self._torch.jit.trace(Plain().eval(), tuple(prepared.values()), check_trace=False)
            return self._torch.jit.freeze(traced.eval())

    def close(self) -> None:
        self._model = self._traced = None


def _torch_roles(model: Any) -> Roles:
    """What a stock model takes: its config says so."""
    config = model.config
    names = {"ids": "input_ids", "mask": "attention_mask"}
    kinds = getattr(config, "type_vocab_size", None)
    if kinds and kinds > 1 and "token_type_ids" in inspect.signature(model.forward).parameters:
        names["types"] = "token_type_ids"
    padding = config.pad_token_id if "roberta" in config.model_type or config.model_type == "camembert" else None
    longest = getattr(config, "max_position_embeddings", None)
    return Roles(
        fed=tuple((Input(name, "int64", (None, None)), role) for role, name in names.items()),
        vocabulary=config.vocab_size,
        kinds=kinds,
        longest=longest if longest is None or padding is None else longest - padding - 1,
        padding_id=padding,
    )


def _fuse(model: Any, precision: str) -> None:
    """Puts our encoder into a model, and leaves those that are made later as they are."""
    imported = "fusebert.torch" in sys.modules
    import fusebert.torch

    if not imported:
        fusebert.torch.disable()
    fusebert.torch.optimize(model, precision)


def _stock_classes() -> AbstractContextManager[None]:
    """Models are made as transformers makes them, even after `import fusebert.torch`, which changes that."""
    if "fusebert.torch" not in sys.modules:
        return nullcontext()
    from fusebert.torch import disabled

    return disabled()


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No progress bar and no advice while a model is loaded."""
    logging = transformers.utils.logging
    verbosity, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if shown:
            logging.enable_progress_bar()
