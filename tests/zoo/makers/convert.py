"""Makes the zoo's second-hand ONNX files: optimised or quantised by ONNX Runtime, simplified, or in another order.

Run by workshop.py in a process of its own, after the torch models are there.
"""

import logging
import random
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxruntime.transformers.fusion_options import FusionOptions
from onnxruntime.transformers.optimizer import optimize_model
from zoo.cases import Cases, copy_cases, stored_inputs, work

LEVELS = {"basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED", "all": "ORT_ENABLE_ALL"}


def session(recipe: dict, source: Path, target: Path) -> None:
    """The graph that a session saves after its own optimisation."""
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, LEVELS[recipe["level"]])
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 3
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def optimizer(recipe: dict, source: Path, target: Path) -> None:
    """onnxruntime.transformers.optimizer, with the mask kept as it is unless the recipe wants its default."""
    options = FusionOptions("bert")
    options.use_multi_head_attention = recipe.get("multi_head", False)
    if not recipe.get("mask_index"):
        options.use_raw_attention_mask(True)
    sizes = {"num_heads": recipe["heads"], "hidden_size": recipe["hidden"]}
    made = optimize_model(str(source), "bert", **sizes, optimization_options=options, opt_level=recipe.get("level", 0))
    if recipe.get("fp16"):
        made.convert_float_to_float16(keep_io_types=True)
    made.save_model_to_file(str(target))
    found = {node.op_type for node in onnx.load(target).graph.node}
    if missing := set(recipe["expects"]) - found:
        raise ValueError(f"the optimizer made no {missing}, only {sorted(found)}")


class Reader(CalibrationDataReader):
    """The zoo's own inputs, for calibration."""

    def __init__(self, source: Path) -> None:
        self.rows = iter(stored_inputs(source).values())

    def get_next(self):
        return next(self.rows, None)


def dynamic(recipe: dict, source: Path, target: Path) -> None:
    """MatMulInteger with activations quantised on the fly."""
    quantize_dynamic(str(source), str(target), per_channel=recipe["per_channel"], weight_type=QuantType.QInt8)


def static(recipe: dict, source: Path, target: Path) -> None:
    """QuantizeLinear and DequantizeLinear around every product."""
    reader = Reader(source.parent)
    fields = {"quant_format": QuantFormat.QDQ, "op_types_to_quantize": ["MatMul"], "weight_type": QuantType.QInt8}
    fields |= {"per_channel": recipe["per_channel"], "activation_type": QuantType.QUInt8}
    quantize_static(str(source), str(target), reader, **fields)


def whole(recipe: dict, source: Path, target: Path) -> None:
    """Everything that can be in 8 bits is, between QuantizeLinear and DequantizeLinear or as QLinear operations."""
    form = QuantFormat.QDQ if recipe["way"] == "qdq" else QuantFormat.QOperator
    prepared = target.with_name("prepared.onnx")
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    fields = {"quant_format": form, "per_channel": recipe["per_channel"], "weight_type": QuantType.QInt8}
    quantize_static(str(prepared), str(target), Reader(source.parent), **fields)
    prepared.unlink()


def simplified(recipe: dict, source: Path, target: Path) -> None:
    """onnxsim's form of the graph."""
    import onnxsim

    made, right = onnxsim.simplify(onnx.load(source))
    if not right:
        raise ValueError("onnxsim changed the answers")
    onnx.save(made, target)


def slimmed(recipe: dict, source: Path, target: Path) -> None:
    """onnxslim's form of the graph."""
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


def shuffled(recipe: dict, source: Path, target: Path) -> None:
    """The same nodes in any order, which ONNX Runtime loads."""
    model = onnx.load(source)
    nodes = list(model.graph.node)
    random.Random(1).shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.save(model, target)


def weights(recipe: dict, source: Path, target: Path) -> None:
    """Weights of products as int8 with a DequantizeLinear behind, one scale per column; activations stay float."""
    model = onnx.load(source)
    used = {node.input[1] for node in model.graph.node if node.op_type == "MatMul"}
    nodes = []
    for stored in [s for s in model.graph.initializer if s.name in used and len(s.dims) == 2]:
        name, values = stored.name, numpy_helper.to_array(stored)
        scale = (np.abs(values).max(0) / 127).astype(np.float32)
        rounded = np.clip(np.rint(values / scale), -127, 127).astype(np.int8)
        stored.CopyFrom(numpy_helper.from_array(rounded, f"{name}_quantized"))
        model.graph.initializer.append(numpy_helper.from_array(scale, f"{name}_scale"))
        zero = np.zeros(scale.shape, np.int8)
        model.graph.initializer.append(numpy_helper.from_array(zero, f"{name}_zero_point"))
        parts = [f"{name}_quantized", f"{name}_scale", f"{name}_zero_point"]
        nodes.append(helper.make_node("DequantizeLinear", parts, [name], f"{name}_DequantizeLinear", axis=1))
    every = [*nodes, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(every)
    onnx.checker.check_model(model)
    onnx.save(model, target)


def answers(target: Path, source: Path, folder: Path, kinds: list[str]) -> None:
    """Cases by ONNX Runtime itself, for files whose numbers it changed on purpose."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    running = ort.InferenceSession(str(target), options, providers=["CPUExecutionProvider"])
    names, cases = [output.name for output in running.get_outputs()], Cases()
    for kind, inputs in stored_inputs(source).items():
        if kind in kinds:
            cases.add(kind, inputs, dict(zip(names, running.run(None, inputs), strict=True)))
    cases.save(folder)


WAYS = {"session": session, "optimizer": optimizer, "dynamic": dynamic, "static": static, "weights": weights}
WAYS |= {"qdq": whole, "qoperator": whole, "sim": simplified, "slim": slimmed, "shuffle": shuffled}


def make(recipe: dict, folder: Path) -> None:
    """Converts the source."""
    source, target = Path(recipe["source"]), folder / "model.onnx"
    WAYS[recipe["way"]](recipe, source / recipe["source_file"], target)
    if recipe["way"] in ("dynamic", "static", "weights"):
        answers(target, source, folder, recipe["kinds"])
    else:
        copy_cases(source, folder, recipe["kinds"], {})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    work(make)
