"""The runner of models of ours."""

from __future__ import annotations

import numpy as np

from fusebert.engine.model import Model
from fusebert.match import Ending
from fusebert.measure.inputs import Input, Roles
from fusebert.measure.runners.runner import Feeds, Runner
from fusebert.ops.graph import Array
from fusebert.values.blocks import Attention


class Fusebert(Runner):
    """A model of ours."""

    framework = "fusebert"

    def __init__(self, model: Model, name: str = "model") -> None:
        embeddings = model.network.embeddings
        names = {"ids": "input_ids", "mask": "attention_mask"}
        if embeddings.kind is not None and len(embeddings.kind) > 1:
            names["types"] = "token_type_ids"
        self.name = f"{name} by fusebert {model.plan.precision}"
        self.outputs = _outputs_of(model)
        scores = Ending(linear=model.network.head.kind != "none", pooled=True, head=True)
        self.endings = {name: Ending() if name == "last_hidden_state" else scores for name in self.outputs}
        self.roles = Roles(
            fed=tuple((Input(given, "int64", (None, None)), role) for role, given in names.items()),
            vocabulary=len(embeddings.word),
            kinds=None if embeddings.kind is None else len(embeddings.kind),
            longest=embeddings.longest,
            padding_id=embeddings.padding_id,
            precision=model.plan.precision,
        )
        bodies = [block.body for block in model.network.encoder.blocks]
        windows = any(isinstance(body, Attention) and body.window for body in bodies)
        self.skips = model.skips_hidden or windows  # a hidden row may see nothing through one: frameworks differ there
        self._model: Model | None = model

    def answer(self, prepared: Feeds) -> dict[str, Array]:
        assert self._model is not None  # not closed
        return self._model.run(**prepared)

    def close(self) -> None:
        self._model = None


def _outputs_of(model: Model) -> tuple[str, ...]:
    return tuple(model.run(np.zeros((1, 1), np.int64)))
