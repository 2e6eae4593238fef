"""Model as callers have it: what they give as texts, keywords they know from elsewhere, pickles, copies, and reprs."""

import copy
import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest
import stock
import zoo

import fusebert
from fusebert import FusebertError
from fusebert.engine.model import Model

TEXTS = ["the cat is red", "what is the dog", "blue"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {head: stock.make_reader(tmp_path_factory.mktemp(head), head) for head in ("none", "sequence")}


@pytest.fixture(scope="module")
def encoder(folders):
    return fusebert.load(folders["none"])


@pytest.fixture(scope="module")
def classifier(folders):
    return fusebert.load(folders["sequence"])


@pytest.mark.parametrize(
    "given",
    [tuple(TEXTS), iter(TEXTS), np.array(TEXTS), np.array(TEXTS, object)],
    ids=["tuple", "iterator", "array of str", "array of objects"],
)
def test_texts_come_in_any_iterable(encoder, given):
    assert np.array_equal(encoder.encode(given), encoder.encode(TEXTS))


def test_a_generator_of_pairs_and_an_array_of_pairs(classifier):
    pairs = [("the cat", "the dog"), ("red", "blue")]
    want = classifier.predict(pairs)
    assert classifier.predict(pair for pair in pairs) == want
    assert classifier.predict(np.array(pairs)) == want


def test_a_column_of_pandas(encoder):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"text": TEXTS}, index=[7, 5, 3])
    assert np.array_equal(encoder.encode(frame["text"]), encoder.encode(TEXTS))


def test_a_single_text_has_a_single_answer(encoder, classifier):
    vector = encoder.encode("the cat is red")
    assert vector.shape == (64,)
    assert np.array_equal(vector, encoder.encode(TEXTS)[0])
    assert np.array_equal(encoder.encode(np.array("the cat is red")), vector)
    assert classifier.predict("blue") == classifier.predict(TEXTS)[2]
    assert encoder.encode([]).shape == (0, 64)


def test_a_bare_tuple_of_two_is_not_guessed_at(classifier):
    """It was taken for two texts, where the classifier is one of pairs."""
    with pytest.raises(FusebertError, match="a pair or two texts"):
        classifier.predict(("the cat", "the dog"))


def test_batch_size_bounds_what_runs_together(encoder, monkeypatch):
    sizes = []
    inner = Model._embed_tokens
    monkeypatch.setattr(Model, "_embed_tokens", lambda self, tokens: sizes.append(len(tokens)) or inner(self, tokens))
    assert np.array_equal(encoder.encode(TEXTS, batch_size=2), encoder.encode(TEXTS))
    assert sizes == [2, 1, 3]


def test_keywords_of_sentence_transformers(encoder, classifier):
    import torch

    want = encoder.encode(TEXTS)
    shown = {"show_progress_bar": True, "convert_to_numpy": True, "device": "cpu", "precision": "float32"}
    assert np.array_equal(encoder.encode(TEXTS, batch_size=32, **shown), want)
    tensor = encoder.encode(TEXTS, convert_to_tensor=True)
    assert torch.equal(tensor, torch.from_numpy(want))
    rows = encoder.encode(TEXTS, convert_to_numpy=False)
    assert isinstance(rows, list)
    assert torch.equal(rows[1], tensor[1])
    assert encoder.encode("blue", convert_to_tensor=True).shape == (64,)
    raw = encoder.encode(TEXTS, normalize_embeddings=False)
    assert np.array_equal(raw, encoder.encode(TEXTS, normalize=False))
    assert np.array_equal(encoder.encode(TEXTS, normalize_embeddings=True), want)
    assert classifier.predict(TEXTS, batch_size=8, show_progress_bar=False) == classifier.predict(TEXTS)
    with pytest.raises(FusebertError, match="Labels"):
        classifier.predict(TEXTS, convert_to_tensor=True)
    with pytest.raises(TypeError, match="'normalise'"):
        encoder.encode(TEXTS, normalise=True)


