"""Without TensorFlow, fusebert's own evaluator compares: it gives TensorFlow's answers, also for graphs with fused
nodes, and a result that is wrong is refused. And what is told of fused nodes."""

import sys

import numpy as np
import pytest
import zoo
from encoders import first_layers

import fusebert
from fusebert.errors import DifferentError, FusebertError, UnsupportedError
from fusebert.measure.runners.bert_node import BertNode
from fusebert.measure.runners.evaluator import Evaluator
from fusebert.ops.graph import Node
from fusebert.rewrite import tensorflow as rewriting
from fusebert.source import open_tensorflow
from fusebert.values.blocks import Encoder, Linear, Norm
from fusebert.values.forms import reference
from fusebert.values.target import FusedTensorFlow
from fusebert.values.traverse import POST_NORM_PARTS, post_norm_layer
from fusebert.verbs import fused as replacing
from fusebert.verbs.inspect import inspect

MODELS = ["tf1-frozen", "tf-bert-sequence", "tf-official"]
FUSED = [*MODELS, "tf-bert-taps", "tf-bert-question", "tf-roberta", "tf-official-erf", "tf1-saved", "keras-own"]


@pytest.fixture
def _no_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)


def place(tmp_path, name):
    return tmp_path / ("out.pb" if zoo.get(name).make().is_file() else "out")


@pytest.mark.usefixtures("_no_tensorflow")
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("name", MODELS)
def test_optimize_compares_and_says_who_did(run, tmp_path, name, precision):
    out = place(tmp_path, name)
    told = run("optimize", zoo.get(name).make(), "-o", out, "--precision", precision)
    assert "same answers within tolerance" in told
    assert "both run by fusebert's own evaluator" in told
    assert "TensorFlow is not installed" in told
    assert out.exists()


@pytest.mark.usefixtures("_no_tensorflow")
@pytest.mark.parametrize("name", MODELS)
def test_weights_in_the_wrong_order_are_refused(run, tmp_path, monkeypatch, name):
    """Query and key have the same shapes, so that only the answers tell."""
    swapped = (*rewriting.WEIGHTS[2:4], *rewriting.WEIGHTS[:2], *rewriting.WEIGHTS[4:])
    monkeypatch.setattr(rewriting, "WEIGHTS", swapped)
    told = run("optimize", zoo.get(name).make(), "-o", place(tmp_path, name), "--precision", "fp32", code=1)
    assert "nothing was written" in told
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_no_tensorflow")
def test_a_changed_weight_is_refused(tmp_path, monkeypatch):
    path = zoo.get("tf1-frozen").make()
    weights = fusebert.read(path).weights
    (gain,) = (weights[name].read() for name in weights if "layer_1/output/LayerNorm/gamma:0" in name)
    rewrite = replacing.REWRITERS[FusedTensorFlow]

    def damaged(source, out, wanted):
        done = rewrite(source, out, wanted)
        data = out.read_bytes()
        assert data.count(gain.tobytes()) == 1
        out.write_bytes(data.replace(gain.tobytes(), (gain * 1.05).tobytes()))
        return done

    monkeypatch.setitem(replacing.REWRITERS, FusedTensorFlow, damaged)
    with pytest.raises(DifferentError, match="nothing was written"):
        fusebert.optimize(path, tmp_path / "out.pb", "fp32")
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("_no_tensorflow")
def test_a_graph_alone_is_compared_with_the_rest_of_its_saved_model(tmp_path):
    out = tmp_path / "modified_saved_model.pb"
    report = fusebert.optimize(zoo.get("tf-bert-sequence").make(), out, "fp32")
    assert report.data()["verdict"] == "same answers within tolerance"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.usefixtures("_no_tensorflow")
def test_what_has_no_meaning_here_is_not_compared(tmp_path, monkeypatch):
    def refuse(self, prepared):
        raise UnsupportedError("node x (Strange) has no meaning in NumPy")

    monkeypatch.setattr(Evaluator, "answer", refuse)
    report = fusebert.optimize(zoo.get("tf1-frozen").make(), tmp_path / "out.pb", "fp32")
    assert report.data()["verdict"] == "not compared"
    assert any("tensorflow is not installed, and" in note and "Strange" in note for note in report.notes)


@pytest.mark.usefixtures("_no_tensorflow")
def test_compare_takes_it_and_asks_what_it_is_told_to(tmp_path):
    path = zoo.get("tf1-frozen").make()
    fusebert.optimize(path, tmp_path / "out.pb", "fp32", verify=False)
    few = fusebert.compare(path, tmp_path / "out.pb")
    more = fusebert.compare(path, tmp_path / "out.pb", sequence_length=40, samples=3)
    assert (few.same, more.same, few.run_by) == (True, True, Evaluator.framework)
    assert (few.facts["size"], more.facts["size"]) == ("1 x 1 to 1 x 32", "1 x 40")


@pytest.mark.parametrize("name", FUSED)
def test_it_gives_tensorflows_answers(name, tmp_path):
    """For the graph as it was and with a fused node, whose rows are all computed: hidden states, all masks."""
    entry = zoo.get(name)
    out = place(tmp_path, name)
    fusebert.optimize(entry.make(), out, "fp32", padding="compute", verify=False)
    names = {**entry.input_tensors, **entry.output_tensors} if out.is_file() else {}
    for runner in (Evaluator(open_tensorflow(entry.make())), Evaluator(open_tensorflow(out))):
        for kind in entry.kinds:
            got = runner.answer({names.get(key, key): array for key, array in entry.inputs(kind).items()})
            wanted = {names.get(key, key): array for key, array in entry.outputs(kind).items()}
            assert set() < got.keys() <= wanted.keys()  # an output that a frozen graph reads itself is none of its ends
            for key, have in got.items():
                assert np.abs(have - wanted[key]).max() <= 1e-4 * np.abs(wanted[key]).max(), (kind, key)


