"""One command, then TensorFlow runs the result: every family, frozen and as a SavedModel, at batches and lengths that
change within one session, with padding on the right and in holes."""

import os

import numpy as np
import pytest
from zoo import long
from zoo.cases import VOCABULARY
from zoo.session import open_session

import fusebert
from fusebert.measure.difference import Tally, within

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
import fusebert.tensorflow  # noqa: E402

SHAPES = [(1, 8), (3, 128), (32, 8), (1, 128), (32, 128), (3, 8)]


def opened(path, tensors):
    """A function from named inputs to named outputs; of a frozen graph, all calls are of one session."""
    if path.is_dir():
        model = tf.saved_model.load(str(path))
        call = model.signatures["serving_default"]
        return lambda feeds: {k: v.numpy() for k, v in call(**{k: tf.constant(v) for k, v in feeds.items()}).items()}
    session = open_session(path)
    wanted = tensors["outputs"]
    return lambda feeds: session.run(wanted, {tensors["inputs"][name]: value for name, value in feeds.items()})


def questions(names):
    """Inputs and their mask, of every size and both kinds of padding."""
    random = np.random.default_rng(4)
    for batch, length in SHAPES:
        ids = random.integers(5, VOCABULARY, (batch, length))
        lengths = random.integers(2, length + 1, (batch, 1))
        holes = random.random((batch, length)) < 0.7
        holes[:, 0] = True
        for mask in (np.arange(length) < lengths, holes):
            types = np.sort(random.integers(0, 2, (batch, length)), axis=1)
            arrays = zip(names, (ids, mask, types), strict=False)
            yield {name: np.asarray(array, np.int32) for name, array in arrays}, mask


def seen(value, mask):
    """Rows of the positions that are not hidden; of what has no positions, all."""
    if value.shape[:2] == mask.shape:
        return value[mask].reshape(mask.sum(), -1)
    return value


@pytest.mark.parametrize("name", long.RECIPES)
def test_one_command_then_tensorflow_runs_it_at_every_size(name, tmp_path):
    model = long.get(name)
    source, tensors = model.path, model.tensors
    suffix = "" if source.is_dir() else ".pb"
    original = opened(source, tensors)
    asked = [(feeds, mask, original(feeds)) for feeds, mask in questions(model.recipe["inputs"])]
    for precision in ("fp32", "bf16", "int8"):
        out = tmp_path / f"{precision}{suffix}"
        fusebert.optimize(source, out, precision, verify=precision == "fp32")
        run = opened(out, tensors)
        tallies = {output: Tally(output) for output in model.recipe["outputs"]}
        for feeds, mask, wanted in asked:
            got = run(feeds)
            assert {output: array.shape for output, array in got.items()} == {o: a.shape for o, a in wanted.items()}
            for output, tally in tallies.items():
                tally.add(seen(wanted[output], mask), seen(got[output], mask))
        differences = [tally.difference for tally in tallies.values()]
        assert within(differences, precision), (precision, differences)