def test_a_folder_that_normalises_does_so_whatever_is_asked(minilm):
    """As SentenceTransformer.encode does, whose normalize_embeddings adds to the model's own steps."""
    model = fusebert.load(minilm)
    if model.network.sentence is None:
        pytest.skip("this wheel's model has no files of sentence-transformers")
    assert np.array_equal(model.encode(TEXTS, normalize_embeddings=False), model.encode(TEXTS))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_model_pickles_by_path_and_settings(folders, tmp_path, monkeypatch, precision):
    monkeypatch.chdir(folders["none"].parent)
    model = fusebert.load(folders["none"].name, precision, threads=1, padding="compute")
    written = pickle.dumps(model)
    assert len(written) < 1000
    monkeypatch.chdir(tmp_path)  # a worker may be elsewhere
    again = pickle.loads(written)
    assert (again.threads, again.padding, again.plan.precision) == (1, "compute", precision)
    assert np.array_equal(again.encode(TEXTS), model.encode(TEXTS))


def test_a_tokenizer_from_elsewhere_is_pickled_too(folders, tmp_path):
    for name in ("vocab.txt", "tokenizer_config.json", "tokenizer.json"):
        if (folders["none"] / name).is_file():
            (tmp_path / name).write_bytes((folders["none"] / name).read_bytes())
    model = fusebert.load(folders["none"])
    model.take_tokenizer(tmp_path)
    want = model.encode(TEXTS)
    written = pickle.dumps(model)
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(FusebertError, match="no tokenizer"):
        pickle.loads(written)
    assert np.array_equal(copy.copy(model).encode(TEXTS), want)


def test_a_model_that_was_not_loaded_says_how_to_pickle_it(encoder):
    with pytest.raises(FusebertError, match="save and load it"):
        pickle.dumps(Model(encoder.network, encoder.plan))


def test_copies_share_the_packed_weights(encoder):
    for other in (copy.copy(encoder), copy.deepcopy(encoder), copy.deepcopy({"model": [encoder]})["model"][0]):
        assert other is not encoder
        assert other.engine is encoder.engine
        assert np.array_equal(other.encode(TEXTS), encoder.encode(TEXTS))


def _encode(model, text):
    return model.encode(text)


def test_workers_of_other_processes_take_models(folders):
    """Those of joblib and of multiprocessing's spawn; Ray pickles with cloudpickle, as joblib does."""
    joblib, cloudpickle = pytest.importorskip("joblib"), pytest.importorskip("cloudpickle")
    model = fusebert.load(folders["none"], threads=1)
    want = model.encode(TEXTS)
    got = joblib.Parallel(n_jobs=2)(joblib.delayed(_encode)(model, text) for text in TEXTS)
    assert np.array_equal(np.stack(got), want)
    closure = cloudpickle.dumps(lambda: model.encode(TEXTS))
    assert np.array_equal(pickle.loads(closure)(), want)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert np.array_equal(np.stack(pool.starmap(_encode, [(model, text) for text in TEXTS])), want)


def test_reprs_are_short_and_say_what_it_is(folders, encoder, classifier):
    assert repr(encoder).startswith("<Model bert, 3 layers of 64, no head, fp32, threads=")
    assert "sequence head" in repr(classifier)
    from fusebert.verbs.run import run

    report = repr(run(folders["sequence"], TEXTS))
    assert "family bert" in report
    assert "labels (3 rows)" in report
    assert len(report) < 500
    path = zoo.get("onnx-bert-14-eager").make()
    source = fusebert.open(path)
    assert repr(source) == f"<ONNX model {str(path)!r}>"
    assert repr(source.finding).startswith("<Finding: an encoder of 3 layers of ")
    assert "inputs input_ids, attention_mask" in repr(source.graph)
    assert len(repr(source.finding) + repr(source.graph)) < 500


def test_unpickling_needs_nothing_imported_before(folders, tmp_path):
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(fusebert.load(folders["none"])))
    script = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).encode('blue').shape)"
    words = [sys.executable, "-c", script, str(tmp_path / "model.pickle")]
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == "(64,)\n"
