"""ONNX files of a few nodes whose answers are known, for tests of what runs and compares models."""

from pathlib import Path

import onnx
from onnx import TensorProto, helper

TYPES = {"int64": TensorProto.INT64, "int32": TensorProto.INT32, "float": TensorProto.FLOAT}


def make(
    path: Path,
    formula: dict[str, str],
    inputs: dict[str, str] | None = None,
    shape: tuple = ("batch", "length"),
    ranks: dict[str, int] | None = None,
) -> Path:
    """A model with int64 (or other) inputs `ids` and `mask`; each output is a formula of them in Python's notation over
    floats: `ids * 2`, `ids * mask`, `ids / zero`. An output whose name begins with `first` is of the first token."""
    inputs = inputs or {"ids": "int64", "mask": "int64"}
    ranks = ranks or {}
    nodes = [helper.make_node("Cast", [name], [f"{name}_float"], to=TensorProto.FLOAT) for name in inputs]
    constants = [helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])]
    constants += [helper.make_tensor("start", TensorProto.INT64, [], [0])]
    outputs = []
    for name, text in formula.items():
        left, operation, right = text.split()
        if right.replace(".", "").replace("e-", "").isdigit():
            constants.append(helper.make_tensor(f"{name}_right", TensorProto.FLOAT, [], [float(right)]))
            right = f"{name}_right"
        words = {"*": "Mul", "+": "Add", "/": "Div"}
        operands = [f"{n}_float" if n in inputs else n for n in (left, right)]
        first = name.startswith("first")
        nodes.append(helper.make_node(words[operation], operands, [f"{name}_all" if first else name]))
        if first:
            nodes.append(helper.make_node("Gather", [f"{name}_all", "start"], [name], axis=1))
        outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None if first else shape))
    given = [
        helper.make_tensor_value_info(name, TYPES[kind], shape[: ranks.get(name, 2)]) for name, kind in inputs.items()
    ]
    graph = helper.make_graph(nodes, "tiny", given, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


def edited(
    source: Path, path: Path, names: dict[str, str] | None = None, surplus: dict[str, list] | None = None
) -> Path:
    """An ONNX file with other names for its inputs, and with inputs that nothing reads."""
    model = onnx.load(source)
    for given in model.graph.input:
        given.name = (names or {}).get(given.name, given.name)
    for node in model.graph.node:
        node.input[:] = [(names or {}).get(name, name) for name in node.input]
    for name, shape in (surplus or {}).items():
        model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, shape))
    onnx.save(model, path)
    return path
