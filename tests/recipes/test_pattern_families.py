"""The four manual steps on every family: what comes out runs in TensorFlow and answers as the original did."""

import os
from functools import cache

import pytest
import zoo

from fusebert.errors import DifferentError, FusebertError
from fusebert.formats.tensorflow.messages import message, set_attribute
from fusebert.recipes.configure import Settings, configure_op
from fusebert.recipes.extract import extract_pattern
from fusebert.recipes.pattern import load, save, to_text
from fusebert.recipes.recipe import make_recipe
from fusebert.recipes.replace import NotFoundError, replace_pattern
from fusebert.rewrite.tensorflow import rewrite_tensorflow
from fusebert.source import open_tensorflow
from fusebert.values.target import FusedTensorFlow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow")


def hugging_face(name, encoder="encoder", last="output/LayerNorm"):
    return (
        [f"{name}/{encoder}/layer_._2/{last}/batchnorm/add_1"],
        [f"{name}/embeddings/LayerNorm/batchnorm/add_1", f"{name}/Cast"],
        ["ReadVariableOp", "Const"],
    )


TF1 = (
    ["bert/encoder/layer_2/output/LayerNorm/batchnorm/add_1"],
    ["bert/encoder/Reshape_1", "bert/encoder/Reshape", "strided_slice", "strided_slice_1"],
    ["Identity", "Const"],
)
OFFICIAL = "bert_encoder_v2/transformer/layer_{}/output_layer_norm/batchnorm/add_1"
OFFICIAL_BARRIERS = ["bert_encoder_v2/embedding_dropout/Identity", "bert_encoder_v2/self_attention_mask/BroadcastTo"]
SEEDS = {  # seeds, barriers, barrier operations
    "tf-bert": hugging_face("tf_bert_model/bert"),
    "tf-roberta": hugging_face("tf_roberta_model/roberta"),
    "tf-distilbert": hugging_face("tf_distil_bert_model/distilbert", "transformer", "output_layer_norm"),
    "tf-official": ([OFFICIAL.format(i) for i in range(3)], OFFICIAL_BARRIERS, ["ReadVariableOp", "Const"]),
    "tf-official-first": ([OFFICIAL.format(2)], OFFICIAL_BARRIERS, ["ReadVariableOp", "Const"]),
    "tf-bert-frozen": (*hugging_face("tf_bert_model/bert")[:2], ["Const"]),
    "tf1-saved": TF1,
    "tf1-frozen": TF1,
}


@cache
def function_of(name):
    """The function that has the seed, which for Netron's user is the one with the picture of layers."""
    graphs = open_tensorflow(zoo.get(name).make()).file
    seed = SEEDS[name][0][0]
    return next(scope.function for scope in graphs.scopes(graphs.meta(0)) if seed in scope.nodes)


@pytest.fixture(scope="module")
def recipes(tmp_path_factory):
    """A recipe of each family, in binary and as text."""
    made = {}

    def get(name, suffix=".pb"):
        if (name, suffix) not in made:
            folder, model = tmp_path_factory.mktemp(name), zoo.get(name).make()
            seeds, barriers, ops = SEEDS[name]
            extract_pattern(model, folder / f"pattern{suffix}", seeds, barriers, ops, function_of(name))
            make_recipe(folder / f"pattern{suffix}", folder / f"recipe{suffix}", model=model)
            made[name, suffix] = folder / f"recipe{suffix}"
        return made[name, suffix]

    return get


def error_of(original, made):
    from fusebert.measure.compare import compare
    from fusebert.measure.runners import open_runner

    runners = (open_runner(path).as_written() for path in (original, made))
    same = compare(*runners, samples=4, sequence_length=16)
    assert same.same
    return max(difference.worst_error for difference in same)


