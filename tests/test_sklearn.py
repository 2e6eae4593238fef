"""fusebert.sklearn.Encoder in scikit-learn's own tools: pipelines, clones, searches, pickles and its checks."""

import pickle

import numpy as np
import pytest
import stock
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_checks

import fusebert
from fusebert import FusebertError
from fusebert.sklearn import Encoder

TEXTS = ["the cat sat", "a red dog ran", "what is red", "who ran", "the dog", "cat cat cat"]
LABELS = [1, 0, 0, 0, 1, 1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return stock.make_reader(tmp_path_factory.mktemp("reader"))


def test_it_gives_what_encode_gives(folder):
    encoder = Encoder(folder, precision="int8", pooling="cls", normalize=False)
    want = fusebert.load(folder, precision="int8").encode(TEXTS, pooling="cls", normalize=False)
    assert (encoder.fit_transform(TEXTS) == want).all()
    assert (encoder.transform(np.array(TEXTS)) == want).all()
    assert list(encoder.get_feature_names_out()[:2]) == ["encoder0", "encoder1"]
    assert len(encoder.get_feature_names_out()) == want.shape[1]


def test_a_pipeline_learns_is_searched_and_pickles(folder):
    pipeline = make_pipeline(Encoder(folder), LogisticRegression(C=100))
    search = GridSearchCV(pipeline, {"encoder__pooling": ["cls", "mean"]}, cv=2).fit(TEXTS, LABELS)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert (again.predict_proba(TEXTS) == search.best_estimator_.predict_proba(TEXTS)).all()
    assert list(again.predict(TEXTS)) == LABELS


def test_it_tells_what_is_wrong(folder):
    with pytest.raises(NotFittedError):
        Encoder(folder).transform(TEXTS)
    with pytest.raises(FusebertError, match="a list of texts"):
        Encoder(folder).fit().transform("one text")
    with pytest.raises(FusebertError, match="does not exist"):
        clone(Encoder(folder / "missing")).fit()


# Those that feed no numbers, which are no texts.
@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable",
        "check_estimator_tags_renamed",
        "check_valid_tag_types",
        "check_estimator_repr",
        "check_no_attributes_set_in_init",
        "check_get_params_invariance",
        "check_set_params",
        "check_mixin_order",
    ],
)
def test_the_checks_of_scikit_learn(folder, check):
    getattr(estimator_checks, check)("Encoder", Encoder(folder))
