"""One command, then TensorFlow runs the result: every family, frozen and as a SavedModel, at batches and lengths that
change within one session, with padding on the right and in holes."""

import hashlib
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from zoo import workshop
from zoo.cases import NAMES, VOCABULARY

import fusebert
from fusebert.measure.difference import Tally, within

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
import fusebert.tensorflow  # noqa: E402

BASE = {"layers": 2, "hidden": 128, "heads": 2, "inner": 512}  # heads and inner as wide as BERT-base has them
WHOLE = {"layers": 1, "hidden": 768, "heads": 12, "inner": 3072}
ODD = {"layers": 3, "hidden": 65, "heads": 5, "inner": 99}
SHAPES = [(1, 8), (3, 128), (32, 8), (1, 128), (32, 128), (3, 8)]


def hugging_face(family, head, outputs=("logits",)):
    names = NAMES if family == "bert" else NAMES[:2]
    config = {"layer_norm_eps": 1e-5} if family == "roberta" else {}
    pad = 1 if family == "roberta" else 0
    return {"source": "hf", "family": family, "head": head, "act": "gelu", "inputs": names, "outputs": outputs,
            "config": config, "pad": pad, "kinds": ["full"]}  # fmt: skip


OFFICIAL = ("input_word_ids", "input_mask", "input_type_ids")
TF1 = ("input_ids", "input_mask", "segment_ids")
FAMILIES = {
    "bert-classifier": hugging_face("bert", "ForSequenceClassification"),
    "bert-question": hugging_face("bert", "ForQuestionAnswering", ("start_logits", "end_logits")),
    "roberta": hugging_face("roberta", "ForSequenceClassification"),
    "distilbert": hugging_face("distilbert", "ForSequenceClassification"),
    "official": {"source": "official", "classifier": False, "inputs": OFFICIAL,
                 "outputs": ("sequence_output", "pooled_output")},
    "official-classifier": {"source": "official", "classifier": True, "inputs": OFFICIAL, "outputs": ("logits",)},
    "tf1": {"source": "tf1", "inputs": TF1, "outputs": ("probabilities",), "classifier": True, "kinds": ["full"]},
}  # fmt: skip
MODELS = {
    f"{family}-{form}": {**recipe, "form": form, "sizes": BASE if (number % 2 == 0) == (form == "frozen") else ODD}
    for number, (family, recipe) in enumerate(FAMILIES.items())
    for form in ("saved_model", "frozen")
}
MODELS["bert-whole-saved_model"] = {**FAMILIES["bert-classifier"], "form": "saved_model", "sizes": WHOLE}


@cache
def place() -> Path:
    """The folder with all models, made if it is missing."""
    makers = (Path(workshop.HERE) / "makers" / f"{name}.py" for name in workshop.MAKERS["long"])
    whole = json.dumps([MODELS, *(path.read_text() for path in makers)])
    folder = workshop.PLACE / f"long-{hashlib.sha256(whole.encode()).hexdigest()[:12]}"
    jobs = [{"folder": str(folder / name), "recipe": recipe} for name, recipe in MODELS.items()]
    folder.mkdir(parents=True, exist_ok=True)
    missing = [job for job in jobs if not Path(job["folder"]).is_dir()]
    if missing:
        workshop.start("long", missing, folder)
    return folder


def opened(path, tensors):
    """A function from named inputs to named outputs; of a frozen graph, all calls are of one session."""
    if path.is_dir():
        model = tf.saved_model.load(str(path))
        call = model.signatures["serving_default"]
        return lambda feeds: {k: v.numpy() for k, v in call(**{k: tf.constant(v) for k, v in feeds.items()}).items()}
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(tf.compat.v1.GraphDef.FromString(path.read_bytes()), name="")
    session = tf.compat.v1.Session(graph=graph)
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


@pytest.mark.parametrize("name", MODELS)
def test_one_command_then_tensorflow_runs_it_at_every_size(name, tmp_path):
    form, names = MODELS[name]["form"], MODELS[name]["inputs"]
    source = place() / name / ("saved_model" if form == "saved_model" else "model.pb")
    tensors = json.loads((source.parent / "tensors.json").read_text())
    suffix = "" if source.is_dir() else ".pb"
    original = opened(source, tensors)
    asked = [(feeds, mask, original(feeds)) for feeds, mask in questions(names)]
    for precision in ("fp32", "bf16", "int8"):
        out = tmp_path / f"{precision}{suffix}"
        fusebert.optimize(source, out, precision, verify=precision == "fp32")
        run = opened(out, tensors)
        tallies = {output: Tally(output) for output in MODELS[name]["outputs"]}
        for feeds, mask, wanted in asked:
            got = run(feeds)
            assert {output: array.shape for output, array in got.items()} == {o: a.shape for o, a in wanted.items()}
            for output, tally in tallies.items():
                tally.add(seen(wanted[output], mask), seen(got[output], mask))
        differences = [tally.difference for tally in tallies.values()]
        assert within(differences, precision), (precision, differences)
