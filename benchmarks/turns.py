"""How all benchmarks measure: calls take turns, the best call counts; and what a call costs beyond the bare engine."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fusebert.engine.native import EncoderEngine
from fusebert.measure.timing import Timing, interleave
from fusebert.ops.graph import Array
from fusebert.progress import progress
from fusebert.values.batch import Batch

SHORT = ("1x16", "1x128")  # where what a host adds would show
OVERHEAD = ("shape", "precision", "call_us", "bare_us", "overhead_us", "overhead_percent")
_LEAST, _ROUNDS = 3, 100


def in_turns(calls: Mapping[str, Callable[[], Any]], seconds: float, show: bool = True) -> dict[str, Timing]:
    """Many rounds of short turns, in about so many seconds; three rounds however long they take."""
    return interleave(calls, 30, 0.2, show, within=seconds)


def overhead(
    call: Callable[[], Any], bare: Callable[[], Any], seconds: float, show: bool = True
) -> tuple[int, int, int, float]:
    """Microseconds of a call, of the bare engine doing the same, and the difference, also in percent.

    In every round the best call of a turn is compared with the best of the turn beside it, which saw the same machine;
    the median of these differences counts. The first call of a turn wakes threads that slept, and does not count."""
    inside: list[float] = []
    alone: list[float] = []
    until = time.perf_counter() + seconds
    with progress("measuring", _ROUNDS, show) as advance:
        while len(alone) < _LEAST or (len(alone) < _ROUNDS and time.perf_counter() < until):
            turns = [(call, inside), (bare, alone)]
            for one, best in turns if len(alone) % 2 else reversed(turns):
                one()
                best.append(min(_microseconds(one) for _ in range(3)))
            advance(1)
    more = float(np.median(np.subtract(inside, alone)))
    engine = float(np.median(alone))
    return round(engine + more), round(engine), round(more), round(100 * more / engine, 1)


def _microseconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e6


class Bare:
    """The engine alone on rows `[sequences, length, hidden]`, all of them visible, with its own threads or those of
    another pool. `call` writes `output`."""

    def __init__(self, engine: EncoderEngine, rows: Array, pool: Any = None) -> None:
        self.output = np.empty_like(rows)
        flat = rows.reshape(-1, rows.shape[2])
        batch = Batch.masked(None, (rows.shape[0], rows.shape[1]))
        self.call = partial(engine.run_padded, flat, self.output.reshape(flat.shape), batch, [], pool)
