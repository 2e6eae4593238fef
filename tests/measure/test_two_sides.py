"""A model with two sides, siamese or not, is asked about different texts on them; what they share is stored once."""

import numpy as np
import onnx
import pytest
import zoo

import fusebert
from fusebert.measure.compare import compare
from fusebert.measure.runners import open_runner

FEW = {"samples": 4, "batch_size": 2, "sequence_length": 8}


@pytest.fixture(scope="module")
def exchanged(tmp_path_factory):
    """The siamese model of the zoo with left and right for each other."""
    path = tmp_path_factory.mktemp("exchanged") / "model.onnx"
    model = onnx.load(zoo.get("onnx-siamese").make())
    other = {"left": "right", "right": "left"}
    for node in model.graph.node:
        node.output[:] = [other.get(name, name) for name in node.output]
        node.input[:] = [other.get(name, name) for name in node.input]
    onnx.save(model, path)
    return path


def test_both_sides_get_texts_of_their_own():
    runner = open_runner(zoo.get("onnx-siamese").make())
    ids, mask = np.arange(1, 13).reshape(2, 6), np.array([[1] * 6, [1] * 4 + [0] * 2])
    feeds = runner.feeds(ids, mask, mask * 0)
    np.testing.assert_array_equal(feeds["input_ids"], ids)
    assert (feeds["other_ids"] != ids)[mask != 0].mean() > 0.8
    np.testing.assert_array_equal(feeds["other_ids"][mask == 0], ids[mask == 0])
    np.testing.assert_array_equal(np.sort(feeds["other_ids"][mask != 0]), np.sort(ids[mask != 0]))
    np.testing.assert_array_equal(feeds["other_mask"], mask)


def test_a_model_with_its_sides_exchanged_is_another_one(exchanged):
    path = zoo.get("onnx-siamese").make()
    assert compare(path, path, **FEW).same
    assert not compare(path, exchanged, **FEW).same


@pytest.mark.parametrize("target", ["onnxruntime", "stock-onnxruntime"])
@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_shared_weights_are_stored_once(tmp_path, target, precision):
    out = tmp_path / "out.onnx"
    report = fusebert.optimize(zoo.get("onnx-siamese").make(), out, precision, target).data()
    assert report["verdict"] == "same answers within tolerance"
    assert len(report["encoders"]) == 2
    stored = [weight.SerializeToString() for weight in onnx.load(out).graph.initializer]
    bare = []
    for data in stored:
        weight = onnx.TensorProto.FromString(data)
        weight.name = ""
        bare.append(weight.SerializeToString())
    large = [data for data in bare if len(data) > 500]
    assert len(large) == len(set(large))


def test_two_sides_of_tensorflow_are_two_calls_of_one_function(tmp_path):
    """The function is fused once, and each call is asked about texts of its own."""
    tf = pytest.importorskip("tensorflow")
    inner = tf.saved_model.load(str(zoo.get("tf-bert-sequence").make()))
    call = inner.signatures["serving_default"]
    names = sorted(call.structured_input_signature[1])

    class Siamese(tf.Module):
        @tf.function(
            input_signature=[tf.TensorSpec([None, None], tf.int32, f"{name}_{s}") for s in "ab" for name in names]
        )
        def score(self, *given):
            sides = given[: len(names)], given[len(names) :]
            left, right = (call(**dict(zip(names, side, strict=True)))["logits"] for side in sides)
            return {"similarity": tf.reduce_sum(left * right, -1)}

    module = Siamese()
    module.inner = inner
    tf.saved_model.save(module, str(tmp_path / "siamese"), signatures=module.score)
    report = fusebert.optimize(tmp_path / "siamese", tmp_path / "out", "fp32")
    assert report.facts["verdict"] == "same answers within tolerance"
    assert [row[1] for row in report.tables[0].rows] == [3]
    assert "(attention_mask_b, input_ids_b, token_type_ids_b) got the same tokens at other positions" in str(
        report.notes
    )
    assert not any(".fusebert-" in note for note in report.notes)
