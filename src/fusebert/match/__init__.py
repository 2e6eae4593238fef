"""The finder: Graph -> Finding, and what is made of one. It knows no file format. Other packages import from here only;
docs/finder.md says how it works."""

from __future__ import annotations

from fusebert.match.assemble import Assembled, assemble, read_encoder
from fusebert.match.cut import Cut, beyond_bert_layers, cut, embedded, is_flat, shown_as_is
from fusebert.match.dialects.tensorflow import EFFECTS as TENSORFLOW_EFFECTS
from fusebert.match.embeddings import MOST_KINDS, read_embeddings
from fusebert.match.emitter import dtype_of
from fusebert.match.endings import Ending, read_endings
from fusebert.match.find import find, find_elsewhere
from fusebert.match.findings import (
    EACH,
    FIRST,
    MASKED,
    SCORE,
    TRANSPOSE,
    UNKNOWN,
    UNMASKED,
    Finding,
    FoundEncoder,
    Layer,
    Lifted,
    Mask,
    Match,
    Miss,
    Omitted,
    Provenance,
    Refused,
    RuleRow,
)
from fusebert.match.inline import inline
from fusebert.match.mask import computed, hiding_value
from fusebert.match.operator import is_rounded, operator_settings, read_operator, skips_hidden
from fusebert.match.quantized import unround
from fusebert.match.translate import translate
from fusebert.match.trials import inputs_that_matter

__all__ = [
    "EACH",
    "FIRST",
    "MASKED",
    "MOST_KINDS",
    "SCORE",
    "TENSORFLOW_EFFECTS",
    "TRANSPOSE",
    "UNKNOWN",
    "UNMASKED",
    "Assembled",
    "Cut",
    "Ending",
    "Finding",
    "FoundEncoder",
    "Layer",
    "Lifted",
    "Mask",
    "Match",
    "Miss",
    "Omitted",
    "Provenance",
    "Refused",
    "RuleRow",
    "assemble",
    "beyond_bert_layers",
    "computed",
    "cut",
    "dtype_of",
    "embedded",
    "find",
    "find_elsewhere",
    "hiding_value",
    "inline",
    "inputs_that_matter",
    "is_flat",
    "is_rounded",
    "operator_settings",
    "read_embeddings",
    "read_encoder",
    "read_endings",
    "read_operator",
    "shown_as_is",
    "skips_hidden",
    "translate",
    "unround",
]
