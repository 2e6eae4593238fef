"""The Bert op inside TensorFlow: the engine's answers bit for bit, whatever the graph, the mask and the caller do.

test_defect_N_... fails on what an earlier op of this name did: 1 it wrote its input; 2 batch, length and mask stayed
those of the first call; 3 every call kept memory; 4 it took the first row of a (B, S, S) mask for all; 5 epsilon,
activation and scale were its own; 6 it printed, calls raced, and new weights went unnoticed."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from encoders import changed, first_layers
from memory import growth

from fusebert.engine import native as engine
from fusebert.engine.quantize import convert_encoder, smooth_block
from fusebert.formats.tensorflow.bert_layers import compact_weights
from fusebert.values.batch import Batch
from fusebert.values.blocks import Encoder, Linear, Norm
from fusebert.values.forms import reference
from fusebert.values.plan import BlockPlan, Plan, Product, make_plan
from fusebert.values.traverse import POST_NORM_PARTS, is_norm, parts, post_norm_layer

tf = pytest.importorskip("tensorflow")
import fusebert.tensorflow as fused  # noqa: E402

v1 = tf.compat.v1
InvalidArgument = tf.errors.InvalidArgumentError
HIDDEN, HEADS, INNER, LAYERS = 48, 4, 80, 2
PRECISIONS = {
    "fp32": {},
    "bf16": {"NonQuantizableDataType": tf.bfloat16},
    "int8": {"QuantizableDataType": tf.qint8},
    "int8-bf16": {"QuantizableDataType": tf.qint8, "NonQuantizableDataType": tf.bfloat16},
}
SIZES = {"HiddenSize": HIDDEN, "NumAttentionHeads": HEADS, "IntermediateSize": INNER}


def make_encoder(seed=0, activation="gelu_tanh", epsilon=1e-12, scale=0.0, layers=LAYERS) -> Encoder:
    random = np.random.default_rng(seed)

    def normal(*shape, about=0.0):
        return (about + random.normal(size=shape) * 0.2).astype(np.float32)

    def linear(outputs, inputs):
        return Linear(normal(outputs, inputs), normal(outputs))

    def norm():
        return Norm(normal(HIDDEN, about=1), normal(HIDDEN), epsilon)

    blocks = []
    for _ in range(layers):
        sizes = {"feed_forward.up": (INNER, HIDDEN), "feed_forward.down": (HIDDEN, INNER)}
        made = {
            path: norm() if is_norm(path) else linear(*sizes.get(path, (HIDDEN, HIDDEN))) for path in POST_NORM_PARTS
        }
        blocks += post_norm_layer(made.__getitem__, HEADS, activation, scale or None)
    return Encoder.of(HIDDEN, tuple(blocks))


def weights(encoder: Encoder, split: bool = False) -> list[np.ndarray]:
    """16 tensors a layer in the op's order: [in, out], and split by heads as TF Hub's models have them."""
    size, tensors = HIDDEN // HEADS, []
    for path, part in parts(encoder):
        name = path.split(".")[-1]
        arrays = [array.T if array.ndim == 2 else array for _, array in part.arrays()]
        if split and name in ("query", "key", "value"):
            arrays = [arrays[0].reshape(HIDDEN, HEADS, size), arrays[1].reshape(HEADS, size)]
        elif split and name == "out":
            arrays[0] = arrays[0].reshape(HEADS, size, HIDDEN)
        tensors += arrays
    return [np.ascontiguousarray(t) for t in tensors]


def run(x, mask, encoder=None, split=False, **attributes):
    tensors = weights(encoder or make_encoder(), split)
    return fused.bert(x, mask, tensors, **{**SIZES, **attributes}).numpy()


def expected(x, mask, encoder=None, plan="fp32", padding="compute"):
    """The engine's answer; the mask in one of its own forms."""
    encoder, shape = encoder or make_encoder(), x.shape[:2]
    batch = Batch.masked(mask, shape, padding, HEADS)
    rows = np.ascontiguousarray(x.reshape(-1, HIDDEN)[batch.index])
    plan = make_plan(plan, len(encoder.blocks)) if isinstance(plan, str) else plan
    return batch.spread(engine.EncoderEngine(encoder, plan, engine.pool(2)).run(rows, batch)[0], False)


def embeddings(sequences, length, seed=1):
    return np.random.default_rng(seed).normal(size=(sequences, length, HIDDEN)).astype(np.float32)


def holes(sequences, length, seed=2):
    mask = (np.random.default_rng(seed).random((sequences, length)) < 0.6).astype(np.int32)
    mask[:, 1] = 1
    return mask


