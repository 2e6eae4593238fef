"""How our own cost grows, and what it takes: time per token by batch size, time by layers, peak memory of a fresh
process, and what Python adds to a call."""

import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from models import inputs
from turns import OVERHEAD, Bare, in_turns, overhead

import fusebert
from fusebert.engine.native import EncoderEngine, pool
from fusebert.formats import huggingface
from fusebert.report import Table
from fusebert.values import traverse
from fusebert.values.blocks import Encoder
from fusebert.values.network import Head
from fusebert.values.plan import make_plan
from fusebert.values.precision import PRECISIONS

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


def tokens(checkpoint: Path, threads: int, seconds: float) -> Table:
    """Microseconds per real token for 8 sequences, and for the same eight times over."""
    ids, mask = inputs("8x128r")
    rows = []
    for precision in PRECISIONS:
        run = fusebert.load(checkpoint, precision, threads).run
        calls = {"few": partial(run, ids, mask), "many": partial(run, np.tile(ids, (8, 1)), np.tile(mask, (8, 1)))}
        timings = in_turns(calls, seconds)
        few, many = 1e3 * timings["few"].best / mask.sum(), 1e3 * timings["many"].best / (8 * mask.sum())
        rows.append((precision, round(few, 2), round(many, 2), f"{many / few:.3f}"))
    return Table("microseconds_per_real_token", ("precision", "8_sequences", "64_sequences", "ratio"), tuple(rows))


def layers(checkpoint: Path, threads: int, seconds: float) -> Table:
    """Milliseconds for a quarter, a half and all of the layers; the second half's layers against the first's."""
    batch, network = inputs("8x128"), huggingface.read(checkpoint)
    count = len(traverse.layers(network.encoder))
    depths = count // 4, count // 2, count
    rows = []
    for precision in PRECISIONS:
        calls = {}
        for depth in depths:
            encoder = Encoder.of(network.encoder.hidden_size, network.encoder.blocks[: 2 * depth])
            model = fusebert.Model(replace(network, encoder=encoder), make_plan(precision, 2 * depth), None, threads)
            calls[str(depth)] = partial(model.run, *batch)
        quarter, half, whole = (timing.best for timing in in_turns(calls, seconds).values())
        ratio = (whole - half) / (count - depths[1]) * (depths[1] - depths[0]) / (half - quarter)
        rows.append((precision, *(round(ms, 2) for ms in (quarter, half, whole)), f"{ratio:.3f}"))
    columns = ("precision", *(f"{depth}_layers" for depth in depths), "later / earlier layers")
    return Table("milliseconds_for_8x128_by_layers", columns, tuple(rows))


def calls(checkpoint: Path, threads: int, seconds: float) -> Table:
    """What `Model.run` costs beyond the encoder: Python and embeddings. Small inputs, or it would not show."""
    network = replace(huggingface.read(checkpoint), head=Head())
    rows: list[tuple[Any, ...]] = []
    for precision in PRECISIONS:
        plan = make_plan(precision, len(network.encoder.blocks))
        model = fusebert.Model(network, plan, None, threads)
        engine = EncoderEngine(network.encoder, plan, pool(threads))
        for shape in ("1x1", "1x16"):
            ids, mask = inputs(shape)
            embedded = np.random.default_rng(0).normal(size=(*ids.shape, network.encoder.hidden_size))
            bare = Bare(engine, embedded.astype(np.float32))
            rows.append((shape, precision, *overhead(partial(model.run, ids, mask), bare.call, seconds)))
    return Table("a_call_from_Python_beyond_the_encoder", OVERHEAD, tuple(rows))


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
