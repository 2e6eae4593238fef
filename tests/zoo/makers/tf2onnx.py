"""Makes the zoo's tf2onnx models: ONNX files of its TensorFlow ones; the answers stay TensorFlow's.

Run by workshop.py in a process of its own.
"""

import json
import logging
from pathlib import Path

import numpy as np
import tensorflow as tf
import tf2onnx
from tensorflow.compat import v1
from zoo.cases import copy_cases, work


def write_erfc(context, node, name, _) -> None:
    """Today's TensorFlow writes GELU with Erfc, which tf2onnx does not know (its file would not load): 1 - Erf."""
    one = context.make_const(f"{name}_one", np.array(1, np.float32))
    shape, dtype = context.get_shape(node.output[0]), context.get_dtype(node.output[0])
    erf = context.make_node("Erf", [node.input[0]], name=f"{name}_erf")
    context.remove_node(node.name)
    inputs = [one.output[0], erf.output[0]]
    context.make_node("Sub", inputs, name=name, outputs=node.output, shapes=[shape], dtypes=[dtype])


def from_saved(file: Path, opset: int):
    """As `python -m tf2onnx.convert --saved-model` does."""
    loaded = tf2onnx.tf_loader.from_saved_model(
        str(file), None, None, ["serve"], ["serving_default"], return_tensors_to_rename=True
    )
    graph, inputs, outputs, renamed = loaded
    with v1.Graph().as_default():
        return tf2onnx.convert._convert_common(
            graph,
            name="saved_model",
            opset=opset,
            input_names=inputs,
            output_names=outputs,
            tensors_to_rename=renamed,
            custom_op_handlers={"Erfc": (write_erfc, [])},
        )[0]


def from_frozen(file: Path, opset: int, tensors: dict):
    """As `python -m tf2onnx.convert --graphdef` does."""
    graph = v1.GraphDef.FromString(file.read_bytes())
    return tf2onnx.convert.from_graph_def(
        graph,
        input_names=list(tensors["inputs"].values()),
        output_names=list(tensors["outputs"].values()),
        opset=opset,
    )[0]


def make(recipe: dict, folder: Path) -> None:
    """Converts the source."""
    source, file = Path(recipe["source"]), Path(recipe["source"]) / recipe["source_file"]
    tensors = json.loads((source / "tensors.json").read_text())
    if recipe["source_file"] == "saved_model":
        model, names = from_saved(file, recipe["opset"]), {}
    else:
        model = from_frozen(file, recipe["opset"], tensors)
        names = tensors["inputs"] | tensors["outputs"]  # a frozen graph's tensors keep their names
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    copy_cases(source, folder, recipe["kinds"], names)


if __name__ == "__main__":
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    tf.config.set_visible_devices([], "GPU")
    work(make)
