"""What `inspect` tells of a TensorFlow model can be given to `extract-pattern`: the command that it prints, and the
names that it shows."""

import json
import shlex

import pytest
import zoo
from golden.answers import GOLDEN

from fusebert.recipes.extract import extract_pattern
from fusebert.recipes.recipe import make_recipe
from fusebert.recipes.replace import replace_pattern

FAMILIES = ["tf-bert-sequence", "tf-official", "tf-distilbert", "tf-bert-frozen", "tf1-saved", "tf1-saved-resource"]


@pytest.mark.parametrize("name", [*FAMILIES, "keras-own", "tf1-frozen", "tf-roberta"])
def test_the_printed_command_runs_and_its_pattern_makes_a_recipe(run, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    model = zoo.get(name).make()
    (line,) = run("inspect", "--pattern", model).splitlines()
    program, *words = shlex.split(line)
    assert (program, words[0]) == ("fusebert", "extract-pattern")
    run(*words)
    make_recipe("pattern.pb", "recipe.pb", model=model)
    report = replace_pattern(model, "recipe.pb", "out" if model.is_dir() else "out.pb")
    assert report.facts["occurrences"] == 1


@pytest.mark.parametrize("name", ["tf-bert-sequence", "tf1-saved"])
def test_names_that_inspect_shows_are_understood(run, tmp_path, name):
    model = zoo.get(name).make()
    (found,) = json.loads(run("inspect", model, "--json"))["encoders"]
    function = None if found["where"] == "main graph" else found["where"]
    ops = ["ReadVariableOp", "Identity", "Const", "Placeholder"]
    made = extract_pattern(model, tmp_path / "p.pb", [found["output"]], [found["input"]], ops, function)
    assert made.facts["internal_nodes"] > 60


def test_where_there_is_nothing_to_propose(run, tmp_path):
    assert "give a SavedModel or a frozen TensorFlow graph" in run(
        "inspect", "--pattern", GOLDEN / "onnx" / "source.onnx", code=2
    )
    assert json.loads(run("inspect", "--pattern", zoo.get("tf1-saved").make(), "--json"))["commands"]
