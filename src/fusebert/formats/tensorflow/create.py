"""Create: nodes -> a SavedModel of one signature, whose large weights are variables. No TensorFlow is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fusebert.formats.protobuf.wire import Payload
from fusebert.formats.tensorflow.edit import NewNode, add_node
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.messages import message
from fusebert.formats.tensorflow.serving import with_variables
from fusebert.formats.tensorflow.tensor import Tensors
from fusebert.formats.tensorflow.types import NUMBERS

_SIGNATURE, _METHOD, _TAG = "serving_default", "tensorflow/serving/predict", "serve"
_PRODUCER = 1087  # a version of graphs that every TensorFlow from 2.9 on reads as its own

Declared = tuple[str, tuple[int | str, ...]]  # the element type and the sizes of an input or output


def create(
    out: Path, nodes: Sequence[NewNode], inputs: Mapping[str, Declared], outputs: Mapping[str, Declared]
) -> None:
    """Writes a SavedModel folder. Inputs become placeholders; outputs are nodes of their names."""
    model = message("SavedModel")
    model.saved_model_schema_version = 1
    meta = model.meta_graphs.add()
    meta.meta_info_def.tags.append(_TAG)
    meta.graph_def.versions.producer = _PRODUCER
    payloads: list[Payload] = []
    for name, (dtype, sizes) in inputs.items():
        node = meta.graph_def.node.add(name=name, op="Placeholder")
        node.attr.add(key="dtype").value.type = NUMBERS[dtype]
        _set_shape(node.attr.add(key="shape").value.shape, sizes)
    for new in nodes:
        add_node(meta.graph_def.node, new, payloads)
    entry = meta.signature_def.add(key=_SIGNATURE)
    entry.value.method_name = _METHOD
    for side, given in ((entry.value.inputs, inputs), (entry.value.outputs, outputs)):
        for name, (dtype, sizes) in given.items():
            info = side.add(key=name).value
            info.name, info.dtype = f"{name}:0", NUMBERS[dtype]
            _set_shape(info.tensor_shape, sizes)
    file = TensorFlowFile(out, "SavedModel", model, Tensors(str(out), memoryview(b""), ()), payloads, None)
    with_variables(file, {}).write(out)


def _set_shape(shape: Any, sizes: Sequence[int | str]) -> None:
    for size in sizes:
        shape.dim.add(size=size if isinstance(size, int) else -1)
