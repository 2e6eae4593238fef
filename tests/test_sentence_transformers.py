"""fusebert.sentence_transformers: three classes of that library give the answers they gave, by the fused operator."""

import numpy as np
import pytest
import stock
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder

import fusebert.torch
from fusebert import UnsupportedError
from fusebert.sentence_transformers import load
from fusebert.torch.encoder import Fused

TEXTS = ["the cat sat", "a red dog ran", "what", "who is the dog the cat the dog " * 6]
PAIRS = [(text, TEXTS[0]) for text in TEXTS]

pytestmark = pytest.mark.filterwarnings("ignore")


def original(kind, folder):
    with fusebert.torch.disabled():
        return kind(str(folder), device="cpu").eval()


def is_fused(model):
    return sum(isinstance(module, Fused) for module in model.modules()) == 1


def test_sentences(minilm):
    model = load(minilm)
    assert type(model) is SentenceTransformer
    assert is_fused(model)
    assert np.abs(model.encode(TEXTS) - original(SentenceTransformer, minilm).encode(TEXTS)).max() < 1e-5
    bytes_ = load(minilm, precision="int8", threads=1).encode(TEXTS)
    assert (stock.cosine(bytes_, model.encode(TEXTS)) > 0.99).all()
    assert (bytes_ != model.encode(TEXTS)).any()


def test_cross_encoders(tmp_path):
    folder = stock.make_reader(tmp_path, "sequence", num_labels=1)
    model = load(folder, CrossEncoder)
    assert is_fused(model)
    assert np.abs(model.predict(PAIRS) - original(CrossEncoder, folder).predict(PAIRS)).max() < 1e-5


def test_sparse_encoders(tmp_path):
    folder = stock.make_reader(tmp_path, "masked")
    model = load(folder, SparseEncoder)
    assert is_fused(model)
    got, want = (one.encode(TEXTS).to_dense().numpy() for one in (model, original(SparseEncoder, folder)))
    assert want.any()
    assert np.abs(got - want).max() < 1e-4


def test_what_cannot_be_fused_is_refused(tmp_path):
    folder = stock.make_reader(tmp_path, hidden_act="gelu_10")
    with pytest.raises(UnsupportedError):
        load(folder)
