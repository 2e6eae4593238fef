"""Triton's own clients against the server: every call they make, with texts and with token tensors, and the same bits
as the model gives alone."""

import numpy as np
import pytest
from serve_process import speak

import fusebert
from fusebert.serve.protocols import oip_grpc

TEXTS, PAIRS = ["the cat sat", "the dog ran on the mat ."], ["the cat", "mat"]
IDS, TYPES = np.array([[2, 5, 6, 7, 3], [2, 5, 3, 0, 0]]), np.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
LOWEST = float(np.finfo(np.float32).min)


@pytest.fixture(scope="module")
def spoken(served, tmp_path_factory):
    """What the clients returned."""
    path = tmp_path_factory.mktemp("triton") / "spoken.json"
    return speak("triton.py", path, str(served.port), str(served.grpc_port))


@pytest.fixture(params=["http", "grpc"])
def said(spoken, request):
    return spoken[request.param]


def load(models, name):
    return fusebert.load(models[name], threads=1)


def same(got, want):
    return np.array_equal(np.array(got, np.float32), want)


def test_the_states_of_server_and_models(said):
    assert said["states"] == [True, True, True]
    assert said["missing"] is False
    assert said["server"]["name"] == "fusebert"
    assert "binary_tensor_data" in said["server"]["extensions"]
    assert {"name": "none", "version": "1", "state": "READY"}.items() <= said["index"][0].items()


def test_metadata_and_configuration_name_the_same_tensors(said):
    inputs = {tensor["name"]: tensor for tensor in said["metadata"]["inputs"]}
    assert list(inputs) == ["text", "text_pair", "input_ids", "attention_mask", "token_type_ids"]
    assert [int(n) for n in inputs["text"]["shape"]] == [-1, 1]
    assert said["metadata"]["versions"] == ["1"]
    config = said["config"]
    assert config["max_batch_size"] == 64
    assert [tensor["name"] for tensor in config["input"]] == list(inputs)
    assert all(tensor["optional"] for tensor in config["input"])
    kinds = {tensor["name"]: tensor["data_type"] for tensor in [*config["input"], *config["output"]]}
    assert (kinds["text"], kinds["input_ids"], kinds["embedding"]) == ("TYPE_STRING", "TYPE_INT64", "TYPE_FP32")


def test_texts_and_pairs_give_the_bits_of_the_model_alone(said, models):
    model = load(models, "none")
    embedding = model.encode(TEXTS)
    assert same(said["embedding"]["embedding"], embedding)
    assert same(said["all"]["embedding"], embedding)
    tokens = model.tokenizer(TEXTS)
    for text, own in enumerate(tokens):
        alone = model.run([own.ids])
        rows = np.array(said["all"]["last_hidden_state"][text], np.float32)
        assert same(rows[: len(own.ids)], alone["last_hidden_state"][0])
        assert not rows[len(own.ids) :].any()
        assert same(said["all"]["pooler_output"][text], alone["pooler_output"][0])
    classifier = load(models, "sequence")
    pairs = classifier.tokenizer(list(zip(TEXTS, PAIRS, strict=True)))
    for got, own in zip(said["pair"]["logits"], pairs, strict=True):
        assert same(got, classifier.run([own.ids], token_type_ids=[own.kinds])["logits"][0])


def test_token_tensors_give_the_bits_of_the_model_alone(said, models):
    want = load(models, "none").run(IDS, IDS > 0, TYPES, padding="skip")
    assert same(said["tokens"]["last_hidden_state"], want["last_hidden_state"])
    assert same(said["tokens"]["pooler_output"], want["pooler_output"])
    question = load(models, "question").run(IDS, IDS > 0)
    for name in ("start_logits", "end_logits"):
        assert same(said["question"][name], np.where(IDS > 0, question[name], LOWEST))


def test_classification_tells_values_places_and_labels(said, models):
    logits = load(models, "sequence").run(IDS)["logits"]
    want = [f"{row[i]:f}:{i}:label {i}" for row in logits for i in np.argsort(-row)[:2]]
    assert said["best"] == want


def test_identities_deadlines_and_errors(said):
    assert said["identity"] == "seven"
    assert "in time" in said["too late"]
    words = ["no model 'nothing'", "version '2'", "text or input_ids", "FP32", "sequence", "not loaded"]
    assert all(word in message for word, message in zip(words, said["wrong"], strict=True))


def test_statistics_count_requests_and_what_their_time_was_spent_on(said):
    (own,) = said["statistics"]["model_stats"]
    assert int(own["inference_count"]) >= int(own["execution_count"]) > 0
    stages = {name: (int(d.get("count", 0)), int(d.get("ns", 0))) for name, d in own["inference_stats"].items()}
    assert stages["success"][0] >= 4
    parts = sum(stages[name][1] for name in ("queue", "compute_input", "compute_infer", "compute_output"))
    assert 0 < stages["compute_infer"][1] < parts <= stages["success"][1] + 1000
    assert stages["fail"][0] >= 1


def test_lists_instead_of_bytes_and_many_at_once(spoken):
    assert spoken["http"]["listed"] == spoken["http"]["embedding"]
    assert [one["embedding"] for one in spoken["http"]["waited"]] == [spoken["http"]["all"]["embedding"]] * 3


def test_a_stream_answers_each_message_in_order(spoken):
    first, error, last = spoken["grpc"]["streamed"]
    assert first == last == spoken["grpc"]["embedding"]
    assert "no model 'nothing'" in error


def test_every_field_has_the_number_and_type_of_the_clients_own_messages(spoken):
    theirs = spoken["grpc"]["messages"]
    for name, message in oip_grpc.MESSAGES.items():
        for field in message.DESCRIPTOR.fields:
            assert theirs[name][field.name] == [field.number, field.type], (name, field.name)
