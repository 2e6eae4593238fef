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


def test_layers_that_the_operator_cannot_carry_are_named(tmp_path):
    folder, _ = families.make(tmp_path / "checkpoint", "modernbert")
    with pytest.raises(UnsupportedError, match=r"the operator cannot carry its layers: .*--for onnx"):
        fusebert.optimize(folder, tmp_path / "fast.onnx", "fp32", "onnxruntime")
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
