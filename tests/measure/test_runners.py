"""Runners: every kind of model answers a padded batch through one face, with its inputs found whatever their names."""

import subprocess
import sys

import numpy as np
import pytest
import stock
import tiny
import zoo
from checkpoints import make_checkpoint

import fusebert
from fusebert.errors import FusebertError
from fusebert.measure.inputs import OPTIONS
from fusebert.measure.runners import open_runner

# Exporters, numbers and names of inputs, masks, fusions; and graphs in which no encoder is found.
ONNX = (
    "onnx-bert-14-sdpa", "onnx-bert-dynamo-20", "onnx-bert-17-static", "onnx-bert-1-input", "onnx-bert-2-inputs",
    "onnx-roberta", "onnx-distilbert", "onnx-own-native", "onnx-pair", "refuse-bert-causal", "refuse-own-pre-norm",
    "tf2onnx-tf1", "tf2onnx-official", "ort-fused-bert", "ort-fused-bert-mask-index", "int8-dynamic-bert",
)  # fmt: skip
TENSORFLOW = ("tf-bert", "tf-bert-frozen", "tf-official-erf", "tf1-text", "tf1-saved-static")


def assert_answers_as_its_framework(name: str) -> None:
    entry = zoo.get(name)
    runner = open_runner(entry.make(), level=0)
    runner = runner.as_written() or runner  # what TensorFlow makes of a graph depends on the processor
    names = {role: given for role in ("ids", "mask", "types") if (given := getattr(entry, role))}
    if entry.file.startswith("model.pb"):
        names = {role: entry.input_tensors[given] for role, given in names.items()}
    assert {role: given.name for role, given in runner.inputs.items()} == names
    for kind in entry.kinds if not runner.roles.more else ():  # which has inputs of its own for the second encoder
        given = entry.inputs(kind)
        ids = given[entry.ids]
        feeds = [given[key] if key else np.ones_like(ids) for key in (entry.ids, entry.mask, entry.types)]
        answers = runner.run(*feeds)
        for key, want in entry.outputs(kind).items():
            key = key if key in answers else entry.output_tensors[key]
            if key in answers:  # a frozen graph does not say what it is asked for besides its ends
                assert stock.error(answers[key].astype(np.float64), want) <= max(entry.tolerance, 1e-4), (kind, key)
    assert set(runner.outputs) <= set(runner.run(*(np.ones((entry.recipe.get("static") or (3, 7)), np.int64),) * 3))
    runner.close()


@pytest.mark.parametrize("name", ONNX)
def test_onnx_files_by_onnxruntime(name):
    assert_answers_as_its_framework(name)


@pytest.mark.parametrize("name", TENSORFLOW)
def test_savedmodels_and_frozen_graphs_by_tensorflow(name):
    assert_answers_as_its_framework(name)


@pytest.mark.parametrize(("name", "have"), [
    ("onnx-bert-14-eager", (60, 2, 40, {}, None, "fp32")),
    ("onnx-bert-17-static", (60, 2, 6, {0: 2, 1: 6}, None, "fp32")),
    ("onnx-roberta", (60, None, 38, {}, 1, "fp32")),
    ("onnx-bert-fp16", (60, 2, 40, {}, None, "bf16")),
    ("int8-dynamic-bert", (60, 2, 40, {}, None, "int8")),
    ("refuse-bert-causal", (60, None, 40, {}, None, "fp32")),
])  # fmt: skip
def test_what_inputs_take_is_known(name, have):
    roles = open_runner(zoo.get(name).make(), level=0).roles
    assert (
        roles.vocabulary, roles.kinds, roles.longest, dict(roles.settled), roles.padding_id, roles.precision
    ) == have  # fmt: skip


def test_inputs_without_telling_names_are_found_by_what_is_done_with_them(tmp_path):
    entry = zoo.get("onnx-bert-14-eager")
    names = {"input_ids": "input.3", "attention_mask": "input.1", "token_type_ids": "input.2"}
    runner = open_runner(tiny.edited(entry.make(), tmp_path / "model.onnx", names))
    assert {role: given.name for role, given in runner.inputs.items()} == {
        "ids": "input.3", "mask": "input.1", "types": "input.2",
    }  # fmt: skip