@pytest.mark.parametrize("name", SEEDS)
@pytest.mark.parametrize("suffix", [".pb", ".pbtxt"])
def test_four_steps_give_the_same_answers(name, suffix, recipes, tmp_path):
    model = zoo.get(name).make()
    out = tmp_path / ("out" if model.is_dir() else "out.pb")
    report = replace_pattern(model, recipes(name, suffix), out)
    assert report.facts["occurrences"] == 1
    configured = configure_op(out, settings=Settings(quantization=False, bfloat16=False, max_seq_len=128))
    assert not configured.notes
    assert error_of(model, out) < 1e-4


OTHERS = [
    ("tf-bert", "tf-bert-sequence"), ("tf-bert", "tf-bert-question"), ("tf-roberta", "tf-roberta-sequence"),
    ("tf-distilbert", "tf-distilbert-sequence"), ("tf1-saved", "tf1-frozen"), ("tf1-frozen", "tf1-frozen-classifier"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "other"), OTHERS)
def test_a_recipe_works_on_another_model_of_its_family(source, other, recipes, tmp_path):
    model = zoo.get(other).make()
    out = tmp_path / ("out" if model.is_dir() else "out.pb")
    replace_pattern(model, recipes(source), out)
    assert error_of(model, out) < 1e-4


def test_a_recipe_with_other_constants_is_refused(recipes, tmp_path):
    with pytest.raises(NotFoundError, match=r"the constant .*batchnorm/add/y is 1e-05, but .* is 1e-12"):
        replace_pattern(zoo.get("tf-roberta").make(), recipes("tf-bert"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_with_another_activation_is_refused(recipes, tmp_path):
    with pytest.raises(NotFoundError, match=r"it is .*, but the pattern has"):
        replace_pattern(zoo.get("tf-bert-tanh").make(), recipes("tf-bert"), tmp_path / "out")


def test_1_hidden_states_are_not_wired_to_the_last_layer(recipes, tmp_path):
    reason = "outside the pattern, reads|it is returned as"
    with pytest.raises(NotFoundError, match=reason):
        replace_pattern(zoo.get("tf-bert-taps").make(), recipes("tf-bert"), tmp_path / "out")


def test_14_other_spellings_and_depths_are_told_and_are_for_the_finder(recipes, tmp_path):
    """A recipe is one exporter's way to write one depth; the one command needs none."""
    with pytest.raises(NotFoundError, match=r"it is .*, but the pattern has"):
        replace_pattern(zoo.get("tf-official-first").make(), recipes("tf-bert"), tmp_path / "out")
    for name in ("tf-official-first", "keras-own", "tf-bert-erf-sum"):
        assert (
            len(rewrite_tensorflow(open_tensorflow(zoo.get(name).make()), tmp_path / name, FusedTensorFlow()).cuts) == 1
        )


def test_18_a_recipe_that_computes_something_else_is_not_written(recipes, tmp_path):
    made = load(recipes("tf-bert"), "Recipe")
    for entry in made.target_node.attr:
        if entry.key == "HiddenAct":
            entry.value.s = b"relu"
    save(tmp_path / "wrong.pb", made)
    model = zoo.get("tf-bert").make()
    with pytest.raises(FusebertError, match="HiddenAct relu"):
        replace_pattern(model, tmp_path / "wrong.pb", tmp_path / "out")
    with pytest.raises(DifferentError, match="nothing was written"):
        replace_pattern(model, tmp_path / "wrong.pb", tmp_path / "out", force=True, verify=True)
    assert not (tmp_path / "out").exists()
    report = replace_pattern(model, recipes("tf-bert"), tmp_path / "out", verify=True)
    assert any("the answers agree within tolerance" in note for note in report.notes)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"MaskValue": -1.0}, r"adds -1e\+04 where the mask is 0, but fused_bert has MaskValue -1$"),
        ({"MaskValue": 10000.0}, "has MaskValue 1e"),
        ({"AdditiveMask": True}, "has AdditiveMask, and adds the mask itself"),
        ({"MaskValue": -1e9}, None),
        ({}, None),
    ],
)
def test_a_node_that_hides_otherwise_is_refused(settings, problem, recipes, tmp_path):
    """What the mask adds to scores stands in the pattern, as activation and epsilon do. Numbers that hide as well are
    only different where nothing at all is seen."""
    node = load(recipes("tf-bert"), "Recipe").target_node
    for name, value in settings.items():
        set_attribute(node.attr.add(key=name).value, value)
    (tmp_path / "node_def.pbtxt").write_text(to_text(node))
    given = recipes("tf-bert").with_name("pattern.pb"), tmp_path / "recipe.pb", tmp_path / "node_def.pbtxt"
    if problem is None:
        said = [note for note in make_recipe(*given).notes if "MaskValue" in note]
        assert len(said) == len(settings)
        assert all("MaskValue -1e+09, and the pattern adds -1e+04: a sequence" in note for note in said)
    else:
        with pytest.raises(FusebertError, match=problem.replace("$", "; to use it anyway: --force")):
            make_recipe(*given)


