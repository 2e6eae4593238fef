"""A checkpoint becomes an ONNX file in one command: in ONNX's own operators, for every family and head, or with the
fused operator; both answer as transformers does."""

import json

import families
import numpy as np
import onnx
import onnxruntime
import pytest
import stock

import fusebert
import fusebert.source
from fusebert.errors import FusebertError, UnsupportedError
from fusebert.onnxruntime import session

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
PLAIN = [
    ("mpnet", "masked"), ("xlm-roberta-xl", "token"), ("modernbert", "question"),
    ("modernbert-biases-mean", "sequence"), ("deberta-v3", "none"), ("deberta-v2", "token"), ("nomic", "sequence"),
    ("gte", "masked"), ("jina-v3", "none"), ("albert", "sequence"), ("eurobert", "sequence"), ("gemma", "none"),
]  # fmt: skip
FUSED = [("bert", "sequence"), ("bert", "none"), ("roberta", "sequence"), ("distilbert", "token"), ("electra", "none")]


def answers(running, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    given = {one.name: feeds[one.name] for one in running.get_inputs()}
    return dict(zip([one.name for one in running.get_outputs()], running.run(None, given), strict=True))


def compute(folder, ids: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """What the checkpoint's Network answers, in NumPy."""
    return families.compute(fusebert.source.open(folder).network(), ids, mask)


def worst(got: dict, want: dict, mask: np.ndarray) -> float:
    """The largest error at visible positions."""
    seen = {name: mask == 1 if value.shape[:2] == mask.shape else slice(None) for name, value in got.items()}
    return max(stock.error(value[seen[name]], want[name][seen[name]]) for name, value in got.items())


@pytest.mark.parametrize(("case", "head"), PLAIN)
def test_onnx_itself_runs_every_family(case, head, tmp_path):
    folder, model = families.make(tmp_path / "checkpoint", case, head)
    report = fusebert.optimize(folder, tmp_path / "plain.onnx", target="onnx")
    assert report.data()["verdict"] == "same answers within tolerance"
    onnx.checker.check_model(str(tmp_path / "plain.onnx"), full_check=True)
    assert {entry.domain for entry in onnx.load(tmp_path / "plain.onnx").opset_import} == {""}
    ids, mask = np.random.default_rng(1).integers(5, 97, (3, 23)), stock.masks(3, 23, "right", seed=3)
    running = onnxruntime.InferenceSession(str(tmp_path / "plain.onnx"), providers=["CPUExecutionProvider"])
    assert worst(answers(running, ids, mask), stock.run(model, ids, mask), mask) < 1e-5


@pytest.mark.parametrize(("family", "head"), FUSED)
def test_the_fused_operator_answers_as_transformers(family, head, tmp_path):
    sizes = stock.ODD if family == "bert" and head == "sequence" else None
    folder = stock.make(tmp_path / "checkpoint", family, head, sizes=sizes)
    report = fusebert.optimize(folder, tmp_path / "fast.onnx", "fp32", "onnxruntime")
    assert report.data()["verdict"] == "same answers within tolerance"
    operations = [node.op_type for node in onnx.load(tmp_path / "fast.onnx").graph.node]
    assert operations.count("Encoder") == 1
    assert "Softmax" not in operations
    ids, mask = np.random.default_rng(2).integers(5, 97, (3, 17)), stock.masks(3, 17, "holes", seed=2)
    want = stock.run(stock.load(folder, head), ids, mask)
    assert worst(answers(session(tmp_path / "fast.onnx", threads=1), ids, mask), want, mask) < 2e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "fast.onnx"]


@pytest.mark.parametrize(("case", "head"), PLAIN)
def test_the_fused_operator_carries_every_family(case, head, tmp_path):
    """Weights by name: a layout says what the blocks are. Lengths that nobody tuned it for, padded on either side and
    with holes."""
    folder, model = families.make(tmp_path / "checkpoint", case, head)
    report = fusebert.optimize(folder, tmp_path / "fast.onnx", "fp32", "onnxruntime")
    assert report.data()["verdict"] == "same answers within tolerance"
    graph = onnx.load(tmp_path / "fast.onnx").graph
    (fused,) = (node for node in graph.node if node.op_type == "Encoder")
    assert any(attribute.name == "layout" for attribute in fused.attribute)
    assert "Softmax" not in {node.op_type for node in graph.node}
    running = session(tmp_path / "fast.onnx", threads=1)
    for length, kind in ((1, "right"), (7, "left"), (129, "holes")):
        ids, mask = np.random.default_rng(length).integers(5, 97, (3, length)), stock.masks(3, length, kind, seed=1)
        want = compute(folder, ids, mask)
        assert worst(answers(running, ids, mask), want, mask) < 2e-5
    ids, mask = np.random.default_rng(1).integers(5, 97, (3, 23)), stock.masks(3, 23, "right", seed=3)
    assert worst(answers(running, ids, mask), stock.run(model, ids, mask), mask) < 2e-5


@pytest.mark.parametrize("precision", ["bf16", "int8", "int8-bf16"])
@pytest.mark.parametrize("case", ["modernbert", "deberta-v2", "albert", "gemma"])
def test_forms_answer_in_every_precision_as_fusebert_does(case, precision, tmp_path):
    folder, _ = families.make(tmp_path / "checkpoint", case, odd=case != "gemma")
    fusebert.optimize(folder, tmp_path / "fast.onnx", precision, "onnxruntime")
    fusebert.optimize(folder, tmp_path / "artifact", precision, verify=False)
    ids, mask = np.random.default_rng(4).integers(5, 97, (2, 33)), stock.masks(2, 33, "left", seed=4)
    got = answers(session(tmp_path / "fast.onnx", threads=1), ids, mask)["last_hidden_state"]
    want = fusebert.load(tmp_path / "artifact").run(ids, mask)["last_hidden_state"]
    assert stock.error(got[mask == 1], want[mask == 1]) < 2e-2  # rows of int8 begin with embeddings of another sum


def test_shared_blocks_and_tables_are_stored_once_beside_the_operator(tmp_path):
    for case, shared in (("albert", "query.weight"), ("mpnet", "position.table")):
        folder, _ = families.make(tmp_path / case, case)
        fusebert.optimize(folder, tmp_path / f"{case}.onnx", "fp32", "onnxruntime", verify=False)
        graph = onnx.load(tmp_path / f"{case}.onnx").graph
        blocks = len(fusebert.source.open(folder).network().encoder.blocks)
        stored = [one.name for one in graph.initializer if one.name.endswith(shared)]
        assert len(stored) == (1 if case == "mpnet" else blocks // 2)


def test_options_of_the_fused_operator(tmp_path):
    folder, model = families.make(tmp_path / "checkpoint", "modernbert", "sequence")
    options = {"int32": True, "float16": True, "length": 12}
    fusebert.optimize(folder, tmp_path / "fast.onnx", "bf16", "onnxruntime", **options)
    ids, mask = np.random.default_rng(5).integers(5, 97, (2, 12)), stock.masks(2, 12, "right", seed=5)
    running = session(tmp_path / "fast.onnx", threads=1)
    assert [(one.type, one.shape[1]) for one in running.get_inputs()] == [("tensor(int32)", 12)] * 2
    got = answers(running, ids.astype(np.int32), mask.astype(np.int32))
    assert worst(got, stock.run(model, ids, mask), mask) < 5e-2
    with pytest.raises(FusebertError, match="a sequence has 1 to 640 tokens, not 641"):
        fusebert.optimize(folder, tmp_path / "long.onnx", "bf16", "onnxruntime", length=641)


def test_a_name_of_a_file_picks_the_target(tmp_path, run):
    folder = stock.make(tmp_path / "checkpoint", "bert", "sequence")
    told = json.loads(run("optimize", folder, "-o", tmp_path / "fast.onnx", "--json"))
    assert (told["for"], told["precision"]) == ("onnxruntime", "int8")
    assert (tmp_path / "fast.onnx").is_file()
    run("optimize", folder, "-o", tmp_path / "fast.pb", code=2)
    run("optimize", folder, "-o", tmp_path / "folder", "--for", "onnx", code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "fast.onnx"]
    again = run("optimize", folder, "-o", tmp_path / "fast.onnx", "--for", "onnx", code=2)
    assert "--overwrite" in again
    assert "would be written" in run("optimize", folder, "-o", tmp_path / "other.onnx", "--dry-run")
    assert "has heads 4, not 99" in run("optimize", folder, "-o", tmp_path / "other.onnx", "--num-heads", 99, code=2)
    assert not (tmp_path / "other.onnx").exists()


@pytest.mark.parametrize(("case", "what"), [
    ("modernbert", "norms before a block, .*rotary positions|rotary positions, .*norms before a block"),
    ("mpnet", "relative positions"), ("deberta-v3", "disentangled positions"), ("gte", "gated feed-forwards"),
])  # fmt: skip
def test_stock_kernels_cannot_express_every_family(case, what, tmp_path):
    """It says what they lack and what could be used, and writes nothing."""
    folder, _ = families.make(tmp_path / "checkpoint", case)
    with pytest.raises(UnsupportedError, match=rf"stock kernels cannot carry .*({what}).*--for onnxruntime"):
        fusebert.optimize(folder, tmp_path / "fast.onnx", "fp32", "stock-onnxruntime")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]


def test_an_artifact_is_an_artifact_already(tmp_path):
    folder = stock.make(tmp_path / "checkpoint", "bert")
    fusebert.optimize(folder, tmp_path / "artifact", "fp32", verify=False)
    for out, target in (("again", None), ("again.onnx", "onnxruntime"), ("again.onnx", "onnx")):
        with pytest.raises(FusebertError, match="is an artifact already"):
            fusebert.optimize(tmp_path / "artifact", tmp_path / out, "fp32", target)


def test_shared_blocks_are_stored_once(tmp_path):
    folder, _ = families.make(tmp_path / "checkpoint", "albert")
    fusebert.optimize(folder, tmp_path / "plain.onnx", target="onnx", verify=False)
    stored = onnx.load(tmp_path / "plain.onnx").graph.initializer
    large = [one.raw_data for one in stored if len(one.raw_data) > 4096]
    assert len(large) == len(set(large))
