"""What fusebert wrote is a model too: fused ONNX files and SavedModels are found, loaded with the numbers that their
operator has, optimised in another precision, and left alone in their own."""

import json
from pathlib import Path

import families
import numpy as np
import pytest
import zoo

import fusebert
from fusebert.errors import FusebertError
from fusebert.measure.runners.evaluator import Evaluator
from fusebert.onnxruntime import session
from fusebert.source import OnnxFile, open, open_graph, open_tensorflow
from fusebert.values.operator import is_rounded

ONNX = ["onnx-bert-sequence", "onnx-bert-masked-mean", "onnx-roberta-sequence", "onnx-bert-fp16", "onnx-own-unbiased"]
TENSORFLOW = ["tf-bert-sequence", "tf-distilbert", "tf1-frozen"]
PRECISIONS = ["fp32", "bf16", "int8", "int8-bf16"]


def fuse(name: str, tmp_path: Path, precision: str, **options: object) -> Path:
    """A model of the zoo, optimised for its own framework."""
    model = zoo.get(name).make()
    out = tmp_path / f"{precision}{model.suffix}"
    fusebert.optimize(
        model, out, precision, None if model.suffix != ".onnx" else "onnxruntime", verify=False, **options
    )
    return out


def shown(path: Path) -> list[tuple]:
    """All that is told of the encoders of a model, but for the names of tensors."""
    return [
        (
            len(f.layers),
            f.hidden,
            f.heads,
            f.inner,
            f.activation,
            np.float32(f.epsilon),
            np.float32(f.scale),
            f.mask.kind,
            f.readers,
        )
        for f in open_graph(path).finding.encoders
    ]


def answers(path: Path, feeds: dict) -> dict:
    """What the framework's operator answers: ONNX Runtime's, or for TensorFlow's our own evaluator's."""
    if path.suffix == ".onnx":
        running = session(path, threads=1)
        names = [given.name for given in running.get_inputs()]
        return dict(
            zip([o.name for o in running.get_outputs()], running.run(None, {n: feeds[n] for n in names}), strict=True)
        )
    return Evaluator(open_tensorflow(path)).answer(feeds)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", [*ONNX, *TENSORFLOW])
def test_the_operator_is_found_as_the_encoder_that_it_replaced(name, precision, tmp_path):
    path = fuse(name, tmp_path, precision)
    assert shown(path) == shown(zoo.get(name).make())
    assert all(found.operator is not None for found in open_graph(path).finding.encoders)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", ["onnx-bert-sequence", "onnx-roberta-sequence", "tf-bert-sequence"])
def test_it_is_loaded_with_the_numbers_of_its_operator(name, precision, tmp_path):
    """In its own precision, which nobody names, as near as two ways to compute a head in floats."""
    entry, path = zoo.get(name), fuse(name, tmp_path, precision)
    model = fusebert.load(path)
    assert model.plan.precision == precision
    for kind in entry.kinds:
        feeds = entry.inputs(kind)
        wanted = answers(path, feeds)
        roles = open_graph(path).assembled.inputs
        ids, mask, types = (
            feeds.get(roles.get(role, "").split(":")[0].removeprefix("serving_default_"))
            for role in ("ids", "mask", "types")
        )
        got = model.run(ids, mask, types)
        assert np.abs(got["logits"] - wanted["logits"]).max() < 2e-5


def test_ranges_stay_fixed(tmp_path):
    ranges = np.tile(np.array([-9, 9], np.float32), (3, 4, 1))
    path = fuse("onnx-bert-sequence", tmp_path, "int8", ranges=ranges)
    model = fusebert.load(path)
    assert model.plan.static
    assert [block.first.high for block in model.plan.blocks] == [9.0] * 6


@pytest.mark.parametrize("name", ["onnx-bert-sequence", "onnx-bert-masked-mean", "tf-bert-sequence"])
def test_another_precision_is_made_and_compared(name, tmp_path):
    path = fuse(name, tmp_path, "fp32")
    target = "onnxruntime" if path.suffix == ".onnx" else "tensorflow"
    report = fusebert.optimize(path, tmp_path / f"again{path.suffix}", "int8", target)
    assert report.data()["verdict"] == "same answers within tolerance"
    direct = fuse(name, tmp_path, "int8")
    feeds = zoo.get(name).inputs()
    for a, b in zip(
        answers(tmp_path / f"again{path.suffix}", feeds).values(), answers(direct, feeds).values(), strict=True
    ):
        assert np.array_equal(a, b)  # as from the model that it was made from


@pytest.mark.parametrize("name", ["onnx-bert-sequence", "tf1-frozen"])
def test_in_its_own_precision_it_is_fused_already(name, tmp_path, run):
    path = fuse(name, tmp_path, "int8")
    told = run("optimize", path, "-o", tmp_path / f"again{path.suffix}", "--precision", "int8", code=2)
    assert "is fused already, in int8" in told
    assert not (tmp_path / f"again{path.suffix}").exists()