HIDDEN, HEADS, INNER = 12, 3, 20
VISIBLE = np.array([[1, 1, 1, 0, 0], [0, 1, 0, 1, 1]])


def node_and_layers(layers=2):
    """Weights as the node takes them, heads as a dimension of their own, and the same as an Encoder."""
    random = np.random.default_rng(1)

    def numbers(*shape):
        return random.standard_normal(shape).astype(np.float32) / 3

    weights, made = [], []
    for _ in range(layers):
        sizes = [(HIDDEN, HIDDEN)] * 4 + [(HIDDEN, INNER), (INNER, HIDDEN)]
        pairs = [(numbers(*size), numbers(size[1])) for size in sizes]
        norms = [(numbers(HIDDEN) + 1, numbers(HIDDEN)) for _ in range(2)]
        linears = [Linear(weight.T, bias) for weight, bias in pairs]
        first, second = (Norm(gain, bias, 1e-5) for gain, bias in norms)
        in_order = dict(zip(POST_NORM_PARTS, (*linears[:4], first, *linears[4:], second), strict=True))
        made += post_norm_layer(in_order.__getitem__, HEADS, "gelu_erf", 0.4)
        split = [(w.reshape(HIDDEN, HEADS, -1), b.reshape(HEADS, -1)) for w, b in pairs[:3]]
        merged = pairs[3][0].reshape(HEADS, -1, HIDDEN), pairs[3][1]
        weights += [array for pair in (*split, merged, norms[0], pairs[4], pairs[5], norms[1]) for array in pair]
    attributes = {"HiddenSize": HIDDEN, "NumAttentionHeads": HEADS, "IntermediateSize": INNER, "HiddenAct": "gelu_erf"}
    attributes |= {"LayerNormEpsilon": 1e-5, "AttentionScale": 0.4, "NumWeights": len(weights)}
    return weights, attributes, Encoder.of(HIDDEN, tuple(made))


@pytest.mark.parametrize("padding", ["compute", "skip", "first"])
@pytest.mark.parametrize("form", ["rows", "flat rows", "square", "four", "additive"])
def test_a_node_means_what_the_op_does(form, padding):
    """Every mask, rows in two dimensions, and what becomes of hidden rows (docs/tensorflow-op.md)."""
    weights, attributes, encoder = node_and_layers()
    x = np.random.default_rng(2).standard_normal((2, 5, HIDDEN)).astype(np.float32)
    mask = {
        "rows": VISIBLE, "flat rows": VISIBLE.astype(bool), "square": np.repeat(VISIBLE[:, None], 5, 1),
        "four": VISIBLE[:, None, None].astype(np.float32), "additive": (VISIBLE[:, None, None] - 1) * np.float32(1e4),
    }[form]  # fmt: skip
    node = BertNode(Node("BertHiddenStates", (), ("node:hidden_states:0", "node:encoded:0")))
    rows = x.reshape(-1, HIDDEN) if form == "flat rows" else x
    state, encoded = node(rows, mask, *weights, **attributes, Padding=padding, AdditiveMask=form == "additive")
    assert encoded.shape == rows.shape
    added = (VISIBLE[:, None, None] - 1) * 1e4
    kept = np.ones_like(VISIBLE) if padding == "compute" else VISIBLE.copy()
    kept[:, 0] |= padding == "first"
    for have, layers in ((state, 1), (encoded, 2)):
        want = reference(first_layers(encoder, layers), x, added) * kept[..., None]
        assert np.abs(have.reshape(x.shape) - want).max() < 1e-4


def test_a_node_whose_sizes_do_not_fit_is_told():
    weights, attributes, _ = node_and_layers(1)
    node = BertNode(Node("Bert", (), ("node:0",)))
    x = np.zeros((2, 5, HIDDEN), np.float32)
    for wrong in ({"IntermediateSize": 21}, {"HiddenSize": 6}):
        with pytest.raises(ValueError, match="reshape"):
            node(x, VISIBLE, *weights, **attributes | wrong)
    with pytest.raises(ValueError, match="16"):
        node(x, VISIBLE, *weights[:-1], **attributes)
    with pytest.raises((ValueError, FusebertError)):
        node(x, VISIBLE[:, :4], *weights, **attributes)


@pytest.mark.parametrize(("name", "said"), [("tf-bert", "HiddenAct gelu_erf"), ("onnx-bert-14-eager", "heads 3")])
def test_inspect_tells_what_is_fused_already(name, said, tmp_path):
    """A node of ours is an encoder, not something that came near one."""
    out = tmp_path / ("out.onnx" if name.startswith("onnx") else "out")
    fusebert.optimize(zoo.get(name).make(), out, "fp32", verify=False)
    told = inspect(out).data()
    assert (len(told["fused"]), told["misses"]) == (1, [])
    assert (told["fused"][0]["weights"], said in told["fused"][0]["settings"]) == (48, True)
