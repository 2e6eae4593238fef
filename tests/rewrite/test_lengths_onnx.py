"""Every exporter's output with positions for 160 tokens, both targets: batches of 1 and 4, lengths 1, 8 and 128,
padding right, left and in holes, against the original in ONNX Runtime."""

import dataclasses

import numpy as np
import onnx
import pytest
import zoo
from onnx import numpy_helper
from zoo.cases import POSITIONS

from fusebert.measure.runners import open_runner
from fusebert.measure.samples import Source
from fusebert.source import OnnxFile
from fusebert.values.target import TARGETS
from fusebert.verbs.fused import REWRITERS

LONG = 160
NO_TABLE = ("onnx-own-native", "tf2onnx-tf1-11")  # one has no positions, one is of one length
FREE = [
    name
    for name, entry in zoo.ZOO.items()
    if entry.file == "model.onnx" and not entry.refused and not entry.recipe.get("static") and entry.precision == "fp32"
    and name.startswith(("onnx", "tf2onnx")) and name not in NO_TABLE
    and all(encoder.hidden != POSITIONS for encoder in entry.encoders)
]  # fmt: skip


def lengthen(source, out):
    """The same model with more positions: whatever is as long as the table of positions goes on."""
    model = onnx.load(source)
    random, changed = np.random.default_rng(0), False
    constants = [a.t for node in model.graph.node if node.op_type == "Constant" for a in node.attribute]
    for tensor in (*model.graph.initializer, *constants):
        if POSITIONS not in tensor.dims:
            continue
        changed = True
        array = numpy_helper.to_array(tensor)
        axis = array.shape.index(POSITIONS)
        sizes = [LONG - POSITIONS if i == axis else size for i, size in enumerate(array.shape)]
        if array.dtype.kind == "f":
            more = random.normal(0, 0.7, sizes).astype(array.dtype)
        else:  # positions go on counting, types go on being the same
            step = int(np.ptp(array[..., :2])) if array.shape[-1] == POSITIONS else 0
            more = array.max() + step * (1 + np.arange(LONG - POSITIONS)).reshape(sizes)
        tensor.CopyFrom(numpy_helper.from_array(np.concatenate([array, more.astype(array.dtype)], axis), tensor.name))
    assert changed
    onnx.save(model, out)
    return out


@pytest.mark.parametrize("name", FREE)
def test_both_targets_answer_as_the_original(name, tmp_path):
    entry = zoo.get(name)
    original = open_runner(lengthen(entry.make(), tmp_path / "long.onnx"), threads=1, level=0)
    fused = []
    for target in ("onnxruntime", "stock-onnxruntime"):
        made = TARGETS[target](precision="fp32", threads=1)
        made = dataclasses.replace(made, padding="compute") if hasattr(made, "padding") else made
        REWRITERS[type(made)](OnnxFile(tmp_path / "long.onnx"), tmp_path / f"{target}.onnx", made)
        fused.append(open_runner(tmp_path / f"{target}.onnx", threads=1))
    padding_id = next((n for n in (original.roles.hiding_id, original.roles.padding_id) if n is not None), None)
    source = Source(original.roles.vocabulary or 50, 2, padding_id)
    paddings = ("right", "left", "holes") if "mask" in original.inputs else ("none",)
    for shape in ((1, 1), (4, 1), (1, 8), (4, 8), (1, 128), (4, 128)):
        for sample in source.alike(shape, paddings, len(paddings), seed=1):
            want = original.run(sample.ids, sample.mask, sample.types)
            for runner in fused:
                got = runner.run(sample.ids, sample.mask, sample.types)
                for output, expected in want.items():
                    off = np.abs(got[output] - expected).max() / np.abs(expected).max()
                    assert off <= 1e-4, (runner.name, output, shape, sample.padding)