def test_where_the_graph_tells_nothing_names_and_types_do_and_the_user(tmp_path):
    def roles(inputs: dict[str, str], told: dict[str, str | None] | None = None) -> dict[str, str]:
        names = list(inputs)
        formula = {"y": f"{names[0]} * {names[-1]}", "z": f"{names[0]} * {names[len(names) // 2]}"}
        path = tiny.make(tmp_path / "model.onnx", formula, inputs)
        return {role: given.name for role, given in open_runner(path, told=told).inputs.items()}

    assert roles({"x": "int64"}) == {"ids": "x"}
    assert roles({"x": "int64", "visible": "float"}) == {"ids": "x", "mask": "visible"}
    assert roles({"segments": "int32", "in_mask": "int32", "words": "int32"}) == {
        "ids": "words", "mask": "in_mask", "types": "segments",
    }  # fmt: skip
    with pytest.raises(FusebertError, match=r"a \(int64\), b \(int64\).* --input-ids"):
        roles({"a": "int64", "b": "int64"})
    assert roles({"a": "int64", "b": "int64"}, {"ids": "b", "mask": "a"}) == {"ids": "b", "mask": "a"}
    assert roles({"ids": "int64", "mask": "int64"}, {"ids": "mask", "types": "ids", "mask": None}) == {
        "ids": "mask", "types": "ids",
    }  # fmt: skip
    with pytest.raises(FusebertError, match="no input 'c'; there are a, b"):
        roles({"a": "int64", "b": "int64"}, {"ids": "c"})
    with pytest.raises(FusebertError, match="two things at once"):
        roles({"a": "int64", "b": "int64"}, {"ids": "a", "mask": "a"})
    assert set(OPTIONS) == {"ids", "mask", "types"}


def test_inputs_are_converted_to_what_is_declared(tmp_path):
    inputs = {"ids": "int32", "mask": "float"}
    runner = open_runner(tiny.make(tmp_path / "a.onnx", {"y": "ids * mask"}, inputs))
    ids, mask = np.array([[3, 4, 5]]), np.array([[1, 0, 1]])
    assert {name: array.dtype.name for name, array in runner.feeds(ids, mask, mask).items()} == {
        "ids": "int32", "mask": "float32",
    }  # fmt: skip
    assert runner.run(ids, mask, mask)["y"].tolist() == [[3, 0, 5]]
    lengths = open_runner(tiny.make(tmp_path / "b.onnx", {"y": "mask * 1", "z": "ids * 1"}, ranks={"mask": 1}))
    assert lengths.run(ids, mask, mask)["y"].tolist() == [2]
    deep = open_runner(
        tiny.make(tmp_path / "c.onnx", {"y": "mask * 1", "z": "ids * 1"}, shape=("a", "b", "c"), ranks={"mask": 3})
    )
    with pytest.raises(FusebertError, match="mask has 3 dimensions"):
        deep.run(ids, mask, mask)


@pytest.mark.parametrize(("family", "head"), [
    ("bert", "none"), ("bert", "question"), ("roberta", "sequence"), ("distilbert", "masked"), ("electra", "token"),
])  # fmt: skip
def test_checkpoints_by_torch_traced_or_not_and_by_fusebert(tmp_path, family, head):
    folder = stock.make(tmp_path / "model", family, head)
    ids, mask = np.random.default_rng(0).integers(5, 211, (3, 9)), stock.masks(3, 9, "right", 1)
    types = np.zeros_like(ids)
    want = stock.run(stock.load(folder, head), ids, mask)
    fusebert.load(folder).save(tmp_path / "artifact")
    runners = [open_runner(folder), open_runner(folder, traced=True), open_runner(folder, "fp32")]
    runners.append(open_runner(tmp_path / "artifact"))
    runners += [open_runner(folder, "fp32", traced=traced, in_torch=True) for traced in (False, True)]
    engines = [runner.name.rpartition(" by ")[2] for runner in runners]
    assert engines == [
        "torch", "torch traced", "fusebert fp32", "fusebert fp32", "torch with fusebert fp32",
        "torch traced with fusebert fp32",
    ]  # fmt: skip
    for runner in runners:
        for shape in ((3, 9), (1, 4)):
            got = runner.run(*(array[: shape[0], : shape[1]] for array in (ids, mask, types)))
        got = runner.run(ids, mask, types)
        assert set(got) == set(runner.outputs) == set(want)
        for name, value in want.items():
            visible = mask == 1 if value.shape[:2] == mask.shape else slice(None)
            assert stock.error(got[name][visible], value[visible]) < 1e-4
        assert ("types" in runner.inputs) == (family != "distilbert")
        assert runner.roles.longest == (518 if family == "roberta" else 520)
        assert runner.roles.vocabulary == 211
        runner.close()


