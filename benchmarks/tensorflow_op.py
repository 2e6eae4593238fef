"""One BERT classifier in TensorFlow: the SavedModel as exported, and optimised in each precision; then the op alone and
the bare engine on the same rows, which is what the plugin costs. Interleaved in one run, equal threads.

    python benchmarks/tensorflow_op.py [--model minilm|base|large] [--shapes 1x128,8x128] [--precisions fp32,int8]

A shape is batch x length; with an r behind it, rows have real lengths (0.41 of the length on average). The model is
exported once, into build/tensorflow_op, which needs `make build/legacy/.installed`."""

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from models import SIZES, inputs

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import fusebert
import fusebert.tensorflow
from fusebert.encoder import Batch, Encoder
from fusebert.engine import EncoderEngine, cores, isa, pool
from fusebert.graph import Array
from fusebert.match.assemble import read_encoder
from fusebert.measure.timing import Timing, interleave
from fusebert.plan import PRECISIONS, make_plan
from fusebert.quantize import convert_encoder
from fusebert.report import Report, Table
from fusebert.show import show

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "tensorflow_op"
NAMES = ("input_ids", "attention_mask", "token_type_ids")
TYPES = {"fp32": (), "bf16": ("NonQuantizableDataType",), "int8": ("QuantizableDataType",)}
TYPES["int8-bf16"] = (*TYPES["bf16"], *TYPES["int8"])


def export(name: str) -> Path:
    """A random Hugging Face classifier as a SavedModel, made once."""
    size = SIZES[name]
    sizes = {"layers": size["num_hidden_layers"], "hidden": size["hidden_size"]}
    sizes |= {"heads": size["num_attention_heads"], "inner": size["intermediate_size"]}
    recipe = {
        "source": "hf", "family": "bert", "head": "ForSequenceClassification", "form": "saved_model", "sizes": sizes,
        "act": "gelu", "inputs": NAMES, "outputs": ("logits",), "kinds": (),
        "config": {"vocab_size": 30522, "max_position_embeddings": 512},
    }  # fmt: skip
    folder = PLACE / name
    if not folder.is_dir():
        sys.path.insert(0, str(ROOT / "tests"))
        PLACE.mkdir(parents=True, exist_ok=True)
        workshop: Any = importlib.import_module("zoo.workshop")
        workshop.start("long", [{"folder": str(folder), "recipe": recipe}], PLACE)
    return folder / "saved_model"


def models(path: Path, precisions: list[str], threads: int, folder: Path) -> dict[str, Any]:
    """Signatures by name: of the original, and optimised. What a signature needs is kept beside it."""
    found = {"tensorflow": tf.saved_model.load(str(path))}
    for precision in precisions:
        fusebert.optimize(path, folder / precision, precision, verify=False, threads=threads)
        found[f"optimised {precision}"] = tf.saved_model.load(str(folder / precision))
    return {name: (model.signatures["serving_default"], model) for name, model in found.items()}


def op(encoder: Encoder, precision: str, threads: int) -> Callable[[Array, Array], Array]:
    """The op alone, in a session: its weights are variables, as in a SavedModel; no function is called from Python,
    which costs TensorFlow 4 microseconds for every variable."""
    arrays: list[Array] = []
    for layer in encoder.layers:
        for part in ("query", "key", "value", "attention_out", "attention_norm", "ffn_in", "ffn_out", "output_norm"):
            one = getattr(layer, part)
            arrays += [one.gain, one.bias] if part.endswith("norm") else [one.floats().T, one.bias]
    first = encoder.layers[0]
    kinds = {"QuantizableDataType": tf.qint8, "NonQuantizableDataType": tf.bfloat16}
    settings = {
        "HiddenSize": encoder.hidden, "NumAttentionHeads": first.heads, "IntermediateSize": len(first.ffn_in.weight),
        "HiddenAct": first.activation, "LayerNormEpsilon": first.output_norm.epsilon, "NumThreads": threads,
        **{key: kinds[key] for key in TYPES[precision]},
    }  # fmt: skip
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        given = v1.placeholder(tf.float32, [None, None, encoder.hidden]), v1.placeholder(tf.int32, [None, 1, None])
        stored = [v1.placeholder(tf.float32, array.shape) for array in arrays]
        weights = [v1.Variable(one, use_resource=True) for one in stored]
        encoded = fusebert.tensorflow.bert(*given, weights, **settings)
        session = v1.Session(graph=graph, config=v1.ConfigProto(intra_op_parallelism_threads=threads))
        session.run(v1.global_variables_initializer(), dict(zip(stored, arrays, strict=True)))
    call: Callable[[Array, Array], Array] = session.make_callable(encoded, given)
    return call


