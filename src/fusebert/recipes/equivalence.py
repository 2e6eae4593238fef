"""Equivalence: the attributes and operations that do not change what a graph computes. They are ignored in comparing
nodes, so that a pattern is found wherever the same result is computed, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fusebert.formats.tensorflow.scope import Node
from fusebert.formats.tensorflow.types import NUMBERS, dtype_name

COMMUTATIVE = frozenset((
    "Add", "AddV2", "Mul", "Maximum", "Minimum", "LogicalAnd", "LogicalOr", "Equal", "NotEqual", "SquaredDifference",
    "BitwiseAnd", "BitwiseOr",
))  # fmt: skip
PASSTHROUGH = frozenset(("Identity", "StopGradient", "Snapshot", "PreventGradient"))  # their output is their input
_INT32 = NUMBERS["int32"]
WEIGHTS = frozenset(["Const", "ReadVariableOp", "VariableV2", "Variable", "VarHandleOp"])
_DEFAULTS: dict[str, Any] = {  # values of attributes that are omitted
    **dict.fromkeys(("transpose_a", "transpose_b", "adj_x", "adj_y", "grad_a", "grad_b", "grad_x", "grad_y"), False),
    **dict.fromkeys(("a_is_sparse", "b_is_sparse", "keep_dims", "Truncate", "exclusive", "reverse"), False),
    **dict.fromkeys(("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0),
    **dict.fromkeys(("batch_dims", "axis"), 0),
    **dict.fromkeys(("Tidx", "Tperm", "Tshape", "Tdim", "Tpaxis", "index_type", "out_type", "Tmultiples"), _INT32),
    "data_format": b"NHWC", "squeeze_dims": (), "validate_indices": True, "approximate": False,
    "incompatible_shape_error": True,
}  # fmt: skip


@dataclass(frozen=True)
class Attributes:
    """Attributes that do not count, and those with an underscore (or device) that do."""

    ignored: Sequence[str] = ()
    compared: Sequence[str] = ()


def compared(key: str, ignored: frozenset[str], asked: frozenset[str]) -> bool:
    """Whether an attribute is compared: one with a leading underscore is an annotation, compared only on request."""
    return key not in ignored and (not key.startswith("_") or key in asked)


def difference(first: Node, second: Node, ignored: frozenset[str], asked: frozenset[str]) -> str | None:
    """A clause that names the first attribute in which two nodes differ, or None if they compute the same."""
    ours, theirs = (
        {entry.key: entry.value for entry in node.message.attr if compared(entry.key, ignored, asked)}
        for node in (first, second)
    )
    for key in sorted({*ours, *theirs}):
        a, b = ours.get(key), theirs.get(key)
        if a is not None and b is not None:
            bytes_a, bytes_b = (one.SerializeToString(deterministic=True) for one in (a, b))
            if bytes_a != bytes_b and plain(a) != plain(b):
                return f"attribute {key} is {_shown(b)}, not {_shown(a)}"
        else:
            given = a if a is not None else b
            if key not in _DEFAULTS or plain(given) != _DEFAULTS[key]:
                return f"attribute {key} is {_shown(b)}, not {_shown(a)}"
    if "device" in asked and first.message.device != second.message.device:
        return f"its device is {second.message.device!r}, not {first.message.device!r}"
    return None


def plain(value: Any) -> Any:
    """An attribute as a value that can be compared."""
    fields = value.ListFields()
    if not fields:
        return None
    field, content = fields[0]
    if field.name == "list":
        lists = content.ListFields()
        return tuple(one if isinstance(one, (int, float, bytes)) else str(one) for one in lists[0][1]) if lists else ()
    if field.name in ("s", "i", "f", "b", "type", "placeholder"):
        return content
    return str(content)


def _shown(value: Any) -> str:
    if value is None:
        return "omitted"
    if value.HasField("type"):
        return dtype_name(value.type)
    shown = plain(value)
    return shown.decode("utf-8", "replace") if isinstance(shown, bytes) else " ".join(str(shown).split())[:80]
