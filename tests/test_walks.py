"""How often a walk through fusebert parses a model file, runs the finder and packs an encoder. A change that makes the
numbers of WALKS larger is a mistake; one that makes them smaller writes the smaller ones here."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import unwrap
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from golden.answers import GOLDEN, MODEL

import fusebert
from fusebert.engine.native import EncoderEngine
from fusebert.formats.onnx import read as onnx
from fusebert.formats.tensorflow import messages as tf_messages
from fusebert.match.find import find

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own

# The functions that all of that goes through: the only thing here that follows a renamed module.
COUNTED: dict[Any, str] = {
    onnx.parse: "parses",
    tf_messages.parse: "parses",
    unwrap(find): "finds",
    EncoderEngine.__init__: "packs",
}
ONNX, SAVED = GOLDEN / "onnx" / "source.onnx", GOLDEN / "tensorflow" / "source"
# Parses, finds, packs. Int8 packs one layer after another (there are two) to observe it; an engine of the embeddings
# alone, whose encoder has no layers, counts as well.
WALKS = {
    "checkpoint to artifact": (0, 0, 2),
    "artifact to embeddings": (0, 0, 1),
    "onnx to artifact": (1, 1, 2),
    "onnx to onnx": (2, 1, 4),  # the last of these packs is one layer, which is timed with padding and without
    "onnx to onnx, checked and told in detail": (2, 1, 4),
    "saved model to saved model": (2, 1, 4),
    "torch module": (0, 0, 3),
    "extract-pattern": (1, 0, 0),
    "make-recipe": (1, 1, 0),
    "replace-pattern": (1, 0, 0),
    "replace-pattern, verified": (2, 1, 0),
    "configure-op": (1, 0, 0),
}


@contextmanager
def counting() -> Iterator[Counter[str]]:
    """Counts calls by a profile of the interpreter, which sees them however a function was imported."""
    codes = {function.__code__: kind for function, kind in COUNTED.items()}
    counts: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (kind := codes.get(frame.f_code)):
            counts[kind] += 1

    before = sys.getprofile()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield counts
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


def expect(name: str, walk: Callable[[], Any]) -> None:
    with counting() as counts:
        walk()
    got = counts["parses"], counts["finds"], counts["packs"]
    assert got == WALKS[name], f"{name}: parses, finds and packs were {WALKS[name]} and are {got}"


def test_checkpoint_to_artifact_to_embeddings(tmp_path: Path) -> None:
    expect("checkpoint to artifact", lambda: fusebert.optimize(MODEL, tmp_path / "out", "int8"))
    expect("artifact to embeddings", lambda: fusebert.load(tmp_path / "out").encode(["the cat", "the dog ran"]))


def test_onnx_to_artifact(tmp_path: Path) -> None:
    expect("onnx to artifact", lambda: fusebert.optimize(ONNX, tmp_path / "out", "int8"))


def test_onnx_to_onnx(tmp_path: Path) -> None:
    expect("onnx to onnx", lambda: fusebert.optimize(ONNX, tmp_path / "out.onnx"))
    sizes = {"heads": 3, "hidden": 24}
    expect(
        "onnx to onnx, checked and told in detail",
        lambda: fusebert.optimize(ONNX, tmp_path / "more.onnx", expected=sizes, verbose=True),
    )


def test_saved_model_to_saved_model(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    expect("saved model to saved model", lambda: fusebert.optimize(SAVED, tmp_path / "out"))


def test_torch_module() -> None:
    import torch
    import transformers

    import fusebert.torch

    with fusebert.torch.disabled():
        model = transformers.BertModel.from_pretrained(MODEL).eval()
    fusebert.torch.disable()  # other tests load stock models in this process

    def walk() -> None:
        fused = fusebert.torch.optimize(model, "int8")
        with torch.no_grad():
            for length in (4, 7):
                fused(torch.from_numpy(np.full((2, length), 6)))

    expect("torch module", walk)


def test_extract_make_replace_configure(run: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    pattern, recipe = tmp_path / "pattern.pb", tmp_path / "recipe.pb"
    seeds = [f"bert/encoder/layer_{i}/output/LayerNorm/batchnorm/add_1" for i in range(2)]
    barriers = ["bert/encoder/Reshape_1", "bert/encoder/Reshape", "strided_slice", "strided_slice_1"]
    ends = ("-s", *seeds, "-b", *barriers, "-B", "ReadVariableOp", "Const", "-f", function_of_encoder())
    expect("extract-pattern", lambda: run("extract-pattern", SAVED, *ends, "-o", pattern))
    expect("make-recipe", lambda: run("make-recipe", pattern, recipe, "--model", SAVED))
    expect("replace-pattern", lambda: run("replace-pattern", SAVED, "-r", recipe, "-o", tmp_path / "replaced"))
    expect(
        "replace-pattern, verified",
        lambda: run("replace-pattern", SAVED, "-r", recipe, "-o", tmp_path / "verified", "--verify"),
    )
    expect("configure-op", lambda: run("configure-op", tmp_path / "replaced", "-q"))


def function_of_encoder() -> str:
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    saved = SavedModel.FromString((SAVED / "saved_model.pb").read_bytes())
    names = [function.signature.name for function in saved.meta_graphs[0].graph_def.library.function]
    (name,) = (name for name in names if name.startswith("__inference_serve_"))
    return name
