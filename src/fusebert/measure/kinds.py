"""Kinds: what an output of a model is, and so what counts where two models differ: the direction of a vector, the
decision that scores mean, or a number itself. How the graph makes an output tells; a name only where no graph does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fusebert.engine.answers import softmax
from fusebert.match import Ending
from fusebert.ops.graph import Array

POSITIONS = ("start_logits", "end_logits")  # outputs with a score per token, as models of ours call them
FEW = 64  # numbers; as many may be scores of classes, more are rather a vector
_FORMS = {"": "logits", "softmax": "probabilities", "log_softmax": "log probabilities", "sigmoid": "independent"}


@dataclass(frozen=True)
class Kind:
    """`name` is "vector" (of a token or a text), "classes" (a score for each), "positions" (a score for every token of
    a text), "labels" (whole numbers), "answer" (the likeliest span of tokens) or "value" (a number). `form` says what
    scores are: "logits", "probabilities" that add up to 1, "log probabilities" or "independent" probabilities; `head`
    that linear maps stand between the encoder and a vector."""

    name: str = "vector"
    form: str = "logits"
    head: bool = False

    @property
    def decides(self) -> bool:
        """Whether each row is a decision."""
        return self.name in ("classes", "labels")


VECTOR = Kind()


def kind_of(
    name: str, value: Array, width: int, per_token: bool, ending: Ending | None, vocabulary: int | None
) -> Kind:
    """What an output is: `value` is an example of it, with so many numbers for each text or token; `ending` how it is
    made, if that is known."""
    if value.dtype.kind in "iub":
        return Kind("labels")
    ending = _named(name) if ending is None else ending
    form = _FORMS[ending.final]
    if width == 1:
        return Kind("positions", form) if per_token and (ending.linear or ending.final) else Kind("value")
    scores = ending.linear and (
        width < FEW or (ending.pooled and not ending.wide) or (per_token and width == vocabulary)
    )
    return Kind("classes", form) if scores or ending.final else Kind(head=ending.head)


def _named(name: str) -> Ending:
    """How an output may be made, by its name alone."""
    return Ending(linear="logit" in name or "score" in name, pooled=True, head="pool" in name)


def probabilities(scores: Array, form: str) -> Array:
    """Scores of classes `[rows, classes]` as probabilities."""
    return softmax(scores) if form == "logits" else np.exp(scores) if form == "log probabilities" else scores
