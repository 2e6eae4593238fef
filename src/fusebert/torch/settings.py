"""Settings: how an encoder is to run, from an argument, the model's config, or `configure`, in this order. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError, unknown
from fusebert.formats.ranges import read_factors
from fusebert.values.precision import PRECISIONS

PADDING = ("auto", "skip", "compute")


@dataclass(frozen=True)
class Settings:
    """`ranges` are 8 numbers per layer that make int8 static; `calibrate` records them while fp32 runs; `threads` is 0
    for as many as torch uses."""

    precision: str = "fp32"
    padding: str = "auto"
    threads: int = 0
    ranges: tuple[float, ...] = ()
    calibrate: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise unknown("precision", self.precision, PRECISIONS)
        if self.padding not in PADDING:
            raise unknown("padding", self.padding, PADDING)
        if not isinstance(self.threads, int) or not 0 <= self.threads <= 1024:
            raise FusebertError(f"threads: a whole number from 0 to 1024 is expected, not {self.threads!r:.40}")
        if self.calibrate and self.precision != "fp32":
            raise FusebertError(f"calibration runs in fp32, not in {self.precision}; use the ranges afterwards")
        if self.ranges and not PRECISIONS[self.precision].int8:
            raise FusebertError(f"ranges belong to int8 and int8-bf16, not to {self.precision}")


_defaults = Settings()


def configure(**settings: Any) -> None:
    """Sets precision, padding, threads, ranges or calibrate for models that are made or optimised from now on."""
    global _defaults
    _defaults = change(_defaults, settings)


def chosen(config: Any, **arguments: Any) -> Settings:
    """The settings for a model: arguments that are not None, else its config's fields, else what `configure` set."""
    return change(change(_defaults, _config_fields(config)), arguments)


def change(settings: Settings, changes: dict[str, Any]) -> Settings:
    """The settings with those changes that are not None; an unknown name is refused."""
    names = [field.name for field in fields(Settings)]
    for name in changes:
        if name not in names:
            raise unknown("setting", name, names)
    given = {name: value for name, value in changes.items() if value is not None}
    if "ranges" in given:
        given["ranges"] = _flat(given["ranges"])
    elif given.get("precision", settings.precision) not in ("int8", "int8-bf16"):
        given["ranges"] = ()
    return replace(settings, **given)


def _flat(ranges: Any) -> tuple[float, ...]:
    import numpy as np

    try:
        if isinstance(ranges, (str, Path)):  # a file that calibrate wrote
            ranges = read_factors(Path(ranges))
        return tuple(map(float, np.asarray(ranges, np.float32).ravel()))
    except (TypeError, ValueError):
        raise FusebertError("ranges must be numbers") from None


def _config_fields(config: Any) -> dict[str, Any]:
    """The extra fields of a BertConfig that earlier operators read. They can switch on, not off: some versions of
    transformers give every config a use_bfloat16 that is False."""
    quantized, halves = bool(getattr(config, "use_quantization", False)), bool(getattr(config, "use_bfloat16", False))
    found: dict[str, Any] = {}
    if quantized or halves:
        found["precision"] = {(True, False): "int8", (False, True): "bf16"}.get((quantized, halves), "int8-bf16")
    if quantized and getattr(config, "quantization_factors", None) is not None:
        found["ranges"] = config.quantization_factors
    if getattr(config, "calibrate_quant_factors", False):
        found["calibrate"] = True
    return found
