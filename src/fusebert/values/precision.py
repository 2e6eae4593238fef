"""Precision: the four that a user may ask for by name, and the types that each stands for."""

from __future__ import annotations

from dataclasses import dataclass

from fusebert.errors import unknown


@dataclass(frozen=True)
class Precision:
    """`products` is the type of the products with weights, `rest` that of the products inside attention which are not
    of bytes."""

    name: str
    products: str
    rest: str

    @property
    def int8(self) -> bool:
        """Whether products are computed in 8 bits."""
        return self.products == "s8"


# Whether attention multiplies bytes: never, where that is known to pay, or wherever it is possible.
BYTES = ("never", "where it pays", "always")
_ATTENTION = {"fp32": ("f32", "never"), "bf16": ("bf16", "never"), "int8": (None, "always")}

PRECISIONS = {
    "fp32": Precision("fp32", "f32", "f32"),
    "bf16": Precision("bf16", "bf16", "bf16"),
    "int8": Precision("int8", "s8", "f32"),
    "int8-bf16": Precision("int8-bf16", "s8", "bf16"),
}


def precision(name: str) -> Precision:
    """The precision of that name."""
    if name not in PRECISIONS:
        raise unknown("precision", name, PRECISIONS)
    return PRECISIONS[name]


def attention_types(kind: Precision, attention: str | None = None) -> tuple[str, str]:
    """The type of the products inside attention, and which of BYTES: as the precision or `attention` has it."""
    if attention is None:
        return kind.rest, "where it pays" if kind.int8 else "never"
    if attention not in _ATTENTION:
        raise unknown("attention", attention, _ATTENTION)
    rest, in_bytes = _ATTENTION[attention]
    return rest or kind.rest, in_bytes