def additive(mask, value=-10000.0):
    return (value * (1 - mask)).astype(np.float32)


def error(got, want):
    return np.abs(got - want).max() / np.abs(want).max()


# ---- the answers ----


@pytest.mark.parametrize("split", [False, True], ids=["flat", "by heads"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_and_form_of_weights_gives_the_engines_bits(precision, split):
    x, mask = embeddings(3, 11), holes(3, 11)
    got = run(x, mask[:, None], split=split, **PRECISIONS[precision])
    assert np.array_equal(got, expected(x, mask, plan=precision))


def compact(precision="int8", split=True) -> tuple[Encoder, list[np.ndarray]]:
    """An encoder in int8, smoothed where `split`, and the tensors of BertCompact."""
    encoder, peaks = make_encoder(), np.linspace(0.1, 3, INNER, dtype=np.float32)
    if split:
        blocks = (smooth_block(one, (np.linspace(0.1, 3, HIDDEN, dtype=np.float32), peaks)) for one in encoder.blocks)
        encoder = replace(encoder, blocks=tuple(blocks))
    encoder = convert_encoder(encoder, make_plan(precision, len(encoder.blocks)))
    return encoder, [array for _, array in compact_weights(encoder)]


@pytest.mark.parametrize("split", [False, True], ids=["as they are", "smoothed"])
@pytest.mark.parametrize("precision", ["int8", "int8-bf16"])
def test_weights_in_bytes_give_the_engines_bits(precision, split):
    x, mask, (encoder, tensors) = embeddings(3, 11), holes(3, 11), compact(precision, split)
    types = {"NonQuantizableDataType": tf.bfloat16} if precision == "int8-bf16" else {}
    sizes = {"HiddenSize": HIDDEN, "NumAttentionHeads": HEADS}
    got = fused._ops.bert_compact(x, mask, tensors, **sizes, **types).numpy()
    assert np.array_equal(got, expected(x, mask, encoder, precision))
    states = fused._ops.bert_compact_hidden_states(x, mask, tensors, NumHiddenStates=LAYERS, **sizes, **types)
    assert np.array_equal(states.encoded, got)
    assert np.array_equal(states.hidden_states[-1], got)


@pytest.mark.parametrize(
    ("place", "wrong", "reason"),
    [
        (0, np.zeros((HIDDEN, HIDDEN), np.float32), r"weights\[0\], query.weight, .* expected an int8 matrix"),
        (16, np.zeros(0, np.float32), r"weights\[16\], query.scales, is empty; a weight in bytes needs them"),
        (1, np.zeros(3, np.float32), r"weights\[1\], query.bias, has shape \(3\); expected float of shape \(48\)"),
        (10, np.zeros((INNER, 7), np.int8), "up"),
        (12, np.zeros((HIDDEN, 7), np.int8), "down"),
    ],
)
def test_compact_weights_that_do_not_fit_are_refused(place, wrong, reason):
    tensors = compact(split=False)[1]
    tensors[place] = wrong
    with pytest.raises(InvalidArgument, match=reason):
        fused._ops.bert_compact(embeddings(1, 4), holes(1, 4), tensors, HiddenSize=HIDDEN, NumAttentionHeads=HEADS)
    with pytest.raises(InvalidArgument, match="WeightTypes is 29, but a layer has 28 weights"):
        fused._ops.bert_compact(
            embeddings(1, 4), holes(1, 4), [*tensors[:28], wrong], HiddenSize=HIDDEN, NumAttentionHeads=HEADS
        )


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "bool"])
@pytest.mark.parametrize("form", ["BS", "B1S", "BSS", "B11S", "B1SS", "BHSS"])
def test_every_mask_of_rows_in_every_form_and_type(form, dtype):
    x, mask = embeddings(3, 9), holes(3, 9)
    shaped = {
        "BS": mask, "B1S": mask[:, None], "BSS": mask[:, None].repeat(9, 1), "B11S": mask[:, None, None],
        "B1SS": mask[:, None, None].repeat(9, 2), "BHSS": mask[:, None, None].repeat(9, 2).repeat(HEADS, 1),
    }[form].astype(dtype)  # fmt: skip
    got = run(x, shaped)
    if form == "BHSS":
        assert error(got, expected(x, mask)) < 1e-5
    else:
        assert np.array_equal(got, expected(x, mask))


def test_one_mask_for_all_sequences():
    x, mask = embeddings(4, 9), holes(1, 9)
    assert np.array_equal(run(x, mask[:, None]), expected(x, mask.repeat(4, 0)))
    assert np.array_equal(run(x.reshape(36, HIDDEN), mask[:, None]).reshape(x.shape), expected(x, mask.repeat(4, 0)))


