"""Makes the zoo's torch models: tiny stock transformers (4 or 5, whichever is on the path) exported by torch.onnx.

Run by workshop.py in a process of its own.
"""

import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
import transformers
from onnx import numpy_helper
from torch import nn
from zoo.cases import NAMES, POSITIONS, VOCABULARY, Cases, kinds, weight, work
from zoo.makers.own import OWN as OWN_MODELS
from zoo.makers.own import Outputs

CLASSES = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm-roberta": "XLMRoberta",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "gpt2": "GPT2",
    "albert": "Albert",
    "t5": "T5Encoder",
}
OWN = {
    "distilbert": {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    },
    "gpt2": {
        "hidden_size": "n_embd",
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "intermediate_size": "n_inner",
        "hidden_act": "activation_function",
        "max_position_embeddings": "n_positions",
    },
    "t5": {
        "hidden_size": "d_model",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "d_ff",
        "hidden_act": "dense_act_fn",
    },
}


def configure(recipe: dict) -> transformers.PretrainedConfig:
    """The configuration of a tiny model; field names differ by family."""
    family, sizes = recipe["family"], recipe["sizes"]
    fields = {
        "vocab_size": VOCABULARY,
        "hidden_size": sizes["hidden"],
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "intermediate_size": sizes["inner"],
        "hidden_act": recipe.get("act", "gelu"),
        "max_position_embeddings": POSITIONS,
        "num_labels": 2 if recipe["head"] == "ForQuestionAnswering" else 3,
        "pad_token_id": recipe.get("pad", 0),
        "attn_implementation": recipe["attention"],
    }
    fields = {OWN.get(family, {}).get(field, field): value for field, value in fields.items()}
    name = "T5" if family == "t5" else CLASSES[family]
    return getattr(transformers, f"{name}Config")(**fields, **recipe.get("config", {}))


class Answers(nn.Module):
    """A stock model with positional inputs and a tuple of the wanted outputs, as deployed models are wrapped."""

    def __init__(self, model: nn.Module, outputs: list[str], pool: str | None) -> None:
        super().__init__()
        self.model, self.outputs, self.pool = model, outputs, pool

    def forward(self, input_ids, attention_mask=None, token_type_ids=None):
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        given = {name: value for name, value in given.items() if value is not None}
        more = {"output_hidden_states": True} if "hidden_0" in self.outputs else {}
        made = self.model(**given, **more)
        if self.pool == "masked":
            wide = attention_mask.unsqueeze(-1).expand(made.last_hidden_state.size()).float()
            mean = torch.sum(made.last_hidden_state * wide, 1) / torch.clamp(wide.sum(1), min=1e-9)
            return (nn.functional.normalize(mean, p=2, dim=1),)
        if self.pool == "mean":
            return (made.last_hidden_state.mean(dim=1),)
        if self.pool == "first":
            return (made.last_hidden_state[:, 0],)
        hidden = {f"hidden_{i}": value for i, value in enumerate(made.get("hidden_states") or ())}
        return tuple(hidden[name] if name in hidden else made[name] for name in self.outputs)


def build(recipe: dict) -> nn.Module:
    """The model with its random weights."""
    if "own" in recipe:
        model = OWN_MODELS[recipe["own"]](recipe).eval()
    else:
        bare = recipe.get("pool") and recipe["family"] not in ("distilbert", "electra", "t5")
        kind = getattr(transformers, CLASSES[recipe["family"]] + recipe["head"])
        model = kind(configure(recipe), **({"add_pooling_layer": False} if bare else {})).eval()
    random = np.random.default_rng(recipe.get("seed", 0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weight(name, tuple(parameter.shape), random)))
        if recipe.get("dtype") == "fp16 weights":
            for parameter in model.parameters():
                parameter.copy_(parameter.half().float())
    if recipe.get("prune"):
        model.prune_heads({int(layer): heads for layer, heads in recipe["prune"].items()})
    return model.half() if recipe.get("dtype") == "fp16" else model


def feeds(recipe: dict, arrays: tuple) -> tuple[np.ndarray, ...]:
    """The arrays for this model's inputs, in order."""
    ids, mask, types = arrays
    if "pixel_values" in recipe["inputs"]:
        return (np.random.default_rng(7).standard_normal((len(ids), 3, 16, 16)).astype(np.float32),)
    if "other_ids" in recipe["inputs"]:
        return ids, mask, ids[:, ::-1].copy(), mask[:, ::-1].copy()
    return (ids, mask, types)[: len(recipe["inputs"])]


def run(model: nn.Module, recipe: dict, arrays: tuple) -> tuple[dict, dict, list | None]:
    """Named inputs and outputs of one case, and the states between the layers."""
    inputs = dict(zip(recipe["inputs"], feeds(recipe, arrays), strict=True))
    tensors = [torch.from_numpy(value) for value in inputs.values()]
    with torch.no_grad():
        if "own" in recipe:
            outputs, states = model.model(*tensors)
        else:
            outputs = model(*tensors)
            made = model.model(**dict(zip(NAMES, tensors, strict=False)), output_hidden_states=True)
            states = made["hidden_states"]
    hidden = [state.numpy() for state in states] if states else None
    return inputs, dict(zip(recipe["outputs"], [o.numpy() for o in outputs], strict=True)), hidden


def export(model: nn.Module, recipe: dict, arrays: tuple, file: Path) -> None:
    """Writes the ONNX file by the exporter asked for."""
    names, outputs = recipe["inputs"], recipe["outputs"]
    args = tuple(torch.from_numpy(value) for value in feeds(recipe, arrays))
    axes = {} if recipe.get("static") else {0: "batch", 1: "length"}
    shared = {"input_names": names, "output_names": outputs, "opset_version": recipe["opset"]}
    if recipe["exporter"] == "dynamo":
        dynamic = tuple(dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for _ in names) if axes else None
        torch.onnx.export(model, args, file, dynamo=True, dynamic_shapes=dynamic, external_data=False, **shared)
        return
    flat = recipe["flat"]
    dynamic = dict.fromkeys(names, axes) | {name: {0: "batch"} if name in flat else axes for name in outputs}
    folding = recipe.get("folding", True)
    torch.onnx.export(
        model, args, file, dynamo=False, dynamic_axes=dynamic if axes else None, do_constant_folding=folding, **shared
    )


def halve(file: Path) -> None:
    """Stores every float initializer as fp16 with a Cast to float32 behind it."""
    model = onnx.load(file)
    casts = []
    for stored in model.graph.initializer:
        if stored.data_type != onnx.TensorProto.FLOAT or not stored.dims:
            continue
        name = stored.name
        stored.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(stored).astype(np.float16), name + "_fp16"))
        casts.append(onnx.helper.make_node("Cast", [name + "_fp16"], [name], name + "_cast", to=onnx.TensorProto.FLOAT))
    nodes = list(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(casts + nodes)
    onnx.checker.check_model(model)
    onnx.save(model, file)


def make(recipe: dict, folder: Path) -> None:
    """The model's ONNX file and what torch says for every kind of mask."""
    model = build(recipe)
    model = Outputs(model) if "own" in recipe else Answers(model, recipe["outputs"], recipe.get("pool"))
    model.eval()
    cases, last = Cases(), None
    for kind, arrays in kinds(recipe):
        cases.add(kind, *run(model, recipe, arrays))
        last = arrays
    export(model, recipe, last, folder / "model.onnx")
    if recipe.get("dtype") == "fp16 weights":
        halve(folder / "model.onnx")
    cases.save(folder)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    work(make)
