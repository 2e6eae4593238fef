"""How all benchmarks measure: calls take turns, the best call counts; and what a call costs beyond the bare engine."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from fusebert.encoder import Batch
from fusebert.engine import EncoderEngine
from fusebert.graph import Array
from fusebert.measure.timing import Timing, interleave

SHORT = ("1x16", "1x128")  # where what a host adds would show
OVERHEAD = ("shape", "precision", "call_us", "bare_us", "overhead_us", "overhead_percent")


def in_turns(calls: Mapping[str, Callable[[], Any]], seconds: float, show: bool = True) -> dict[str, Timing]:
    """Many rounds of short turns, in about so many seconds; three rounds however long they take."""
    return interleave(calls, 30, 0.2, show, within=seconds)


def overhead(
    call: Callable[[], Any], bare: Callable[[], Any], seconds: float, show: bool = True
) -> tuple[int, int, int, float]:
    """Microseconds of a call, of the bare engine doing the same, and the difference, also in percent. A turn is several
    calls, as a service makes them: the first wakes threads that slept while the other had its turn."""
    timings = interleave({"call": call, "bare": bare}, 30, show=show, times=4, within=seconds)
    inside, alone = timings["call"].best * 1e3, timings["bare"].best * 1e3
    return round(inside), round(alone), round(inside - alone), round(100 * (inside / alone - 1), 1)


class Bare:
    """The engine alone on rows `[sequences, length, hidden]`, all of them visible, with its own threads or those of
    another pool. `call` writes `output`."""

    def __init__(self, engine: EncoderEngine, rows: Array, pool: Any = None) -> None:
        self.output = np.empty_like(rows)
        flat = rows.reshape(-1, rows.shape[2])
        batch = Batch.masked(None, (rows.shape[0], rows.shape[1]))
        self.call = partial(engine.run_padded, flat, self.output.reshape(flat.shape), batch, [], pool)