def test_a_graph_file_beside_the_original_is_switched_by_a_link(recipes, tmp_path):
    from shutil import copytree

    model = copytree(zoo.get("tf-bert").make(), tmp_path / "model")
    replace_pattern(model, recipes("tf-bert"), model / "modified_saved_model.pb")
    configure_op(model / "modified_saved_model.pb", settings=Settings(max_seq_len=64))
    (model / "saved_model.pb").rename(model / "original_saved_model.pb")
    (model / "saved_model.pb").symlink_to("modified_saved_model.pb")
    report = configure_op(model, settings=Settings(bfloat16=False, quantization=False))
    assert ("MaxSequenceLength", "64") in report.tables[1].rows
    assert (model / "saved_model.pb").is_symlink()
    assert error_of(zoo.get("tf-bert").make(), model) < 1e-4


@pytest.mark.parametrize("name", ["tf-bert", "tf-official-first", "tf1-saved"])
def test_a_node_definition_by_hand_is_what_the_finder_derives(name, recipes, tmp_path):
    """Without ports and in another order of attributes, as people write it."""
    node = load(recipes(name), "Recipe").target_node
    assert len(node.input) == 2 + 16 * 3
    for i, text in enumerate(node.input):
        node.input[i] = text.partition(":")[0]
    (tmp_path / "node_def.pbtxt").write_text(to_text(node))
    pattern = recipes(name).with_name("pattern.pb")
    make_recipe(pattern, tmp_path / "recipe.pb", tmp_path / "node_def.pbtxt")
    report = replace_pattern(zoo.get(name).make(), tmp_path / "recipe.pb", tmp_path / "out.pb")
    assert report.facts["occurrences"] == 1


def test_the_mask_may_be_taken_where_it_is_added(tmp_path):
    model = zoo.get("tf-bert").make()
    seeds, barriers, ops = SEEDS["tf-bert"]
    name = "tf_bert_model/bert"
    extract_pattern(model, tmp_path / "p.pb", seeds, [barriers[0], f"{name}/Mul"], ops, function_of("tf-bert"))
    make_recipe(tmp_path / "p.pb", tmp_path / "r.pb", model=model)
    node = load(tmp_path / "r.pb", "Recipe").target_node
    assert node.input[1].startswith(f"{name}/Mul:")
    assert any(entry.key == "AdditiveMask" and entry.value.b for entry in node.attr)
    replace_pattern(model, tmp_path / "r.pb", tmp_path / "out")
    assert error_of(model, tmp_path / "out") < 1e-4