@pytest.mark.parametrize("activation", ["gelu_tanh", "gelu_erf", "gelu_quick", "relu"])
def test_defect_5_the_activation_is_honoured(activation):
    x, mask, encoder = embeddings(2, 7), np.ones((2, 7), np.int32), make_encoder(activation=activation)
    got = run(x, mask[:, None], encoder, HiddenAct=activation)
    assert error(got, reference(encoder, x)) < 1e-5
    others = {error(got, reference(make_encoder(activation=a), x)) for a in ("gelu_erf", "gelu_tanh", "relu")}
    assert sum(e > 1e-4 for e in others) >= 2


def test_defect_5_epsilon_and_scale_are_honoured():
    x, mask, encoder = embeddings(2, 7), np.ones((2, 1, 7), np.int32), make_encoder(epsilon=0.1, scale=0.7)
    got = run(x, mask, encoder, LayerNormEpsilon=0.1, AttentionScale=0.7)
    assert error(got, reference(encoder, x)) < 1e-5
    assert error(run(x, mask), reference(make_encoder(), x)) < 1e-5
    assert error(got, run(x, mask)) > 1e-2


def test_defect_4_rows_of_a_square_mask_may_differ():
    x = embeddings(2, 8)
    packed = np.kron(np.eye(2), np.ones((4, 4)))
    mask = np.stack([np.tril(np.ones((8, 8))), packed]).astype(np.float32)
    want = reference(make_encoder(), x, additive(mask)[:, None])
    for dtype in ("float32", "int32", "int64"):
        assert error(run(x, mask.astype(dtype)), want) < 1e-5
    assert np.array_equal(run(x, mask), expected(x, additive(mask)[:, None]))
    alone = run(x[1:, :4], np.ones((1, 1, 4), np.int32))
    assert error(run(x, mask)[1, :4], alone[0]) < 1e-5


def test_masks_are_what_the_graph_adds_to_the_scores():
    x = embeddings(2, 6)
    fractions = np.random.default_rng(0).random((2, 6)).astype(np.float32)
    want = reference(make_encoder(), x, additive(fractions, -3.0)[:, None, None])
    assert error(run(x, fractions[:, None], MaskValue=-3.0), want) < 1e-5
    added = np.random.default_rng(0).normal(size=(2, HEADS, 6, 6)).astype(np.float32)
    assert error(run(x, added, AdditiveMask=True), reference(make_encoder(), x, added)) < 1e-5
    mask = holes(2, 6)
    for value in (-10000, np.finfo(np.float32).min, -np.inf):
        shaped = np.where(mask == 1, 0, value).astype(np.float32)[:, None, None]
        assert np.array_equal(run(x, shaped, AdditiveMask=True), expected(x, mask))
        assert np.array_equal(run(x, shaped, AdditiveMask=True, Padding="skip"), expected(x, mask, padding="skip"))


@pytest.mark.parametrize("value", [-10000.0, -1e9])
def test_a_sequence_of_padding_alone_gets_what_the_graph_gives(value):
    x, mask = embeddings(3, 7), holes(3, 7)
    mask[1] = 0
    want = reference(make_encoder(), x, additive(mask, value)[:, None, None])
    got = run(x, mask[:, None], MaskValue=value)
    assert error(got, want) < 2e-3  # at 10000 a score is rounded to 0.001
    assert np.array_equal(got[[0, 2]], expected(x, mask)[[0, 2]])
    assert np.array_equal(run(x, mask[:, None], MaskValue=value, Padding="first")[1, 0], got[1, 0])
    assert not run(x, mask[:, None], MaskValue=value, Padding="skip")[1].any()


def test_padding_decides_what_becomes_of_hidden_rows():
    x, mask = embeddings(4, 10), holes(4, 10)
    mask[0, 0], mask[1, 0] = 0, 1
    for padding in ("compute", "first", "skip"):
        for precision in ("fp32", "int8"):
            got = run(x, mask[:, None], Padding=padding, **PRECISIONS[precision])
            assert np.array_equal(got, expected(x, mask, plan=precision, padding=padding))
    assert np.array_equal(run(x, mask[:, None]), run(x, mask[:, None], Padding="compute"))


def test_hidden_states_are_the_rows_after_every_layer():
    x, mask = embeddings(3, 9), holes(3, 9)
    encoder = make_encoder(layers=3)
    for padding in ("compute", "skip"):
        out = fused.bert_hidden_states(x, mask, weights(encoder), **SIZES, NumHiddenStates=3, Padding=padding)
        for i, state in enumerate(out.hidden_states):
            first = first_layers(encoder, i + 1)
            assert np.array_equal(state, expected(x, mask, first, padding=padding))
        assert np.array_equal(out.encoded, out.hidden_states[-1])
    with pytest.raises(InvalidArgument, match="number of layers, 3"):
        fused.bert_hidden_states(x, mask, weights(encoder), **SIZES, NumHiddenStates=2)


