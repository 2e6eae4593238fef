"""How our own cost grows, and what it takes: time per token by batch size, time by layers, peak memory of a fresh
process."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from models import inputs

import fusebert
from fusebert.measure.timing import interleave
from fusebert.plan import PRECISIONS, make_plan
from fusebert.report import Table

_PEAK = """
import re, sys
def kilobytes(field):
    return int(re.search(field + r":\\s+(\\d+)", open("/proc/self/status").read())[1])
before = kilobytes("VmRSS")
import fusebert, numpy
model = fusebert.load(sys.argv[1], precision=sys.argv[2] or None, threads=int(sys.argv[3]))
model.run(numpy.full((8, 128), 1000))
print(kilobytes("VmHWM") - before, kilobytes("RssAnon"), model.bytes // 1024)
"""


def tokens(checkpoint: Path, threads: int, rounds: int) -> Table:
    """Microseconds per real token for 8 sequences, and for the same eight times over."""
    ids, mask = inputs("8x128r")
    batches = {8: (ids, mask), 64: (np.tile(ids, (8, 1)), np.tile(mask, (8, 1)))}
    models = {precision: fusebert.load(checkpoint, precision, threads) for precision in PRECISIONS}
    timings = interleave(
        {f"{p} {n}": partial(model.run, *batch) for p, model in models.items() for n, batch in batches.items()}, rounds
    )
    rows = []
    for precision in PRECISIONS:
        few, many = (1e3 * timings[f"{precision} {n}"].best / batches[n][1].sum() for n in (8, 64))
        rows.append((precision, round(few, 2), round(many, 2), f"{many / few:.3f}"))
    return Table("microseconds_per_real_token", ("precision", "8_sequences", "64_sequences", "ratio"), tuple(rows))


def layers(checkpoint: Path, threads: int, rounds: int) -> Table:
    """Milliseconds for a quarter, a half and all of the layers; the second half's layers against the first's."""
    batch = inputs("8x128")
    calls = {}
    for precision in PRECISIONS:
        whole = fusebert.load(checkpoint, precision, threads)
        count = len(whole.network.encoder.layers)
        depths = count // 4, count // 2, count
        for depth in depths:
            encoder = replace(whole.network.encoder, layers=whole.network.encoder.layers[:depth])
            network = replace(whole.network, encoder=encoder)
            model = fusebert.Model(network, make_plan(precision, depth), None, threads)
            calls[f"{precision} {depth}"] = partial(model.run, *batch)
    timings = interleave(calls, rounds)
    rows = []
    for precision in PRECISIONS:
        quarter, half, whole_ms = (timings[f"{precision} {depth}"].best for depth in depths)
        ratio = (whole_ms - half) / (count - depths[1]) * (depths[1] - depths[0]) / (half - quarter)
        rows.append((precision, *(round(ms, 2) for ms in (quarter, half, whole_ms)), f"{ratio:.3f}"))
    columns = ("precision", *(f"{depth}_layers" for depth in depths), "later / earlier layers")
    return Table("milliseconds_for_8x128_by_layers", columns, tuple(rows))


def memory(checkpoint: Path, threads: int) -> Table:
    """Megabytes of int8 in a fresh process, above the bare interpreter."""
    artifact = checkpoint.parent / "int8"
    if not artifact.is_dir():
        fusebert.optimize(checkpoint, artifact, "int8", verify=False)
    rows = []
    for name, path, precision in (("artifact", artifact, ""), ("checkpoint", checkpoint, "int8")):
        command = [sys.executable, "-c", _PEAK, str(path), precision, str(threads)]
        numbers = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        rows.append((name, *(round(int(n) / 1024) for n in numbers)))
    return Table("megabytes_of_int8", ("loaded from", "peak_rss", "own_at_the_end", "packed_weights"), tuple(rows))
