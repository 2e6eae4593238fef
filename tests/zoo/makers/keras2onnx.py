"""Makes the zoo's models in keras2onnx's style: a Reshape around every MatMul, LayerNorm as TensorFlow writes it.

keras2onnx itself no longer installs, so the graph is written by hand (specs of the old tool), around the weights of a
torch BertModel, which also gives the answers. Run by workshop.py in a process of its own.
"""

import math
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from zoo.cases import POSITIONS, Cases, kinds, work
from zoo.makers.torch import Answers, build, run


class Writer:
    """Collects nodes and constants; every call gives the name of the result."""

    def __init__(self, recipe: dict, state: dict[str, np.ndarray]) -> None:
        self.recipe, self.sizes, self.state = recipe, recipe["sizes"], state
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, result: str | None = None, **fields) -> str:
        result = result or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [result], f"node_{len(self.nodes)}", **fields))
        return result

    def constant(self, value, kind=np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def reshape(self, x: str, shape: list[int]) -> str:
        return self.op("Reshape", x, self.constant(shape, np.int64))

    def restore(self, flat: str, like: str, width: int) -> str:
        """[tokens, width] back to [batch, length, width], by the shape of another tensor as Tensordot does."""
        sizes = self.op("Slice", self.op("Shape", like), *[self.constant([i], np.int64) for i in (0, 2, 0)])
        return self.op("Reshape", flat, self.op("Concat", sizes, self.constant([width], np.int64), axis=0))

    def dense(self, x: str, name: str, like: str, result: str | None = None) -> str:
        kernel = self.state[f"{name}.weight"].T
        flat = self.op("MatMul", self.reshape(x, [-1, kernel.shape[0]]), self.constant(kernel))
        wide = self.restore(flat, like, kernel.shape[1])
        return self.op("Add", wide, self.constant(self.state[f"{name}.bias"]), result=result)

    def norm(self, x: str, name: str, result: str | None = None) -> str:
        gain, bias = (self.constant(self.state[f"{name}.{part}"]) for part in ("weight", "bias"))
        mean = self.op("ReduceMean", x, axes=[-1], keepdims=1)
        apart = self.op("Sub", x, mean)
        variance = self.op("ReduceMean", self.op("Mul", apart, apart), axes=[-1], keepdims=1)
        root = self.op("Reciprocal", self.op("Sqrt", self.op("Add", variance, self.constant(1e-12))))
        scale = self.op("Mul", root, gain)
        shift = self.op("Sub", bias, self.op("Mul", mean, scale))
        return self.op("Add", self.op("Mul", x, scale), shift, result=result)

    def split(self, x: str) -> str:
        heads = self.sizes["heads"]
        return self.op("Transpose", self.reshape(x, [0, -1, heads, self.sizes["hidden"] // heads]), perm=[0, 2, 1, 3])

    def attend(self, x: str, mask: str, name: str) -> str:
        size = self.sizes["hidden"] // self.sizes["heads"]
        query, key, value = (self.dense(x, f"{name}.self.{part}", x) for part in ("query", "key", "value"))
        query, key, value = self.split(query), self.split(key), self.split(value)
        if self.recipe.get("subtract"):  # the scale on the query, the mask subtracted
            query = self.op("Mul", query, self.constant(1 / math.sqrt(size)))
            scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
            scores = self.op("Sub", scores, mask)
        else:
            if self.recipe.get("reversed"):  # keys by queries, then turned
                scores = self.op("MatMul", key, self.op("Transpose", query, perm=[0, 1, 3, 2]))
                scores = self.op("Transpose", scores, perm=[0, 1, 3, 2])
            else:
                scores = self.op("MatMul", query, self.op("Transpose", key, perm=[0, 1, 3, 2]))
            scores = self.op("Add", self.op("Div", scores, self.constant(math.sqrt(size))), mask)
        context = self.op("MatMul", self.op("Softmax", scores, axis=3), value)
        context = self.op("Transpose", context, perm=[0, 2, 1, 3])
        return self.dense(self.reshape(context, [0, -1, self.sizes["hidden"]]), f"{name}.output.dense", x)

    def act(self, x: str) -> str:
        if self.recipe["act"] == "gelu":
            inside = self.op("Erf", self.op("Div", x, self.constant(math.sqrt(2))))
        else:
            cube = self.op("Mul", self.constant(0.044715), self.op("Pow", x, self.constant(3)))
            inside = self.op("Mul", self.constant(math.sqrt(2 / math.pi)), self.op("Add", x, cube))
            inside = self.op("Tanh", inside)
        half = self.op("Mul", self.constant(0.5), self.op("Add", inside, self.constant(1)))
        return self.op("Mul", x, half)

    def write(self) -> None:
        shape = self.op("Shape", "input_ids")
        length = self.op("Slice", shape, *[self.constant([i], np.int64) for i in (1, 2, 0)])
        tables = {n: self.state[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position", "token_type")}
        starts = [self.constant([0], np.int64), length, self.constant([0], np.int64)]
        places = self.op(
            "Unsqueeze", self.op("Slice", self.constant(np.arange(POSITIONS), np.int64), *starts), axes=[0]
        )
        x = self.op("Gather", self.constant(tables["word"]), "input_ids")
        x = self.op("Add", x, self.op("Gather", self.constant(tables["position"]), places))
        x = self.op("Add", x, self.op("Gather", self.constant(tables["token_type"]), "token_type_ids"))
        x = self.norm(x, "embeddings.LayerNorm")
        wide = self.op("Unsqueeze", self.op("Unsqueeze", "attention_mask", axes=[1]), axes=[2])
        off = self.op("Sub", self.constant(1), self.op("Cast", wide, to=TensorProto.FLOAT))
        mask = self.op("Mul", off, self.constant(10000 if self.recipe.get("subtract") else -10000))
        for i in range(self.sizes["layers"]):
            name = f"encoder.layer.{i}"
            attended = self.op("Add", self.attend(x, mask, f"{name}.attention"), x)
            attended = self.norm(attended, f"{name}.attention.output.LayerNorm")
            inner = self.act(self.dense(attended, f"{name}.intermediate.dense", attended))
            inner = self.dense(inner, f"{name}.output.dense", attended)
            last = "last_hidden_state" if i == self.sizes["layers"] - 1 else None
            x = self.norm(self.op("Add", inner, attended), f"{name}.output.LayerNorm", result=last)
        starts = [self.constant([i], np.int64) for i in (0, 1, 1)]
        first = self.op("Squeeze", self.op("Slice", x, *starts), axes=[1])
        kernel, bias = self.state["pooler.dense.weight"].T, self.state["pooler.dense.bias"]
        pooled = self.op("Add", self.op("MatMul", first, self.constant(kernel)), self.constant(bias))
        self.op("Tanh", pooled, result="pooler_output")


def make(recipe: dict, folder: Path) -> None:
    """The file, and what torch says for every kind of mask."""
    model = build(recipe)
    state = {name: value.numpy() for name, value in model.state_dict().items()}
    writer = Writer(recipe, state)
    writer.write()
    width = recipe["sizes"]["hidden"]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", "S"]) for n in recipe["inputs"]]
    shapes = {"last_hidden_state": ["N", "S", width], "pooler_output": ["N", width]}
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in recipe["outputs"]]
    graph = helper.make_graph(writer.nodes, "tf_bert_model", inputs, outputs, writer.constants)
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 11)], producer_name="keras2onnx", ir_version=6
    )
    onnx.checker.check_model(made, full_check=True)
    onnx.save(made, folder / "model.onnx")
    answers, cases = Answers(model, recipe["outputs"], None).eval(), Cases()
    for kind, arrays in kinds(recipe):
        cases.add(kind, *run(answers, recipe, arrays))
    cases.save(folder)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    work(make)
