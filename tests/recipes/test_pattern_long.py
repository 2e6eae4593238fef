"""The four manual steps on every family, as a SavedModel and frozen, with files as text and as binary; recipes that go
from one model to another, and those that do not."""

import os
import re

import pytest
from zoo import long

from fusebert.formats.tensorflow.tensor import tensor_value
from fusebert.measure.compare import compare
from fusebert.measure.runners import open_runner
from fusebert.recipes.configure import Settings, configure_op
from fusebert.recipes.extract import extract_pattern
from fusebert.recipes.pattern import load, save
from fusebert.recipes.recipe import make_recipe
from fusebert.recipes.replace import NotFoundError, replace_pattern
from fusebert.source import open_tensorflow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow")

MODELS = [name for name in long.RECIPES if "whole" not in name]
ENDS = {  # what names of seed, embeddings and mask (and of what else is a barrier) end with
    "hf": (r"layer_\._{}/(output/LayerNorm|output_layer_norm)/batchnorm/add_1",
           r"embeddings/LayerNorm/batchnorm/add_1|bert\w*/Cast"),
    "official": (r"layer_{}/output_layer_norm/batchnorm/add_1",
                 r"encoder\w*/dropout(_\d+)?/Identity|embeddings/layer_norm/batchnorm/add_1|self_attention_mask\w*/BroadcastTo"),
    "tf1": (r"layer_{}/output/LayerNorm/batchnorm/add_1", r"encoder/Reshape(_1)?|^strided_slice(_1)?"),
}  # fmt: skip
OPS = {"saved_model": ["ReadVariableOp", "Const"], "frozen": ["Const"]}


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """A recipe of each model, as text."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "recipe.pbtxt"
            pattern, model = made[name].with_name("pattern.pbtxt"), long.get(name)
            seeds, barriers, function = places(model)
            ops = ["Identity", "Const"] if model.recipe["source"] == "tf1" else OPS[model.recipe["form"]]
            extract_pattern(model.path, pattern, seeds, barriers, ops, function)
            make_recipe(pattern, made[name], model=model.path)
        return made[name]

    return get


def places(model):
    """Seed, barriers and the function they are in, as somebody reads them off a picture of the graph."""
    seed, barrier = ENDS[model.recipe["source"]]
    seed = seed.format(model.recipe["sizes"]["layers"] - 1)
    graphs = open_tensorflow(model.path).file
    for scope in graphs.scopes(graphs.meta(0)):
        if seeds := [name for name in scope.nodes if re.search(f"(?:{seed})$", name)]:
            return seeds, [name for name in scope.nodes if re.search(f"(?:{barrier})$", name)], scope.function
    raise AssertionError(f"{model.name} has no node that ends with {seed}")


def error_of(original, made):
    runners = (open_runner(path).as_written() for path in (original, made))
    same = compare(*runners, batch_size=3, samples=3, sequence_length=16)
    assert same.same
    return max(difference.worst_error for difference in same)


@pytest.mark.parametrize("name", MODELS)
def test_four_steps_give_the_same_answers_from_text_and_from_binary(name, recipes, tmp_path):
    model = long.get(name).path
    text, binary = recipes(name), tmp_path / "recipe.pb"
    save(binary, load(text, "Recipe"))
    outs = [tmp_path / f"{form}{'' if model.is_dir() else '.pb'}" for form in ("text", "binary")]
    for recipe, out in zip((text, binary), outs, strict=True):
        replace_pattern(model, recipe, out)
        configure_op(out, settings=Settings(quantization=False, bfloat16=False, max_seq_len=128))
    files = [out / "saved_model.pb" if out.is_dir() else out for out in outs]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert error_of(model, outs[1]) < 1e-4


@pytest.mark.parametrize(
    ("source", "other"),
    [
        ("bert-classifier-frozen", "bert-question-saved_model"),
        ("bert-question-frozen", "bert-classifier-saved_model"),
        ("official-frozen", "official-classifier-saved_model"),
        ("official-classifier-frozen", "official-saved_model"),
    ],
)
def test_a_recipe_goes_from_a_frozen_model_to_a_saved_one_of_its_family(source, other, recipes, tmp_path):
    replace_pattern(long.get(other).path, recipes(source), tmp_path / "out")
    assert error_of(long.get(other).path, tmp_path / "out") < 1e-4


@pytest.mark.parametrize("name", MODELS)
def test_a_recipe_whose_constants_differ_is_refused_with_the_reason(name, recipes, tmp_path):
    """Epsilon, ten times as large."""
    recipe = load(recipes(name), "Recipe")
    changed = 0
    for node in recipe.source_pattern.input_nodes:
        for entry in node.attr:
            small = entry.key == "value" and not entry.value.tensor.tensor_shape.dim
            if small and 0 < (value := tensor_value(entry.value.tensor, node.name)) < 1e-4:
                entry.value.tensor.tensor_content = b""
                entry.value.tensor.float_val[:] = [float(value) * 10]
                changed += 1
    assert changed
    next(entry for entry in recipe.target_node.attr if entry.key == "LayerNormEpsilon").value.f *= 10
    save(tmp_path / "recipe.pb", recipe)
    out = tmp_path / "out"
    with pytest.raises(NotFoundError, match=r"the constant \S+ is 1e-\d+, but \S+ of the pattern is 1e-\d+"):
        replace_pattern(long.get(name).path, tmp_path / "recipe.pb", out)
    assert not out.exists()
