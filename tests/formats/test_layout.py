"""Layouts: what a fused operator is told of an encoder of any form reads back as that encoder; and what somebody else
wrote is refused in one sentence, by Python and by the operator, and never crashes."""

import re

import families
import numpy as np
import pytest

from fusebert.errors import FusebertError
from fusebert.formats.layout import read_layout, write_layout
from fusebert.formats.onnx import encoder_op
from fusebert.formats.onnx.edit import NewNode, create
from fusebert.onnxruntime import session
from fusebert.source import open
from fusebert.values.blocks import Encoder
from fusebert.values.traverse import beyond_bert, weights

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
MUTATIONS = 400
CASES = ["modernbert", "mpnet", "deberta-v2", "albert", "gemma", "eurobert", "xlm-roberta-xl", "jina-v3", "nomic"]


def encoder_of(case: str, tmp_path) -> Encoder:
    folder, _ = families.make(tmp_path / case, case)
    return open(folder).network().encoder


def arrays_of(encoder: Encoder) -> dict[str, np.ndarray]:
    return {name: np.ascontiguousarray(array) for name, array in weights(encoder)}


def read(text: str, arrays: dict[str, np.ndarray]) -> Encoder:
    return read_layout("node", text, list(arrays), arrays.__getitem__)


@pytest.mark.parametrize("case", CASES)
def test_a_layout_reads_back_as_its_encoder(case, tmp_path):
    encoder = encoder_of(case, tmp_path)
    assert beyond_bert(encoder)
    arrays = arrays_of(encoder)
    again = read(write_layout(encoder), arrays)
    assert write_layout(again) == write_layout(encoder)
    assert (again.order, again.hidden_size) == (encoder.order, encoder.hidden_size)
    for (name, array), (other, same) in zip(weights(encoder), weights(again), strict=True):
        assert name == other
        assert np.array_equal(array, same)


def test_a_kernel_is_a_weight_that_is_stored_the_other_way(tmp_path):
    encoder = encoder_of("nomic", tmp_path)
    arrays = arrays_of(encoder)
    text = write_layout(encoder).replace("input block.0.query.weight", "input block.0.query.kernel")
    turned = {**arrays, "block.0.query.weight": np.ascontiguousarray(arrays["block.0.query.weight"].T)}
    body = read(text, turned).blocks[0].body
    assert np.array_equal(body.query.weight, arrays["block.0.query.weight"])


REFUSED = {
    "no encoder": (r"^encoder[^\n]*\n", "", "stands before the line 'encoder'|has no line"),
    "heads": ("heads=6", "heads=0", "heads"),
    "heads that do not divide": ("heads=6", "heads=7", "7 heads|divide|shared"),
    "key heads": ("key_heads=6", "key_heads=4", "6 heads cannot be grouped over 4|key heads"),
    "no number": ("epsilon=[^\n]*", "epsilon=tiny", "epsilon"),
    "not finite": ("scale=[^ \n]*", "scale=nan", "scale"),
    "a word": ("heads=6", "heads=6 colour=blue", "colour|means nothing there"),
    "twice": ("heads=6", "heads=6 heads=6", "second time|twice"),
    "order": ("hidden=48", "hidden=48 order=0,9999", "order"),
    "a size": ("hidden=48", "hidden=-1", "hidden"),
    "another size": ("hidden=48", "hidden=49", "48|49"),
    "a line": ("\n", "\nabracadabra\n", "means nothing there|unknown"),
    "a name": ("block.0.query.weight", "block.0.kwery.weight", "query"),
    "an input more": (r"\Z", "input block.9.query.weight\n", "inputs, but there are"),
    "two of a name": ("block.0.key.weight", "block.0.query.weight", "twice|two inputs|key"),
    "a norm": ("norm after", "norm besides", "besides"),
    "position": ("position=rotary", "position=celestial", "position"),
    "another position": ("position=rotary", "position=relative", "table"),
}


@pytest.fixture(scope="module")
def nomic(tmp_path_factory):
    return encoder_of("nomic", tmp_path_factory.mktemp("layout"))


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_in_one_sentence(name, nomic, tmp_path):
    """By the operator always, and by whoever reads the file as far as it is no engine."""
    pattern, instead, reason = REFUSED[name]
    text = re.sub(pattern, instead, write_layout(nomic), count=1)
    arrays = arrays_of(nomic)
    with pytest.raises(FusebertError, match=rf"fusebert.Encoder 'encoder': .*({reason})"):
        run(text, arrays, tmp_path)
    if name not in ("heads that do not divide", "key heads", "another position", "a norm", "not finite"):
        with pytest.raises(FusebertError, match=rf"({reason})"):
            read(text, arrays)


def run(text: str, arrays: dict[str, np.ndarray], tmp_path) -> np.ndarray:
    """What the operator answers to two short rows."""
    node = NewNode("Encoder", encoder_op.DOMAIN, ("rows", "mask", *arrays), ("out",), {"layout": text}, "encoder")
    shape = ("batch", "length", 48)
    inputs = {"rows": ("float32", shape), "mask": ("int64", shape[:2])}
    create(tmp_path / "one.onnx", [node], arrays, inputs, {"out": ("float32", shape)}, {"": 17, "fusebert": 1})
    running = session(tmp_path / "one.onnx", threads=1)
    rows = np.random.default_rng(0).standard_normal((1, 2, 48)).astype(np.float32)
    return running.run(None, {"rows": rows, "mask": np.ones((1, 2), np.int64)})[0]


@pytest.mark.parametrize("case", ["modernbert", "deberta-v2", "albert"])
def test_mutated_layouts_never_crash(case, tmp_path):
    """Words taken away, doubled, swapped and changed, and numbers that are absurd: an answer or one sentence."""
    encoder = encoder_of(case, tmp_path)
    arrays, text = arrays_of(encoder), write_layout(encoder)
    random = np.random.default_rng(7)
    sentences = []
    for _ in range(MUTATIONS):
        changed = mutated(text, random)
        for attempt in (lambda: read(changed, arrays), lambda: run(changed, arrays, tmp_path)):  # noqa: B023
            try:
                attempt()
            except FusebertError as error:
                sentences.append(str(error))
    assert len(sentences) > MUTATIONS / 2
    assert not any("\n" in sentence for sentence in sentences)
    assert max(map(len, sentences)) < 1000
    assert all("fusebert.Encoder 'encoder'" in sentence for sentence in sentences if "ONNXRuntimeError" in sentence)


def mutated(text: str, random: np.random.Generator) -> str:
    """The text with one to three words that are others."""
    words = re.split(r"([ \n=,])", text)
    for _ in range(random.integers(1, 4)):
        place, other = random.integers(0, len(words), 2)
        numbers = ["-1", "0", "1", "2", "3", "65537", "4294967296", "1e400", "nan", "inf", "", "\x00", "ü", "9" * 500]
        kind = random.integers(0, 4)
        if kind == 0:
            words[place] = ""
        elif kind == 1:
            words[place], words[other] = words[other], words[place]
        elif kind == 2:
            words[place] = words[other]
        else:
            words[place] = str(random.choice(numbers))
    return "".join(words)