# ---- graphs ----


@pytest.fixture(scope="module")
def traced():
    """One graph for every batch and length, with 2-D and 3-D embeddings."""
    constants = [tf.constant(w) for w in weights(make_encoder())]

    @tf.function(input_signature=[tf.TensorSpec([None, None, HIDDEN]), tf.TensorSpec(None, tf.int32)])
    def call(x, mask):
        return fused.bert(x, mask, constants, **SIZES, MaxSequenceLength=5)

    return call


def test_defect_2_batch_length_and_mask_form_may_change_from_call_to_call(traced):
    for sequences, length in ((1, 8), (3, 8), (32, 8), (1, 128), (2, 1), (3, 8)):
        x, mask = embeddings(sequences, length), np.ones((sequences, length), np.int32)
        mask[:, length // 2 + 1 :] = 0
        for shaped in (mask[:, None], mask[:, None, None], mask[:, None].repeat(length, 1)):
            assert np.array_equal(traced(x, shaped), expected(x, mask))
    assert traced(embeddings(0, 8), np.ones((0, 1, 8), np.int32)).shape == (0, 8, HIDDEN)
    assert traced(embeddings(3, 0), np.ones((3, 1, 0), np.int32)).shape == (3, 0, HIDDEN)


def test_two_dimensional_embeddings_take_the_length_from_the_mask():
    x, mask = embeddings(3, 7), holes(3, 7)
    for length in (128, 7, 3):
        got = run(x.reshape(21, HIDDEN), mask[:, None], MaxSequenceLength=length)
        assert np.array_equal(got, expected(x, mask).reshape(21, HIDDEN))


def test_shapes_are_inferred():
    for shape in ([None, None, HIDDEN], [4, 7, HIDDEN], [None, HIDDEN], None):
        graph = tf.Graph()
        with graph.as_default():
            x, mask = v1.placeholder(tf.float32, shape), v1.placeholder(tf.int32, None)
            encoded = fused.bert(x, mask, weights(make_encoder()), **SIZES)
            assert encoded.shape.rank == x.shape.rank
            assert encoded.shape.rank is None or encoded.shape.as_list() == shape
            states = fused.bert_hidden_states(x, mask, weights(make_encoder()), **SIZES, NumHiddenStates=LAYERS)
            assert states.hidden_states[1].shape.rank == x.shape.rank
    with tf.Graph().as_default():
        for x, mask in (([4, 7, 2, HIDDEN], [4, 1, 7]), ([HIDDEN], [4, 1, 7]), ([4, 7, HIDDEN], [7])):
            with pytest.raises(ValueError, match="rank"):
                fused.bert(v1.placeholder(tf.float32, x), v1.placeholder(tf.int32, mask), weights(make_encoder()))


def test_defect_1_inputs_are_never_written(traced):
    x, mask = embeddings(3, 7), np.ones((3, 7), np.int32)
    tensors = [tf.constant(w) for w in weights(make_encoder())]

    @tf.function
    def call(x):
        inner = x * 2.0  # a buffer that TensorFlow might give away
        return fused.bert(inner, mask[:, None], tensors, **SIZES), inner + 0.0

    encoded, inner = call(x)
    assert np.array_equal(inner, x * 2)
    assert np.array_equal(encoded, expected(x * 2, mask))
    given = tf.constant(x)
    fused.bert(given, mask[:, None], tensors, **SIZES)
    assert np.array_equal(given, x)
    assert all(np.array_equal(t, w) for t, w in zip(tensors, weights(make_encoder()), strict=True))


NODE = """
name: "fused_bert" op: "Bert" input: "x" input: "mask" {inputs}
attr {{ key: "HiddenAct" value {{ s: "gelu_tanh" }} }}
attr {{ key: "HiddenSize" value {{ i: 48 }} }}
attr {{ key: "IntermediateSize" value {{ i: 80 }} }}
attr {{ key: "MaskT" value {{ type: DT_INT64 }} }}
attr {{ key: "NumAttentionHeads" value {{ i: 4 }} }}
attr {{ key: "NumWeights" value {{ i: 32 }} }}
attr {{ key: "_output_shapes" value {{ list {{ shape {{ unknown_rank: true }} }} }} }}
{more}
"""
CONFIGURED = """
attr { key: "QuantizableDataType" value { type: DT_QINT8 } }
attr { key: "NonQuantizableDataType" value { type: DT_FLOAT } }
attr { key: "MaxSequenceLength" value { i: 11 } }
attr { key: "CalibrateQuantFactors" value { b: false } }
attr { key: "QuantizationFactorsPath" value { s: "" } }
"""


@pytest.mark.parametrize(("more", "precision"), [("", "fp32"), (CONFIGURED, "int8")])
def test_node_definitions_made_for_the_earlier_op_load(more, precision):
    from google.protobuf import text_format

    x, mask, arrays = embeddings(2, 11), holes(2, 11), weights(make_encoder())
    graph = tf.Graph()
    with graph.as_default():
        v1.placeholder(tf.float32, name="x"), v1.placeholder(tf.int64, name="mask")
        for i, array in enumerate(arrays):
            tf.constant(array, name=f"w{i}")
        definition = graph.as_graph_def()
    node = NODE.format(inputs=" ".join(f'input: "w{i}"' for i in range(32)), more=more)
    definition.node.append(text_format.Parse(node, v1.NodeDef()))
    with tf.Graph().as_default(), v1.Session() as session:
        (encoded,) = tf.import_graph_def(definition, return_elements=["fused_bert:0"], name="")
        got = session.run(encoded, {"x:0": x.reshape(22, HIDDEN), "mask:0": mask[:, None]})
    assert np.array_equal(got, expected(x, mask, plan=precision).reshape(22, HIDDEN))


def test_a_saved_model_with_the_op_is_saved_and_loaded(tmp_path):
    class Model(tf.Module):
        def __init__(self):
            self.tensors = [tf.Variable(w) for w in weights(make_encoder())]

        @tf.function(input_signature=[tf.TensorSpec([None, None, HIDDEN]), tf.TensorSpec([None, 1, None], tf.int32)])
        def __call__(self, x, mask):
            return {"encoded": fused.bert(x, mask, self.tensors, **SIZES, **PRECISIONS["int8"])}

    model = Model()
    tf.saved_model.save(model, str(tmp_path), signatures=model.__call__)
    loaded = tf.saved_model.load(str(tmp_path))
    x, mask = embeddings(3, 9), holes(3, 9)
    want = expected(x, mask, plan="int8")
    assert np.array_equal(loaded(x, mask[:, None])["encoded"], want)
    got = loaded.signatures["serving_default"](x=tf.constant(x), mask=tf.constant(mask[:, None]))
    assert np.array_equal(got["encoded"], want)


def test_the_library_names_the_one_of_tensorflow_that_it_calls():
    # Not all versions (2.13) load theirs for all to see, and 2.21 does not show it when this is forgotten.
    assert b"libtensorflow_framework.so.2\0" in Path(fused.library()).read_bytes()


# ---- callers ----


def test_defect_6_calls_may_overlap(traced):
    batches = [(embeddings(n, 4 + n, seed=n), holes(n, 4 + n, seed=n)) for n in range(1, 9)]
    wants = [expected(x, mask) for x, mask in batches]
    wrong = []

    def work(turn):
        for i in range(40):
            at = (i + turn) % len(batches)
            if not np.array_equal(traced(batches[at][0], batches[at][1][:, None]), wants[at]):
                wrong.append(at)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("threads", [0, 1])
def test_defect_6_nodes_of_one_session_run_side_by_side(threads):
    x, mask = embeddings(3, 9), holes(3, 9)
    encoders = [make_encoder(seed) for seed in range(4)]
    with tf.Graph().as_default():
        given = v1.placeholder(tf.float32, [None, None, HIDDEN])
        nodes = [fused.bert(given, mask[:, None], weights(e), **SIZES, NumThreads=threads) for e in encoders]
        config = v1.ConfigProto(inter_op_parallelism_threads=4)
        with v1.Session(config=config) as session:
            for _ in range(5):
                for got, encoder in zip(session.run(nodes, {given: x}), encoders, strict=True):
                    assert np.array_equal(got, expected(x, mask, encoder))


def test_defect_6_variables_that_change_are_noticed():
    x, mask = embeddings(2, 7), np.ones((2, 7), np.int32)
    before, after = make_encoder(0), make_encoder(1)
    variables = [tf.Variable(w) for w in weights(before)]
    call = tf.function(lambda x: fused.bert(x, mask[:, None], variables, **SIZES))
    assert np.array_equal(call(x), expected(x, mask, before))
    for variable, array in zip(variables, weights(after), strict=True):
        variable.assign(array)
    assert np.array_equal(call(x), expected(x, mask, after))
    up = after.blocks[3].body.up
    weight = up.weight.copy()
    for _ in range(3):  # a single number, in place if TensorFlow may
        variables[26].scatter_nd_add([[3, 7]], [1.0])
        weight[7, 3] += 1
        last = changed(after.blocks[3], up=replace(up, weight=weight))
        assert np.array_equal(call(x), expected(x, mask, Encoder.of(HIDDEN, (*after.blocks[:3], last))))


def test_defect_6_reference_variables_that_are_written_in_place_are_noticed():
    x, mask = embeddings(2, 7), np.ones((2, 7), np.int32)
    with tf.Graph().as_default(), v1.Session() as session:
        names = range(LAYERS * 16)
        given = [v1.placeholder(tf.float32, w.shape) for w in weights(make_encoder())]
        variables = [v1.get_variable(f"w{i}", given[i].shape, use_resource=False) for i in names]
        assign = [v1.assign(variables[i], given[i]) for i in names]
        encoded = fused.bert(x, mask[:, None], [tf.identity(v) for v in variables], **SIZES)
        for seed in (0, 1, 0, 2):
            session.run(assign, dict(zip(given, weights(make_encoder(seed)), strict=True)))
            for _ in range(2):
                assert np.array_equal(session.run(encoded), expected(x, mask, make_encoder(seed)))


def test_weights_that_every_call_computes_anew():
    x, mask, tensors = embeddings(2, 7), np.ones((2, 7), np.int32), weights(make_encoder())

    @tf.function
    def call(factor):
        return fused.bert(x, mask[:, None], [tf.constant(w) * factor for w in tensors], **SIZES)

    assert np.array_equal(call(tf.constant(1.0)), call(tf.constant(1.0)))
    assert np.array_equal(call(tf.constant(1.0)), expected(x, mask))
    assert error(call(tf.constant(2.0)), call(tf.constant(1.0))) > 0.1


def test_defect_3_calls_leave_no_memory_behind(traced):
    x, mask = tf.constant(embeddings(1, 2)), tf.constant(np.ones((1, 1, 2), np.int32))
    assert growth(lambda: traced(x, mask), times=1000) < 1 << 20


def test_defect_6_nothing_is_printed(capfd):
    run(embeddings(2, 7), np.ones((2, 1, 7), np.int32), make_encoder(7), NumThreads=2)
    assert capfd.readouterr().out == ""


# ---- mistakes ----


@pytest.mark.parametrize(
    ("x", "mask", "attributes", "sentence"),
    [
        ((2, 7, 48), (2, 1, 8), {}, r"embedded has shape \(2, 7, 48\) and input_mask \(2, 1, 8\)"),
        ((2, 7, 48), (3, 1, 7), {}, "expected"),
        ((2, 7, 48), (2, 3, 7), {}, "expected"),
        ((2, 7, 48), (2, 3, 1, 7), {}, "expected"),
        ((2, 7, 48), (7,), {}, "expected"),
        ((2, 7, 48), (2, 1, 1, 1, 7), {}, "expected"),
        ((2, 7, 40), (2, 1, 7), {}, r"\(B, S, 48\)"),
        ((48,), (1, 1, 1), {}, "expected"),
        ((1, 2, 7, 48), (2, 1, 7), {}, "expected"),
        ((13, 48), (2, 1, 7), {}, "expected"),
        ((2, 7, 48), (2, 1, 7), {"NumAttentionHeads": 5}, "HiddenSize 48 cannot be shared by 5 heads"),
        ((2, 7, 48), (2, 1, 7), {"HiddenSize": 0}, "HiddenSize"),
        ((2, 7, 48), (2, 1, 7), {"MaxSequenceLength": 0}, "MaxSequenceLength"),
        ((2, 7, 48), (2, 1, 7), {"HiddenAct": "gelu"}, "HiddenAct"),
        ((2, 7, 48), (2, 1, 7), {"Padding": "auto"}, "Padding"),
        ((2, 7, 48), (2, 1, 7), {"QuantizableDataType": tf.int16}, "QuantizableDataType"),
        ((2, 7, 48), (2, 1, 7), {"NonQuantizableDataType": tf.int16}, "NonQuantizableDataType"),
        ((2, 7, 48), (2, 1, 7), {"LayerNormEpsilon": -1.0}, "LayerNormEpsilon is -1"),
        ((2, 7, 48), (2, 1, 7), {"AttentionScale": float("nan")}, "AttentionScale"),
        ((2, 7, 48), (2, 1, 7), {"MaskValue": float("inf")}, "MaskValue"),
        ((2, 7, 48), (2, 1, 7), {"NumThreads": 5000}, "threads"),
        ((2, 7, 48), (2, 1, 7), {"IntermediateSize": 64}, r"weights\[10\], up.weight of layer 0"),
        ((2, 7, 48), (2, 1, 7), {"CalibrateQuantFactors": True}, "QuantizationFactorsPath"),
        ((2, 7, 48), (2, 1, 7), {"CalibrateQuantFactors": True, **PRECISIONS["int8"]}, "in floats"),
        ((2, 7, 48), (2, 1, 7), {"CalibrateQuantFactors": True, **PRECISIONS["bf16"]}, "in floats"),
        ((2, 7, 48), (2, 1, 7), {"QuantizationFactors": [0.0, 1.0], **PRECISIONS["int8"]}, "need 16"),
        ((2, 7, 48), (2, 1, 7), {"QuantizationFactors": [1.0, 0.0] * 8, **PRECISIONS["int8"]}, "no range"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(x, mask, attributes, sentence):
    with pytest.raises(InvalidArgument, match=sentence):
        run(np.ones(x, np.float32), np.ones(mask, np.int32), **attributes)


def test_weights_of_a_wrong_shape_or_number_are_refused():
    x, mask = embeddings(2, 7), np.ones((2, 1, 7), np.int32)
    good = weights(make_encoder())
    run(x, mask)
    for i in range(32):
        bad = [*good[:i], np.ones(1, np.float32), *good[i + 1 :]]
        with pytest.raises(InvalidArgument, match=rf"weights\[{i}\], .* of layer {i // 16}, has shape \(1\)"):
            fused.bert(x, mask, bad, **SIZES)
    with pytest.raises(InvalidArgument, match="NumWeights is 31"):
        fused.bert(x, mask, good[:31], **SIZES)
    with pytest.raises(InvalidArgument, match=r"weights\[12\]"):  # the same numbers in another shape
        fused.bert(x, mask, [*good[:12], good[12].reshape(HIDDEN, INNER), *good[13:]], **SIZES)
    with pytest.raises(InvalidArgument, match=r"block 3 up.*finite"):
        fused.bert(x, mask, [*good[:26], good[26] * np.nan, *good[27:]], **SIZES)


def test_a_mask_that_is_no_number_is_refused():
    x, mask = embeddings(1, 3), np.array([[[0, 1, np.nan]]], np.float32)
    for attributes in ({}, {"AdditiveMask": True}):
        with pytest.raises(InvalidArgument, match="input_mask holds"):
            run(x, mask, **attributes)


FORK = """
import os, sys
import numpy as np
from test_tensorflow_op import SIZES, embeddings, fused, make_encoder, tf, weights

x, mask, tensors = embeddings(2, 70), np.ones((2, 70), np.int32), [tf.constant(w) for w in weights(make_encoder())]
call = lambda: fused.bert(x, mask, tensors, NumThreads=3, **SIZES).numpy()
want = call()
child = os.fork()
if child == 0:
    same, threads = np.array_equal(call(), want), len(os.listdir("/proc/self/task"))
    os._exit(0 if same and threads == 3 else threads or 99)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_child_has_threads_of_its_own():
    done = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100, cwd=Path(__file__).parent
    )
    assert done.stdout == "0\n", done.stderr


# ---- quantisation factors ----


def observed(x, mask, encoder):
    """Low and high of every product's input, as the engine shows them."""
    batch, seen = Batch.masked(mask, x.shape[:2], "compute"), {}
    rows = np.ascontiguousarray(x.reshape(-1, HIDDEN)[batch.index])

    def watch(layer, product, rows):
        seen[layer, product] = (rows.min(), rows.max())

    made = engine.EncoderEngine(encoder, make_plan("fp32", len(encoder.blocks)), engine.pool(1))
    made.run(rows, batch, observer=watch)
    return np.array([seen[layer, product] for layer in range(len(encoder.blocks)) for product in range(2)])


def test_calibration_writes_the_factors_that_int8_reads(tmp_path):
    path, encoder = tmp_path / "factors.txt", make_encoder()
    first, second, mask = embeddings(3, 9), embeddings(2, 5, seed=8) * 1.5, np.ones((3, 9), np.int32)
    calibrate = {"CalibrateQuantFactors": True, "QuantizationFactorsPath": str(path)}
    tensors = [tf.constant(w) for w in weights(encoder)]
    call = tf.function(lambda x, mask: fused.bert(x, mask, tensors, **SIZES, **calibrate))
    assert np.array_equal(call(first, mask[:, None]), expected(first, mask))
    one, other = observed(first, mask, encoder), observed(second, mask[:2, :5], encoder)
    call(embeddings(0, 4), np.ones((0, 1, 4), np.int32))
    assert np.array_equal(np.loadtxt(path, np.float32), one.reshape(LAYERS, 8))
    call(second, mask[:2, None, :5])
    both = np.stack([np.minimum(one, other)[:, 0], np.maximum(one, other)[:, 1]], 1).reshape(LAYERS, 8)
    assert np.array_equal(np.loadtxt(path, np.float32), both)
    assert [p.name for p in tmp_path.iterdir()] == ["factors.txt"]

    want = expected(first, mask, plan=make_plan("int8", 2 * LAYERS, both))
    assert not np.array_equal(want, expected(first, mask, plan="int8"))
    got = run(first, mask[:, None], QuantizationFactorsPath=str(path), **PRECISIONS["int8"])
    assert np.array_equal(got, want)
    got = run(first, mask[:, None], QuantizationFactors=[float(v) for v in both.ravel()], **PRECISIONS["int8"])
    assert np.array_equal(got, want)
    path.write_text("\n".join(path.read_text().split()) + "\n1 2 3 surplus")  # line breaks mean nothing
    got = run(first, mask[:, None], QuantizationFactorsPath=str(path), **PRECISIONS["int8"])
    assert np.array_equal(got, want)
    in_floats = run(first, mask[:, None], QuantizationFactorsPath=str(tmp_path / "none"))
    assert np.array_equal(in_floats, expected(first, mask))


def test_a_range_too_wide_to_quantise_is_found_per_token(tmp_path):
    x, mask = embeddings(3, 9), np.ones((3, 9), np.int32)
    ranges = np.array([[[-8, 8], [-8, 8], [-101, 5], [-0.17, 141]]] * LAYERS, np.float32)
    fixed, found = Product("s8", -8, 8), Product("s8")
    layer = BlockPlan(fixed, fixed, "f32"), BlockPlan(found, found, "f32")
    want = expected(x, mask, plan=Plan("int8", layer * LAYERS, "s8"))
    got = run(x, mask[:, None], QuantizationFactors=[float(v) for v in ranges.ravel()], **PRECISIONS["int8"])
    assert np.array_equal(got, want)


def test_input_scales_even_out_the_columns_of_int8():
    x, mask, random = embeddings(3, 9), np.ones((3, 9), np.int32), np.random.default_rng(0)
    scales, blocks = random.uniform(0.5, 2, (2 * LAYERS, HIDDEN)).astype(np.float32), []
    for block, own in zip(make_encoder().blocks, scales, strict=True):
        names = block.body.products()[0]
        blocks.append(changed(block, **{name: replace(getattr(block.body, name), input_scales=own) for name in names}))
    want = expected(x, mask, Encoder.of(HIDDEN, tuple(blocks)), "int8")
    numbers = [float(v) for v in scales.ravel()]
    assert np.array_equal(run(x, mask[:, None], InputScales=numbers, **PRECISIONS["int8"]), want)
    assert np.array_equal(run(x, mask[:, None], InputScales=numbers), expected(x, mask))
    with pytest.raises(InvalidArgument, match="InputScales hold 191 numbers"):
        run(x, mask[:, None], InputScales=numbers[1:], **PRECISIONS["int8"])
    with pytest.raises(InvalidArgument, match="not both"):
        run(x, mask, InputScales=numbers, QuantizationFactors=[0.0, 1.0] * 8, **PRECISIONS["int8"])


def test_factors_that_cannot_be_read_or_written_are_told(tmp_path):
    x, mask = embeddings(1, 3), np.ones((1, 1, 3), np.int32)
    short = tmp_path / "short"
    short.write_text("0 1 " * 7)
    with pytest.raises(InvalidArgument, match=r"short hold 14 numbers, but 2 layers need 16"):
        run(x, mask, QuantizationFactorsPath=str(short), **PRECISIONS["int8"])
    with pytest.raises(tf.errors.NotFoundError, match="absent cannot be read"):
        run(x, mask, QuantizationFactorsPath=str(tmp_path / "absent"), **PRECISIONS["int8"])
    with pytest.raises(InvalidArgument, match="not both"):
        run(
            x, mask, QuantizationFactorsPath=str(short), QuantizationFactors=[0.0, 1.0] * 8, **PRECISIONS["int8"]
        )  # fmt: skip
    nowhere = str(tmp_path / "folder" / "factors")
    with pytest.raises(tf.errors.NotFoundError, match="cannot be written"):
        run(x, mask, CalibrateQuantFactors=True, QuantizationFactorsPath=nowhere)
    with pytest.raises(InvalidArgument, match="infinite or not a number"):
        run(x * np.inf, mask, CalibrateQuantFactors=True, QuantizationFactorsPath=str(short))
    assert short.read_text() == "0 1 " * 7
