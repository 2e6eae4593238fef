"""Makes the zoo's torch models as strangers export them: some axes fixed, one sequence only, few positions; layers with
something between them, layers of another kind behind the first ones, families that are to be refused.

Run by workshop.py in a process of its own.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import transformers
from torch import nn
from zoo.cases import Cases, kinds, work
from zoo.makers import torch as stock
from zoo.makers.own import Encoder, Outputs

stock.CLASSES |= {"mpnet": "MPNet", "deberta": "DebertaV2"}


class Adapted(Encoder):
    """A narrow residual network between the layers, as adapters are put there."""

    def __init__(self, recipe: dict) -> None:
        super().__init__(recipe)
        width = recipe["sizes"]["hidden"]
        narrow = (nn.Sequential(nn.Linear(width, 7), nn.Tanh(), nn.Linear(7, width)) for _ in self.layers)
        self.adapters = nn.ModuleList(narrow)

    def forward(self, input_ids, attention_mask):
        x = self.norm(self.words(input_ids) + self.positions(torch.arange(input_ids.shape[1])))
        for layer, adapter in zip(self.layers, self.adapters, strict=True):
            x = layer(x, attention_mask)
            x = x + adapter(x)
        return (x,), None


class Turned(Encoder):
    """The last layer is pre-norm."""

    def __init__(self, recipe: dict) -> None:
        super().__init__(recipe)
        self.layers[-1].first = True


stock.OWN_MODELS |= {"adapted": Adapted, "turned": Turned}


def rows(recipe: dict) -> Iterator[tuple[str, tuple]]:
    """Inputs of the example's size for every kind of mask, none of them only of full rows."""
    batch, length = recipe["static"]
    for kind, arrays in kinds(recipe | {"static": (batch + 1, length)}):
        yield kind, tuple(array[1:] for array in arrays)


def export(model: nn.Module, recipe: dict, arrays: tuple, file: Path) -> None:
    """Writes the ONNX file with those axes dynamic that the recipe names."""
    names, outputs = recipe["inputs"], recipe["outputs"]
    args = tuple(torch.from_numpy(value) for value in stock.feeds(recipe, arrays))
    axes = {place: name for place, name in enumerate(("batch", "length")) if place in recipe["axes"]}
    shared = {"input_names": names, "output_names": outputs, "opset_version": recipe["opset"]}
    if recipe["exporter"] == "dynamo":
        one = recipe["static"][0] == 1  # which dynamo makes a constant of, unless the batch of the ids alone is dynamic
        asked = ([axis for axis in axes if axis or not (one and place)] for place in range(len(names)))
        dynamic = tuple(dict.fromkeys(some, torch.export.Dim.AUTO) for some in asked) if axes else None
        torch.onnx.export(model, args, file, dynamo=True, dynamic_shapes=dynamic, external_data=False, **shared)
    else:
        flat = {name: {0: "batch"} if 0 in axes else {} for name in recipe["flat"]}
        dynamic = dict.fromkeys((*names, *outputs), axes) | flat
        torch.onnx.export(model, args, file, dynamo=False, dynamic_axes=dynamic if axes else None, **shared)


def make(recipe: dict, folder: Path) -> None:
    """The model's ONNX file and what torch says for every kind of mask."""
    stock.POSITIONS = recipe["positions"]
    model = stock.build(recipe)
    model = Outputs(model) if "own" in recipe else stock.Answers(model, recipe["outputs"], recipe.get("pool"))
    model.eval()
    cases = Cases()
    for kind, arrays in rows(recipe):
        cases.add(kind, *stock.run(model, recipe, arrays))
    export(model, recipe, arrays, folder / "model.onnx")
    cases.save(folder)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    work(make)
