"""Rotary positions of a checkpoint: the fields of config.json, in the two forms they have had -> Rotary."""

from __future__ import annotations

import numpy as np

from fusebert.errors import UnsupportedError
from fusebert.formats.config import Config
from fusebert.values.blocks import Rotary


def rotary(config: Config, head_size: int, layer_type: str | None = None) -> Rotary:
    """The frequencies that `rope_parameters` mean (of one type of layer, where it tells them apart), or `rope_theta`
    and `rope_scaling`."""
    if head_size % 2:
        raise UnsupportedError(f"{config.path}: rotary positions need heads of an even size, not {head_size}")
    if config.has("rope_parameters"):
        config = config.section("rope_parameters")
        if layer_type is not None and config.has(layer_type):
            config = config.section(layer_type)
        return frequencies(config, head_size, config.number("rope_theta", 1, 1e12), config)
    scaling = config.section("rope_scaling") if config.has("rope_scaling") else None
    return frequencies(config, head_size, config.number("rope_theta", 1, 1e12), scaling)


def frequencies(config: Config, head_size: int, theta: float, scaling: Config | None = None) -> Rotary:
    """theta ** (-2k / size), in float32 as frameworks compute it; `scaling` may stretch positions."""
    factor, divisor = 1.0, 1.0
    if scaling is not None:
        scaling.expect({"partial_rotary_factor": (None, 1)})
        kind = scaling.values.get("rope_type", scaling.values.get("type", "default"))
        if kind == "linear":
            divisor = scaling.number("factor", 1, 1e6)
        elif kind == "ntk":  # of GTE's files; the longer context is always meant
            factor = scaling.number("factor", 1, 1e6)
            divisor = factor ** (2 / head_size)
        elif kind != "default":
            raise UnsupportedError(
                f"{config.path}: rotary positions of type {kind!r} are not supported; these are: default, linear, ntk"
            )
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    return Rotary((1 / np.float32(theta * factor) ** exponents / np.float32(divisor)).astype(np.float32))
