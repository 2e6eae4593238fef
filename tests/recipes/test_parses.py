"""Each command of the pattern tools parses its model once."""

import pytest
import zoo

from fusebert.formats.tensorflow import file
from fusebert.recipes import configure, extract, recipe, replace
from fusebert.recipes.configure import Settings
from fusebert.rewrite.tensorflow import rewrite_tensorflow
from fusebert.source import open_tensorflow
from fusebert.values.target import FusedTensorFlow


@pytest.fixture
def parsed(monkeypatch):
    """The files that were parsed, in order."""
    seen = []

    def counted(path, name, parse=file.parse):
        seen.append(path)
        return parse(path, name)

    monkeypatch.setattr(file, "parse", counted)
    return seen


def test_each_command_parses_the_model_once(tmp_path, parsed):
    model = zoo.get("tf1-frozen").make()
    fused, pattern, made = (tmp_path / name for name in ("fused.pb", "pattern.pb", "recipe.pb"))
    rewrite_tensorflow(open_tensorflow(model), fused, FusedTensorFlow())
    assert parsed == [model]
    parsed.clear()
    configure.configure_op(fused, settings=Settings(max_seq_len=16))
    assert parsed == [fused]
    parsed.clear()
    seeds = ["bert/encoder/layer_2/output/LayerNorm/batchnorm/add_1"]
    barriers = ["bert/encoder/Reshape_1", "bert/encoder/Reshape", "strided_slice", "strided_slice_1"]
    extract.extract_pattern(model, pattern, seeds, barriers, ["Identity", "Const"])
    assert parsed == [model]
    parsed.clear()
    recipe.make_recipe(pattern, made, model=model)
    assert parsed == [model]
    parsed.clear()
    replace.replace_pattern(model, made, tmp_path / "out.pb")
    assert parsed == [model]
