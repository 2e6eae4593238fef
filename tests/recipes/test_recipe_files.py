"""Pattern and Recipe files, make-recipe, and the four commands as a user types them."""

import json
from contextlib import suppress

import pytest
from damage import damage
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from toys import frozen, graph_of, recipe

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.messages import message
from fusebert.recipes.configure import Settings, configure_op
from fusebert.recipes.extract import extract_pattern
from fusebert.recipes.pattern import is_text, load, save, to_text
from fusebert.recipes.recipe import make_recipe
from fusebert.recipes.replace import replace_pattern

TEXT = "x Placeholder\nw Const value=2\nhalf Const value=0.5\na Mul x w\nc AddV2 a half\nout Relu c"
NODE = 'name: "fused"\nop: "Fused"\ninput: "x"\ninput: "w"\n'


@pytest.fixture
def model(tmp_path):
    return frozen(tmp_path / "model.pb", TEXT)


@pytest.fixture
def pattern(tmp_path, model):
    extract_pattern(model, tmp_path / "pattern.pb", ["c"], ["x", "w"], ["Const"])
    return tmp_path / "pattern.pb"


def test_a_pattern_has_what_the_earlier_tools_put_there(pattern):
    made = load(pattern, "Pattern")
    assert [node.name for node in made.seed_nodes] == ["c"]
    assert [node.name for node in made.internal_nodes] == ["a"]
    assert list(made.inputs) == ["half", "w", "x"]
    assert [(node.name, node.op) for node in made.input_nodes] == [
        ("half", "Const"),
        ("w", "Const"),
        ("x", "Placeholder"),
    ]


@pytest.mark.parametrize("suffix", [".pb", ".pbtxt", ""])
def test_form_is_written_by_suffix_and_read_by_content(tmp_path, pattern, suffix):
    made = load(pattern, "Pattern")
    save(tmp_path / f"one{suffix}", made)
    assert is_text((tmp_path / f"one{suffix}").read_bytes()) == (suffix == ".pbtxt")
    (tmp_path / f"one{suffix}").rename(tmp_path / "misnamed.txt")
    assert load(tmp_path / "misnamed.txt", "Pattern") == made


@pytest.mark.parametrize("name", ["Pattern", "Recipe", "NodeDef"])
@pytest.mark.parametrize("data", [b"", b"hello", b"\x00\xff\x12\x7f", b"node: {", b"\x0a\xff\xff\xff\xff\x0f"])
def test_what_is_no_message_is_refused_in_a_sentence(tmp_path, name, data):
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(FusebertError, match=str(tmp_path / "file")):
        load(tmp_path / "file", name)


def test_a_tensor_that_points_elsewhere_is_refused(tmp_path):
    made = message("NodeDef")
    made.name, made.op = "a", "Const"
    made.attr.add(key="value").value.tensor.mapped = 0
    save(tmp_path / "node.pb", made)
    with pytest.raises(FusebertError, match="unknown field in attribute value of a"):
        load(tmp_path / "node.pb", "NodeDef")


def test_make_recipe_bundles_what_belongs_together(tmp_path, pattern, model):
    (tmp_path / "node.pbtxt").write_text(NODE)
    report = make_recipe(pattern, tmp_path / "recipe.pb", tmp_path / "node.pbtxt")
    assert report.facts["node_def"] == NODE
    assert report.facts["constants_compared"] == 1
    replace_pattern(model, tmp_path / "recipe.pb", tmp_path / "out.pb")
    assert "fused" in graph_of(tmp_path / "out.pb")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (NODE + 'input: "half_of_it"', "reads 'half_of_it', which is not an input of the pattern"),
        ('name: "fused"\nop: "Fused"\n', "has no inputs"),
        ('name: "fused"\ninput: "x"\n', "it has no op"),
        (NODE.replace("Fused", "Bert"), "has 0 weights; a layer has 16"),
        (NODE + 'inputs: "x"', "not a readable NodeDef"),
    ],
)
def test_make_recipe_refuses_what_does_not_belong_together(tmp_path, pattern, node, reason):
    (tmp_path / "node.pbtxt").write_text(node)
    with pytest.raises(FusebertError, match=reason):
        make_recipe(pattern, tmp_path / "recipe.pb", tmp_path / "node.pbtxt")
    assert not (tmp_path / "recipe.pb").exists()


def test_outputs_of_other_ops_are_named(tmp_path, pattern):
    (tmp_path / "node.pbtxt").write_text(NODE)
    make_recipe(pattern, tmp_path / "r.pb", tmp_path / "node.pbtxt", outputs=["c=result:1:2"])
    output = load(tmp_path / "r.pb", "Recipe").outputs[0]
    assert (output.seed, output.name, output.index, output.number) == ("c", "result", 1, 2)
    for wrong in ("d=result", "c=result:one"):
        with pytest.raises(FusebertError, match=r"is not a seed|is malformed; use SEED="):
            make_recipe(pattern, tmp_path / "r2.pb", tmp_path / "node.pbtxt", outputs=[wrong])