class Bare:
    """The op and the engine in one precision, on the same rows."""

    def __init__(self, encoder: Encoder, precision: str, threads: int) -> None:
        self._op = op(encoder, precision, threads)
        plan = make_plan(precision, len(encoder.layers))
        self._engine = EncoderEngine(convert_encoder(encoder, plan), plan, pool(threads))
        self._hidden = encoder.hidden

    def calls(self, mask: Array) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """A call of each, which must give the same bits."""
        rows = np.random.default_rng(0).normal(size=(*mask.shape, self._hidden)).astype(np.float32)
        batch = Batch.masked(mask, mask.shape, "compute")
        flat, output = rows.reshape(-1, self._hidden), np.empty_like(rows)
        inside = partial(self._op, rows, mask[:, None].astype(np.int32))
        bare = partial(self._engine.run_padded, flat, output.reshape(flat.shape), batch, [])
        bare()
        if not np.array_equal(inside(), output):
            raise SystemExit("the op and the engine do not give the same bits")
        return inside, bare


def measure(path: Path, given: argparse.Namespace, folder: Path) -> tuple[Table, ...]:
    """Times of all models, and of the op beside the engine, at every shape."""
    tf.config.threading.set_intra_op_parallelism_threads(given.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    precisions = given.precisions.split(",")
    running = models(path, precisions, given.threads, folder)
    finding = fusebert.find(fusebert.read(path))
    encoder = read_encoder(finding.raised, finding.encoders[0])
    bare = {precision: Bare(encoder, precision, given.threads) for precision in precisions}
    whole, alone = [], []
    for shape in given.shapes.split(","):
        ids, mask = inputs(shape)
        feeds = {name: tf.constant(a.astype(np.int32)) for name, a in zip(NAMES, (ids, mask, ids * 0), strict=True)}
        calls: dict[str, Callable[[], Any]] = {n: partial(call, **feeds) for n, (call, _) in running.items()}
        for precision, one in bare.items():
            calls[f"op {precision}"], calls[f"engine {precision}"] = one.calls(mask)
        timings = interleave(calls, given.rounds, show=not given.json)
        plain = timings["tensorflow"].best
        whole += [(shape, n, *_times(timings[n]), f"{plain / timings[n].best:.2f}x") for n in running]
        for precision in precisions:
            inside, engine = timings[f"op {precision}"].best, timings[f"engine {precision}"].best
            alone.append((shape, precision, round(inside, 2), round(engine, 2), round(100 * (inside / engine - 1), 1)))
    columns = ("shape", "engine", "best_ms", "p90_ms", "against tensorflow")
    return (
        Table("models", columns, tuple(whole)),
        Table("op_and_engine", ("shape", "precision", "op_ms", "engine_ms", "overhead_percent"), tuple(alone)),
    )


def _times(timing: Timing) -> tuple[float, float]:
    return round(timing.best, 2), round(timing.p90, 2)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--model", choices=SIZES, default="base")
    parser.add_argument("--shapes", default="1x128,8x128")
    parser.add_argument("--precisions", default=",".join(p for p in PRECISIONS if p != "int8-bf16"))
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=PLACE if PLACE.is_dir() else None) as folder:
        tables = measure(export(given.model), given, Path(folder))
    facts = {"model": given.model, "threads": given.threads, "instruction_set": isa()}
    show(Report("the op inside TensorFlow, interleaved", facts, tables), given.json)


if __name__ == "__main__":
    main()
