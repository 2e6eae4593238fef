"""BERT classifiers in TensorFlow: the SavedModel as exported, and optimised in each precision; then the op alone and
the bare engine on the same rows, which is what the plugin costs. Interleaved in one run, equal threads.

    python benchmarks/tensorflow_op.py [--models minilm,base,large] [--shapes 1x128,8x128] [--precisions fp32,int8]

A shape is batch x length; with an r behind it, rows have real lengths (0.41 of the length on average). Models are
exported once, into build/tensorflow_op, which needs `make build/legacy/.installed`."""

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from models import SIZES, inputs
from turns import OVERHEAD, SHORT, Bare, in_turns, overhead

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf

import fusebert
import fusebert.tensorflow
from fusebert.cli.show import show
from fusebert.engine.native import EncoderEngine, cores, isa, pool
from fusebert.engine.quantize import convert_encoder
from fusebert.match import read_encoder
from fusebert.ops.graph import Array
from fusebert.report import Report, Table
from fusebert.values.blocks import Encoder
from fusebert.values.plan import make_plan
from fusebert.values.precision import PRECISIONS
from fusebert.values.traverse import parts

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
    for _, part in parts(encoder):
        arrays += [array.T if array.ndim == 2 else array for _, array in part.arrays()]
    attention, feed_forward = encoder.blocks[0].body, encoder.blocks[1]
    inner: Any = feed_forward.body
    epsilon = feed_forward.after.epsilon if feed_forward.after else 0.0
    kinds = {"QuantizableDataType": tf.qint8, "NonQuantizableDataType": tf.bfloat16}
    settings = {
        "HiddenSize": encoder.hidden_size, "NumAttentionHeads": getattr(attention, "heads", 1),
        "IntermediateSize": len(inner.up.weight),
        "HiddenAct": inner.activation, "LayerNormEpsilon": epsilon, "NumThreads": threads,
        **{key: kinds[key] for key in TYPES[precision]},
    }  # fmt: skip
    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph:
        given = v1.placeholder(tf.float32, [None, None, encoder.hidden_size]), v1.placeholder(tf.int32, [None, 1, None])
        stored = [v1.placeholder(tf.float32, array.shape) for array in arrays]
        weights = [v1.Variable(one, use_resource=True) for one in stored]
        encoded = fusebert.tensorflow.bert(*given, weights, **settings)
        config = v1.ConfigProto(intra_op_parallelism_threads=threads, inter_op_parallelism_threads=1)
        session = v1.Session(graph=graph, config=config)
        session.run(v1.global_variables_initializer(), dict(zip(stored, arrays, strict=True)))
    call: Callable[[Array, Array], Array] = session.make_callable(encoded, given)
    return call


def beyond(encoder: Encoder, precision: str, given: argparse.Namespace) -> Iterator[tuple[Any, ...]]:
    """The op and the engine in one precision on the same rows, for short shapes."""
    inside = op(encoder, precision, given.threads)
    plan = make_plan(precision, len(encoder.blocks))
    engine = EncoderEngine(convert_encoder(encoder, plan), plan, pool(given.threads))
    for shape in SHORT:
        _, mask = inputs(shape)
        rows = np.random.default_rng(0).normal(size=(*mask.shape, encoder.hidden_size)).astype(np.float32)
        call, bare = partial(inside, rows, mask[:, None].astype(np.int32)), Bare(engine, rows)
        bare.call()
        if not np.array_equal(call(), bare.output):
            raise SystemExit("the op and the engine do not give the same bits")
        yield shape, precision, *overhead(call, bare.call, given.seconds / 2, not given.json)


def measure(name: str, given: argparse.Namespace) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
    """Times of a model's forms at every shape, and of the op beside the engine."""
    path, precisions = export(name), given.precisions.split(",")
    times: list[tuple[Any, ...]] = []
    with tempfile.TemporaryDirectory(dir=PLACE) as folder:
        running = models(path, precisions, given.threads, Path(folder))
        for shape in given.shapes.split(","):
            ids, mask = inputs(shape)
            feeds = {n: tf.constant(a.astype(np.int32)) for n, a in zip(NAMES, (ids, mask, ids * 0), strict=True)}
            calls = {engine: partial(call, **feeds) for engine, (call, _) in running.items()}
            timings = in_turns(calls, given.seconds, not given.json)
            plain = timings["tensorflow"].best
            times += [
                (name, shape, engine, round(t.best, 2), round(t.p50, 2), f"{plain / t.best:.2f}x")
                for engine, t in timings.items()
            ]
    finding = fusebert.find(fusebert.read(path))
    encoder = read_encoder(finding.raised, finding.encoders[0])
    return times, [(name, *row) for precision in precisions for row in beyond(encoder, precision, given)]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--models", default="minilm,base", help=f"of {', '.join(SIZES)}")
    parser.add_argument("--shapes", default="1x128,8x128")
    parser.add_argument("--precisions", default=",".join(p for p in PRECISIONS if p != "int8-bf16"))
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--seconds", type=float, default=25, help="for a shape; three rounds are made in any case")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(given.threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    times, spent = [], []
    for name in given.models.split(","):
        found = measure(name, given)
        times += found[0]
        spent += found[1]
    columns = ("model", "shape", "engine", "best_ms", "p50_ms", "against tensorflow")
    tables = (
        Table("models", columns, tuple(times)),
        Table("the_op_beyond_the_bare_engine", ("model", *OVERHEAD), tuple(spent)),
    )
    facts = {"threads": given.threads, "instruction_set": isa()}
    show(Report("the op inside TensorFlow, interleaved", facts, tables), given.json)


if __name__ == "__main__":
    main()