def test_the_commands_of_the_guide(run, tmp_path, model):
    """The arguments of the earlier tools, several names after one option."""
    run(
        "extract-pattern",
        model,
        "-o",
        tmp_path / "p.pb",
        "-s",
        "c",
        "-b",
        "x",
        "w",
        "-B",
        "Const",
        "Identity",
        "-m",
        "0",
    )
    assert list(load(tmp_path / "p.pb", "Pattern").inputs) == ["half", "w", "x"]
    (tmp_path / "node.pbtxt").write_text(NODE)
    run("make-recipe", tmp_path / "p.pb", tmp_path / "node.pbtxt", tmp_path / "r.pb")
    run("replace-pattern", model, "-r", tmp_path / "r.pb", "-o", tmp_path / "out.pb", "-l", "DEBUG")
    assert "fused" in graph_of(tmp_path / "out.pb")


def test_reports_are_data_too(run, tmp_path, model):
    words = ("-s", "c", "--barrier-nodes", "x", "w", "--barrier-ops", "Const", "--json")
    report = json.loads(run("extract-pattern", model, "-o", tmp_path / "p.pb", *words))
    assert (report["seeds"], report["internal_nodes"], report["inputs"], report["constants"]) == (1, 1, 3, 2)
    made = recipe(tmp_path / "r.pb", model, "c", "x w", "Const")
    report = json.loads(run("replace-pattern", model, "-r", made, "-o", tmp_path / "out.pb", "--explain", "--json"))
    assert report["replaced"][0]["node"] == "fused"
    assert report["not_replaced"] == []


def test_exit_codes_and_sentences(run, tmp_path, model):
    made = recipe(tmp_path / "r.pb", model, "c", "x w", "Const")
    other = frozen(tmp_path / "other.pb", TEXT.replace("value=0.5", "value=0.75"))
    said = run("replace-pattern", other, "-r", made, "-o", tmp_path / "out.pb", "--explain", code=2)
    assert "the constant half is 0.75, but half of the pattern is 0.5" in " ".join(said.split())
    assert not (tmp_path / "out.pb").exists()
    assert "at least one seed" in run("extract-pattern", model, "-o", tmp_path / "p", "--log", "INFO", code=2)
    assert "does not exist" in run("replace-pattern", model, "-r", tmp_path / "no", "-o", tmp_path / "o.pb", code=2)
    assert "no Bert node" in run("configure-op", model, "-q", code=2)
    assert "error" in json.loads(run("configure-op", model, "-q", "--json", code=2))
    run("make-recipe", tmp_path / "p.pb", code=2)


def test_h_is_not_help_in_configure_op(run, tmp_path):
    text = "x Placeholder\nm Placeholder\n" + "\n".join(f"w{i} Placeholder" for i in range(16))
    node = f"fused Bert x m {' '.join(f'w{i}' for i in range(16))} MaskT=DT_FLOAT NumWeights=16"
    model = frozen(tmp_path / "m.pb", f"{text}\n{node}\nout Relu fused")
    words = ("-h", 1024, "-a", 16, "-i", 4096, "-l", 1, "-s", 256, "-A", "gelu_erf", "-q", "-B", "-C", "-m", "int64")
    said = run("configure-op", model, *words, "-o", tmp_path / "out.pb", "--json")
    report = {row["attribute"]: row["value"] for row in json.loads(said)["attributes"]}
    wanted = {"HiddenSize": "1024", "NumAttentionHeads": "16", "IntermediateSize": "4096", "MaxSequenceLength": "256"}
    wanted |= {"HiddenAct": "gelu_erf", "QuantizableDataType": "qint8", "NonQuantizableDataType": "float32"}
    assert wanted.items() <= report.items()
    assert "The sizes were not checked" in said
    assert "DT_QINT8" in to_text(graph_of(tmp_path / "out.pb")["fused"])


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("which", ["model.pb", "pattern.pb", "recipe.pb", "recipe.pbtxt", "node.pbtxt"])
def test_damaged_files_are_refused_or_read_but_never_crash(tmp_path_factory, which, data):
    folder = tmp_path_factory.mktemp("damaged")
    model = frozen(folder / "model.pb", TEXT)
    extract_pattern(model, folder / "pattern.pb", ["c"], ["x", "w"], ["Const"])
    (folder / "node.pbtxt").write_text(NODE)
    for suffix in (".pb", ".pbtxt"):
        make_recipe(folder / "pattern.pb", folder / f"recipe{suffix}", folder / "node.pbtxt")
    path = folder / which
    path.write_bytes(data.draw(damage(path.read_bytes())))
    recipe_file = folder / ("recipe.pbtxt" if which.endswith("txt") else "recipe.pb")
    for work in (
        lambda: extract_pattern(model, folder / "p.pb", ["c"], ["x", "w"], ["Const"]),
        lambda: make_recipe(folder / "pattern.pb", folder / "r.pb", folder / "node.pbtxt"),
        lambda: replace_pattern(model, recipe_file, folder / "out.pb", explain=True),
        lambda: configure_op(model, settings=Settings(max_seq_len=16)),
    ):
        with suppress(FusebertError):
            work()
