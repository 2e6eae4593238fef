"""The pipe in spaCy itself: found without an import, and what it writes into a Doc is what predict says."""

import numpy as np
import pytest
import stock

import fusebert
from fusebert import FusebertError

spacy = pytest.importorskip("spacy", reason="run make test-integrations")
TEXTS = ["the cat sat", "a red dog ran", "who is the dog"]
KINDS = {0: "O", 1: "B-ANIMAL", 2: "I-ANIMAL"}


def pipeline(folder, **config):
    from fusebert.integrations import spacy as ours  # as its entry point does, where the package is installed

    assert ours.make
    nlp = spacy.blank("en")
    nlp.add_pipe("fusebert", config={"model": str(folder), **config})
    return nlp


def test_vectors(tmp_path):
    folder = stock.make_reader(tmp_path)
    docs = list(pipeline(folder, precision="int8").pipe(TEXTS, batch_size=2))
    want = fusebert.load(folder, precision="int8").encode(TEXTS)
    assert np.abs(np.stack([doc.vector for doc in docs]) - want).max() < 1e-6


def test_categories(tmp_path):
    folder = stock.make_reader(tmp_path, "sequence")
    nlp, (want,) = pipeline(folder), fusebert.load(folder).predict(TEXTS[:1])
    assert nlp(TEXTS[0]).cats == pytest.approx(want.scores)


def test_entities(tmp_path):
    folder = stock.make_reader(tmp_path, "token", id2label=KINDS, label2id={v: k for k, v in KINDS.items()})
    nlp, model = pipeline(folder), fusebert.load(folder)
    some = 0
    for text in TEXTS:
        doc, found = nlp(text), model.predict([text])[0]
        marked = {i for span in doc.ents for i in range(span.start_char, span.end_char)}
        wanted = {i for piece in found if piece.label != "O" for i in range(piece.start, piece.end)}
        assert {i for i in marked if text[i] != " "} == wanted
        assert {span.label_ for span in doc.ents} <= {"ANIMAL"}
        some += len(doc.ents)
    assert some


@pytest.mark.parametrize(
    ("labels", "want"),
    [
        ("B-X I-X O", ["X:ab cd"]),
        ("B-X B-X O", ["X:ab", "X:cd"]),
        ("B-X I-Y I-Y", ["X:ab", "Y:cd ef"]),
        ("X O X", ["X:ab", "X:ef"]),
        ("O O O", []),
    ],
)
def test_pieces_join(labels, want):
    from fusebert.engine.answers import Span
    from fusebert.integrations.spacy import entities

    doc = spacy.blank("en")("ab cd ef")
    found = [Span("", 3 * i, 3 * i + 2, label, 1.0) for i, label in enumerate(labels.split())]
    assert [f"{span.label_}:{span.text}" for span in entities(doc, found)] == want


def test_a_head_that_says_nothing_of_texts_is_refused(tmp_path):
    with pytest.raises(FusebertError, match="not question"):
        pipeline(stock.make_reader(tmp_path, "question"))