@pytest.mark.parametrize(
    ("seeds", "barriers", "reason"),
    [
        (SEEDS["tf-bert"][0], [SEEDS["tf-bert"][1][0], "attention_mask"], None),
        (["tf_bert_model/bert/encoder/layer_._1/output/LayerNorm/batchnorm/add_1"], SEEDS["tf-bert"][1], None),
        (["tf_bert_model/bert/pooler/dense/Tanh"], SEEDS["tf-bert"][1], "is not the output of a layer"),
        (
            SEEDS["tf-bert"][0],
            ["tf_bert_model/bert/embeddings/add", "tf_bert_model/bert/Cast"],
            "no input of the pattern is the encoder's input",
        ),
    ],
)
def test_other_cuts_are_derived_or_refused_with_the_reason(seeds, barriers, reason, tmp_path):
    model = zoo.get("tf-bert").make()
    ops = ["ReadVariableOp", "Const"]
    extract_pattern(model, tmp_path / "p.pb", seeds, barriers, ops, function_of("tf-bert"))
    if reason is None:
        make_recipe(tmp_path / "p.pb", tmp_path / "r.pb", model=model)
        layers = 3 if "layer_._2" in seeds[0] else 2
        assert len(load(tmp_path / "r.pb", "Recipe").target_node.input) == 2 + 16 * layers
    else:
        with pytest.raises(FusebertError, match=reason):
            make_recipe(tmp_path / "p.pb", tmp_path / "r.pb", model=model)
        assert not (tmp_path / "r.pb").exists()


@pytest.fixture(scope="module")
def earlier():
    """Pattern and Recipe as the earlier tools had them: generated from their description, over TensorFlow's NodeDef."""
    import tensorflow as tf  # noqa: F401 (registers its messages)
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="pattern.proto", package="model_modifier", syntax="proto3")
    file.dependency.append("tensorflow/core/framework/node_def.proto")
    pattern, recipe = file.message_type.add(name="Pattern"), file.message_type.add(name="Recipe")
    node, own = ".tensorflow.NodeDef", ".model_modifier.Pattern"
    pattern.field.add(name="seed_nodes", number=1, label=3, type=11, type_name=node)
    pattern.field.add(name="internal_nodes", number=2, label=3, type=11, type_name=node)
    pattern.field.add(name="inputs", number=3, label=3, type=9)
    recipe.field.add(name="source_pattern", number=1, label=1, type=11, type_name=own)
    recipe.field.add(name="target_node", number=2, label=1, type=11, type_name=node)
    pool = descriptor_pool.Default()
    pool.Add(file)
    find = pool.FindMessageTypeByName
    return {name: message_factory.GetMessageClass(find(f"model_modifier.{name}")) for name in ("Pattern", "Recipe")}


@pytest.mark.parametrize("text", [False, True], ids=["binary", "text"])
def test_files_of_the_earlier_tools_load_and_lose_nothing(earlier, recipes, tmp_path, text):
    from google.protobuf import text_format

    ours = load(recipes("tf-bert"), "Recipe")
    del ours.source_pattern.input_nodes[:], ours.outputs[:]
    theirs = earlier["Recipe"].FromString(ours.SerializeToString())
    theirs.source_pattern.seed_nodes[0].experimental_debug_info.original_node_names.append("was")
    theirs.source_pattern.seed_nodes[0].experimental_type.type_id = 1000
    data = text_format.MessageToString(theirs).encode() if text else theirs.SerializeToString()
    (tmp_path / "recipe").write_bytes(data)
    loaded = load(tmp_path / "recipe", "Recipe")
    assert earlier["Recipe"].FromString(loaded.SerializeToString()) == theirs
    save(tmp_path / "again.pbtxt", loaded)
    assert text_format.Parse((tmp_path / "again.pbtxt").read_text(), earlier["Recipe"]()) == theirs
    report = replace_pattern(zoo.get("tf-bert").make(), tmp_path / "recipe", tmp_path / "out.pb")
    assert any("Constants were not compared" in note for note in report.notes)


def test_patterns_of_ours_load_in_the_earlier_tools(earlier, recipes):
    theirs = earlier["Recipe"].FromString(recipes("tf-bert").read_bytes())
    assert len(theirs.source_pattern.seed_nodes) == 1
    assert len(theirs.source_pattern.inputs) == 298
    assert theirs.target_node.op == "Bert"
    back = message("Recipe").FromString(theirs.SerializeToString())  # what they do not know, they keep
    assert len(back.source_pattern.input_nodes) == 298
