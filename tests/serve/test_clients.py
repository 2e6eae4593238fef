"""Stock clients against the server: those of OpenAI, LangChain, Hugging Face and Cohere; the same bits as the model
gives alone."""

import numpy as np
import pytest
from serve_process import speak

import fusebert
from fusebert.serve.calls import group

TEXTS = ["the cat sat", "the dog ran on the mat ."]


@pytest.fixture(scope="module")
def said(served, tmp_path_factory):
    """What the clients returned."""
    return speak("apis.py", tmp_path_factory.mktemp("clients") / "said.json", f"http://127.0.0.1:{served.port}")


@pytest.mark.parametrize("client", ["openai", "langchain-openai", "langchain-huggingface", "hub"])
def test_embeddings_have_the_bits_of_the_model_alone(said, models, client):
    wanted = fusebert.load(models["none"], threads=1).encode(TEXTS)
    assert np.array_equal(np.array(said[client], np.float32), wanted)


def test_similarities(said, models):
    first, second = fusebert.load(models["none"], threads=1).encode(TEXTS)
    assert said["similarity"] == pytest.approx([1, float(first @ second)], abs=1e-6)


def test_cohere_ranks(said, ranker):
    found = fusebert.load(ranker, threads=1).predict([("a cat", text) for text in TEXTS])
    scores = [label.scores["label 1"] for label in found]
    order = sorted(range(2), key=lambda i: -scores[i])
    assert said["cohere"] == [[i, pytest.approx(scores[i])] for i in order]
    assert said["cohere best"] == [[order[0], pytest.approx(scores[order[0]]), TEXTS[order[0]]]]


def test_the_root_does_what_a_model_is_for_in_hugging_faces_shapes(served, models):
    def ask(head, inputs):
        return served.ask("/invocations", {"inputs": inputs, "model": head})[2]

    label = fusebert.load(models["sequence"], threads=1).predict([TEXTS[0]])[0]
    assert ask("sequence", TEXTS[0])[0] == {"label": label.label, "score": label.score}
    spans = group(TEXTS[0], fusebert.load(models["token"], threads=1).predict([TEXTS[0]])[0])
    found = ask("token", TEXTS[:1])[0]
    assert [(e["entity_group"], e["word"], e["start"], e["end"]) for e in found] == [
        (span.label, span.text, span.start, span.end) for span in spans
    ]
    span = fusebert.load(models["question"], threads=1).predict([("the cat", "the dog ran")])[0]
    answer = ask("question", {"question": "the cat", "context": "the dog ran"})
    assert answer == {"answer": span.text, "start": span.start, "end": span.end, "score": span.score}
    assert "question" in ask("question", {"context": "the dog ran"})["error"]


def test_models_are_listed_and_errors_are_the_clients_own(said):
    assert said["models"][0] == "none"
    assert "no model 'nothing'" in said["unknown"]
    assert "at least one" in said["empty"]