def test_what_was_rounded_does_not_come_back(tmp_path):
    """An int8 ONNX file has no floats any more; it keeps its numbers where other things about it change."""
    path = fuse("onnx-bert-sequence", tmp_path, "int8")
    for precision in ("fp32", "bf16", "int8-bf16"):
        with pytest.raises(FusebertError, match="weights are int8 already"):
            fusebert.optimize(path, tmp_path / "again.onnx", precision, "onnxruntime")
        with pytest.raises(FusebertError, match="weights are int8 already"):
            fusebert.load(path, precision)
    with pytest.raises(FusebertError, match="weights are int8 already"):
        fusebert.optimize(path, tmp_path / "again.onnx", "int8", "stock-onnxruntime")
    fusebert.optimize(path, tmp_path / "narrow.onnx", "int8", "onnxruntime", int32=True)
    feeds = zoo.get("onnx-bert-sequence").inputs()
    narrow = {name: array.astype(np.int32) for name, array in feeds.items()}
    assert np.array_equal(answers(path, feeds)["logits"], answers(tmp_path / "narrow.onnx", narrow)["logits"])


def test_a_saved_model_has_its_floats_still(tmp_path):
    path = fuse("tf-bert-sequence", tmp_path, "int8")
    assert not is_rounded(open_graph(path).assembled.network.encoder)
    report = fusebert.optimize(path, tmp_path / "floats", "fp32")
    assert report.data()["verdict"] == "same answers within tolerance"
    feeds = zoo.get("tf-bert-sequence").inputs()
    assert (
        np.abs(answers(tmp_path / "floats", feeds)["logits"] - zoo.get("tf-bert-sequence").outputs()["logits"]).max()
        < 1e-4
    )


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_it_becomes_an_artifact(precision, tmp_path):
    path = fuse("onnx-bert-sequence", tmp_path, precision)
    report = fusebert.optimize(path, tmp_path / "artifact", precision, "standalone")
    assert report.data()["verdict"] == "same answers within tolerance"
    ids = zoo.get("onnx-bert-sequence").inputs()["input_ids"]
    wanted, got = (fusebert.load(one).run(ids)["logits"] for one in (path, tmp_path / "artifact"))
    assert np.array_equal(wanted, got)


def test_hidden_positions_stay_as_they_were_chosen(tmp_path):
    path = fuse("onnx-bert-mean", tmp_path, "fp32", padding="skip")
    fusebert.optimize(path, tmp_path / "again.onnx", "bf16", "onnxruntime")
    (found,) = OnnxFile(tmp_path / "again.onnx").finding.encoders
    assert found.operator.attributes["padding"] == "skip"


def test_commands_take_it(tmp_path, run):
    path = fuse("onnx-bert-sequence", tmp_path, "int8")
    told = json.loads(run("inspect", path, "--json"))
    assert [row["operator"] for row in told["fused"]] == ["fusebert.Encoder"]
    assert "precision int8" in told["fused"][0]["settings"]
    assert told["encoders"][0]["readers"] == ["first token"]
    assert told["misses"] == []
    told = run("bench", path, "--precision", "int8", "--batch-size", 1, "--sequence-length", 8, "--samples", 2)
    assert "int8" in told


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_weights_of_both_sides_are_stored_once(precision, tmp_path):
    """Two encoders with the same weights, as siamese models have."""
    path = fuse("onnx-siamese", tmp_path, precision)
    first, second = (found.operator.inputs[2:] for found in OnnxFile(path).finding.encoders)
    assert first == second
    large = [weight.read().tobytes() for weight in fusebert.read(path).weights.values() if np.prod(weight.shape) > 64]
    assert len(large) == len(set(large))


@pytest.mark.parametrize("target", ["onnxruntime", "tensorflow"])
def test_an_operator_with_a_layout_is_a_model_too(target, tmp_path):
    """ALBERT: blocks that run more than once are read as the operator has them, and written in another precision."""
    folder, _ = families.make(tmp_path / "checkpoint", "albert")
    suffix = ".onnx" if target == "onnxruntime" else ""
    path = tmp_path / f"fused{suffix}"
    fusebert.optimize(folder, path, "fp32", target, verify=False)
    (found,) = open_graph(path).finding.encoders
    assert found.operator is not None
    encoder, own = open_graph(path).assembled.network.encoder, open(folder).network().encoder
    assert (encoder.order, len(encoder.blocks)) == (own.order, len(own.blocks))
    ids = np.random.default_rng(3).integers(5, 97, (2, 11))
    got, want = (fusebert.load(one, "fp32").run(ids)["last_hidden_state"] for one in (path, folder))
    assert np.array_equal(got, want)
    for precision in ("bf16", "int8"):
        again = tmp_path / f"{precision}{suffix}"
        report = fusebert.optimize(path, again, precision, target)
        assert report.data()["verdict"] == "same answers within tolerance"