def test_a_checkpoint_is_run_by_stock_torch_even_where_fusebert_torch_is_imported(tmp_path):
    folder = make_checkpoint(tmp_path / "model")
    code = (
        "import sys, fusebert.torch, transformers\n"
        "from fusebert.measure.runners import open_runner\n"
        "fused = lambda model: type(model.encoder).__module__.startswith('fusebert')\n"
        "print(fused(open_runner(sys.argv[1])._model), fused(transformers.AutoModel.from_pretrained(sys.argv[1])))"
    )
    ended = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    assert ended.stdout.split()[-2:] == ["False", "True"]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize(("name", "target"), [
    ("onnx-bert-sequence", "onnxruntime"), ("onnx-bert-14-eager", "stock-onnxruntime"), ("tf-bert", "tensorflow"),
])  # fmt: skip
def test_fused_models_get_our_operator_and_tell_their_precision(tmp_path, name, target, precision):
    entry = zoo.get(name)
    out = tmp_path / ("saved_model" if target == "tensorflow" else "model.onnx")
    fusebert.optimize(entry.make(), out, precision, target, verify=False)
    runner, original = open_runner(out), open_runner(entry.make())
    assert {role: given.name for role, given in runner.inputs.items()} == {
        role: given.name for role, given in original.inputs.items()
    }
    assert runner.roles.precision == precision
    assert (runner.roles.vocabulary, runner.roles.kinds) == (60, 2)
    given = entry.inputs("holes")
    feeds = [given[key] for key in (entry.ids, entry.mask, entry.types)]
    answers = runner.run(*feeds)
    for key, want in entry.outputs("holes").items():
        visible = feeds[1] == 1 if want.ndim == 3 else slice(None)
        assert stock.error(answers[key][visible], want[visible]) < (1e-4 if precision == "fp32" else 0.2)


@pytest.mark.parametrize("framework", ["onnxruntime", "tensorflow", "torch", "transformers"])
def test_a_missing_framework_is_one_clear_error(tmp_path, monkeypatch, framework):
    if framework == "onnxruntime":
        path = tiny.make(tmp_path / "model.onnx", {"y": "ids * mask"})
    elif framework == "tensorflow":
        path = zoo.get("tf1-frozen").make()
    else:
        path = make_checkpoint(tmp_path / "model")
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(FusebertError, match=rf"needs {framework}.*pip install {framework}"):
        open_runner(path)


def test_what_is_no_model_and_what_a_framework_refuses(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no model at all")
    for name in ("nothing", "empty", "text"):
        with pytest.raises(FusebertError, match=r"does not exist|is not a supported model|neither an ONNX model nor"):
            open_runner(tmp_path / name)
    (tmp_path / "cut.onnx").write_bytes(tiny.make(tmp_path / "a.onnx", {"y": "ids * mask"}).read_bytes()[:-20])
    with pytest.raises(FusebertError, match="not accepted by ONNX Runtime"):
        open_runner(tmp_path / "cut.onnx")
    with pytest.raises(FusebertError, match="level 3 is unknown"):
        open_runner(tmp_path / "a.onnx", level=3)
    folder = stock.make(tmp_path / "checkpoint", "bert")
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(FusebertError, match="not accepted by transformers"):
        open_runner(folder)
    runner = open_runner(zoo.get("onnx-bert-14-eager").make())
    long = np.ones((1, 41), np.int64)
    with pytest.raises(FusebertError, match="fails on 1 x 41 ids"):
        runner.run(long, long, long)
