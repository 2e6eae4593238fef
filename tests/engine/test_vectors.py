"""What one pass over texts gives beside embeddings, held against transformers' own logits and rows."""

import numpy as np
import pytest
import stock
import torch

import fusebert
from fusebert import FusebertError

TEXTS = ["the cat is red", "what is the dog", "blue"]
PAIRS = [("the cat", "the dog is red"), ("red", "blue")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {head: stock.make_reader(tmp_path_factory.mktemp(head), head) for head in ("none", "sequence", "masked")}


def logits_of(folder, head: str, model: fusebert.Model, text) -> np.ndarray:
    tokens = model.tokenizer([text])[0]
    with torch.no_grad():
        given = {"input_ids": torch.tensor([tokens.ids]), "token_type_ids": torch.tensor([tokens.kinds])}
        return stock.load(folder, head)(**given).logits.numpy()[0]


def test_weights_of_words_are_those_of_splade(folders):
    model = fusebert.load(folders["masked"])
    for text, got in zip(TEXTS, model.encode_sparse(TEXTS), strict=True):
        logits = logits_of(folders["masked"], "masked", model, text)
        want = np.log1p(np.maximum(logits, 0)).max(0)
        assert (np.flatnonzero(want > 1e-5) == got.ids[got.weights > 1e-5]).all()
        assert np.allclose(want[got.ids], got.weights, atol=1e-4)


def test_pairs_are_scored(folders):
    model = fusebert.load(folders["sequence"])
    want = np.array([logits_of(folders["sequence"], "sequence", model, pair) for pair in PAIRS])
    if want.shape[1] > 2:
        with pytest.raises(FusebertError, match="one output, or no and yes"):
            model.score(PAIRS)
        return
    assert np.allclose(model.score(PAIRS, raw=True), want[:, -1], atol=1e-4)
    shares = (
        torch.softmax(torch.tensor(want), 1)[:, 1] if want.shape[1] == 2 else torch.sigmoid(torch.tensor(want[:, 0]))
    )
    assert np.allclose(model.score(PAIRS), shares.numpy(), atol=1e-4)


def test_chunks_have_seen_the_whole_text(folders):
    model = fusebert.load(folders["none"])
    (rows,) = model.encode_tokens([TEXTS[0]])
    (means,) = model.encode_chunks([TEXTS[0]], [[(0, 7), (8, 14)]], normalize=False)
    spans = model.tokenizer([TEXTS[0]])[0].spans
    first = [i for i, span in enumerate(spans) if span[1] and span[0] < 7]
    assert np.allclose(means[0], rows[first].mean(0), atol=1e-6)
    (unit,) = model.encode_chunks([TEXTS[0]], [[(0, 7), (8, 14)]])
    assert np.allclose(np.linalg.norm(unit, axis=1), 1, atol=1e-5)


def test_a_chunk_without_tokens_is_an_error(folders):
    model = fusebert.load(folders["none"])
    with pytest.raises(FusebertError, match="no token begins in characters 100 to 120"):
        model.encode_chunks([TEXTS[0]], [[(100, 120)]])
    with pytest.raises(FusebertError, match="masked-LM head"):
        model.encode_sparse(TEXTS)
