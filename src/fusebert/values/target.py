"""Target: who will run an optimised model, and how it is to be made for it. Each target has its own options as fields;
one that belongs to another target cannot be given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from fusebert.errors import FusebertError, unknown
from fusebert.values.precision import precision as named_precision

PADDING = ("auto", "skip", "first", "compute")  # what becomes of hidden positions in a fused operator


@dataclass(frozen=True)
class Standalone:
    """An artifact, which fusebert runs by itself. `head` replaces the model's own; `ranges` of inputs make int8
    static."""

    precision: str = "fp32"
    head: str | None = None
    threads: int | None = None
    ranges: Any = None

    def __post_init__(self) -> None:
        named_precision(self.precision)


@dataclass(frozen=True)
class Fused:
    """The model for its own framework again, each encoder one fused operator. `padding` is what becomes of hidden
    positions in it, one of PADDING."""

    precision: str = "fp32"
    padding: str = "auto"
    threads: int | None = None
    ranges: Any = None

    def __post_init__(self) -> None:
        named_precision(self.precision)
        if self.padding not in PADDING:
            raise unknown("padding", self.padding, PADDING)


@dataclass(frozen=True)
class FusedTensorFlow(Fused):
    """A SavedModel or a frozen graph with the op `Bert`. `compact`: its weights are stored as int8."""

    compact: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compact and not named_precision(self.precision).int8:
            raise FusebertError(f"compact weights are int8, not {self.precision}; choose int8 or int8-bf16")


@dataclass(frozen=True)
class FusedOnnx(Fused):
    """An ONNX file with the operator `fusebert.Encoder`. `int32`: its int64 ids and masks become int32. `float16`: its
    weights and graph become float16. `length`: its inputs take that many tokens only."""

    int32: bool = False
    float16: bool = False
    length: int | None = None


@dataclass(frozen=True)
class StockOnnx:
    """An ONNX file with ONNX Runtime's own fused kernels. `fast_gelu`: the tanh GELU for every GELU. `multi_head`:
    MultiHeadAttention instead of Attention. The others as in FusedOnnx."""

    precision: str = "fp32"
    threads: int | None = None
    int32: bool = False
    float16: bool = False
    length: int | None = None
    fast_gelu: bool = False
    multi_head: bool = False

    def __post_init__(self) -> None:
        if self.precision not in ("fp32", "int8"):
            raise FusebertError(
                f"ONNX Runtime's kernels compute in fp32 or int8, not in {self.precision}; use one of these"
            )


@dataclass(frozen=True)
class PlainOnnx:
    """An ONNX file of ONNX's own operators only, of a checkpoint."""

    precision: str = "fp32"
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.precision != "fp32":
            raise FusebertError(f"ONNX's own operators compute in fp32, not in {self.precision}; omit the precision")


Target = Standalone | FusedOnnx | StockOnnx | FusedTensorFlow | PlainOnnx
TARGETS: dict[str, type[Target]] = {
    "standalone": Standalone,
    "onnxruntime": FusedOnnx,
    "stock-onnxruntime": StockOnnx,
    "tensorflow": FusedTensorFlow,
    "onnx": PlainOnnx,
}
DEFAULT_PRECISION = "int8"


def make_target(name: str, options: Mapping[str, Any]) -> Target:
    """The target of that name with its options."""
    if name not in TARGETS:
        raise unknown("target", name, TARGETS)
    for option in options:
        owners = [other for other, kind in TARGETS.items() if option in {field.name for field in fields(kind)}]
        if not owners:
            raise unknown("option", option, sorted({field.name for kind in TARGETS.values() for field in fields(kind)}))
        if name not in owners:
            raise FusebertError(f"option {option!r} is for {' and '.join(owners)}, not for {name}; omit it")
    return TARGETS[name](**options)
