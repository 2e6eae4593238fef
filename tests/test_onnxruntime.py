"""The operator fusebert.Encoder inside ONNX Runtime: the engine's rows, whatever the mask, and clear errors."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from encoders import changed as changed_block
from encoders import random_encoder
from onnx import TensorProto, helper

import fusebert.onnxruntime
from fusebert.engine import native as engine
from fusebert.errors import FusebertError
from fusebert.values.batch import LOWEST, Batch
from fusebert.values.blocks import Encoder, Linear, Norm
from fusebert.values.forms import reference
from fusebert.values.plan import make_plan
from fusebert.values.precision import PRECISIONS
from fusebert.values.traverse import layer_encoder, layers, map_parts, parts

ONNX_TYPES = {
    "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16,
    "int8": TensorProto.INT8, "int32": TensorProto.INT32, "int64": TensorProto.INT64, "bool": TensorProto.BOOL,
}  # fmt: skip
EMPTY = np.zeros(0, np.float32)


def weights(encoder: Encoder, extras: bool = False) -> list[np.ndarray]:
    """In the order of the operator's inputs."""
    arrays = []
    for places in layers(encoder):
        layer = [part for _, part in parts(layer_encoder(encoder, places))]
        for part in layer:
            arrays += [part.gain if isinstance(part, Norm) else part.weight, part.bias]
        if extras:
            linears = [part for part in layer if isinstance(part, Linear)]
            arrays += [getattr(part, field) for field in ("scales", "input_scales") for part in linears]
    return [EMPTY if array is None else np.ascontiguousarray(array) for array in arrays]


def attributes(encoder: Encoder) -> dict[str, Any]:
    attentions = [block.body for block in encoder.blocks[::2]]
    return {
        "heads": [body.heads for body in attentions], "activation": encoder.blocks[1].body.activation,
        "epsilon": [block.after.epsilon for block in encoder.blocks], "scale": [body.scale for body in attentions],
    }  # fmt: skip


def tensor(name: str, array: np.ndarray) -> TensorProto:
    return helper.make_tensor(name, ONNX_TYPES[array.dtype.name], array.shape, array.tobytes(), raw=True)


def save(
    path, arrays: list[np.ndarray], settings: dict[str, Any], rank: int = 3, mask: np.ndarray | None = None,
    inputs: tuple[str, ...] = (),
):  # fmt: skip
    """A model of one node; `inputs` are the weights that are asked for instead of stored."""
    names = [f"w{i}" for i in range(len(arrays))]
    outputs = ["encoded", *(f"after{i}" for i in settings.get("taps", ()))]
    node = helper.make_node(
        "Encoder", ["rows", "mask" if mask is not None else "", *names], outputs, "enc", domain="fusebert", **settings
    )
    asked = [helper.make_tensor_value_info("rows", TensorProto.FLOAT, [None] * rank)]
    if mask is not None:
        asked.append(helper.make_tensor_value_info("mask", ONNX_TYPES[mask.dtype.name], [None] * mask.ndim))
    stored = []
    for name, array in zip(names, arrays, strict=True):
        if name in inputs:
            asked.append(helper.make_tensor_value_info(name, ONNX_TYPES[array.dtype.name], array.shape))
        else:
            stored.append(tensor(name, array))
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("fusebert", 1)]
    graph = helper.make_graph([node], "g", asked, given, stored)
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def run(path, rows: np.ndarray, mask: np.ndarray | None = None, threads: int = 2) -> list[np.ndarray]:
    feeds = {"rows": rows} if mask is None else {"rows": rows, "mask": mask}
    return fusebert.onnxruntime.session(path, threads=threads).run(None, feeds)


def expected(
    encoder: Encoder, rows: np.ndarray, mask: np.ndarray | None, precision: str = "fp32", padding: str = "skip",
    ranges: Any = None,
) -> tuple[np.ndarray, list[np.ndarray]]:  # fmt: skip
    """The engine's rows, and those after every layer, in the padded batch."""
    batch = Batch.masked(mask, rows.shape[:2], padding, encoder.blocks[0].body.heads)
    packed = engine.EncoderEngine(encoder, make_plan(precision, len(encoder.blocks), ranges), engine.pool(2))
    flat = np.ascontiguousarray(rows.reshape(-1, encoder.hidden_size)[batch.index])
    out, states = packed.run(flat, batch, hidden_states=True)
    return batch.spread(out, False), [batch.spread(state, False) for state in states]


def quantized(encoder: Encoder, input_scales: np.ndarray | None = None) -> Encoder:
    """With int8 weights; the products behind a LayerNorm are smoothed."""

    def convert(linear: Linear, scales: np.ndarray | None) -> Linear:
        values, steps = engine.quantize(linear.weight if scales is None else linear.weight * scales)
        return Linear(values, linear.bias, steps, scales)

    smoothed = ("query", "key", "value", "up")

    def part(path: str, old: Linear | Norm) -> Linear | Norm:
        return old if isinstance(old, Norm) else convert(old, input_scales if path.split(".")[-1] in smoothed else None)

    return map_parts(encoder, part)


def noise(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def masks(sequences: int, length: int) -> dict[str, np.ndarray | None]:
    """Every form of mask."""
    random = np.random.default_rng(sequences * 100 + length)
    lengths = random.integers(1, length + 1, sequences)
    right = (np.arange(length) < lengths[:, None]).astype(np.int64)
    holes = random.integers(0, 2, (sequences, length))
    additive = np.where(random.random((sequences, 3, length, length)) < 0.7, 0, LOWEST).astype(np.float32)
    return {
        "none": None,
        "right int64": right,
        "right int32": right.astype(np.int32),
        "right float": right.astype(np.float32),
        "left bool": right[:, ::-1].astype(bool),
        "holes": holes,
        "all hidden": np.zeros((sequences, length), np.int32),
        "lengths int32": lengths.astype(np.int32),
        "lengths int64": lengths,
        "square": random.integers(0, 2, (sequences, length, length)),
        "additive row": np.where(right[:, None, None], 0, -1e4).astype(np.float32),
        "additive full": additive,
        "additive for all": additive[:1, :1],
        "additive boolean": additive == 0,
    }


@pytest.mark.parametrize("kind", masks(1, 1))
def test_fp32_is_the_engine_bit_for_bit(tmp_path, kind):
    encoder = random_encoder()
    settings = attributes(encoder)
    shapes = [(1, 1), (1, 40), (2, 7), (3, 13), (5, 2), (4, 1)]
    path = save(tmp_path / "m.onnx", weights(encoder), settings, mask=masks(1, 1)[kind])
    session = fusebert.onnxruntime.session(path, threads=2)
    for shape in shapes:
        rows, mask = noise(*shape, encoder.hidden_size), masks(*shape)[kind]
        feeds = {"rows": rows} if mask is None else {"rows": rows, "mask": mask}
        (encoded,) = session.run(None, feeds)
        assert np.array_equal(encoded, expected(encoder, rows, mask)[0]), shape


def test_the_reference_agrees(tmp_path):
    encoder = random_encoder(bias=False)
    rows, mask = noise(3, 9, encoder.hidden_size), masks(3, 9)["additive full"]
    path = save(tmp_path / "m.onnx", weights(encoder), attributes(encoder), mask=mask)
    assert np.abs(run(path, rows, mask)[0] - reference(encoder, rows.astype(np.float64), mask)).max() < 1e-5


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("stored", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_precisions_and_types_of_weights(tmp_path, precision, stored):
    encoder = random_encoder(hidden=32, heads=2, key_size=16, value_size=16, inner=64)
    arrays = [array.astype(stored) for array in weights(encoder)]
    floats = iter(array.astype(np.float32) for array in arrays)
    rounded = map_parts(
        encoder,
        lambda _, part: (
            replace(part, gain=next(floats), bias=next(floats))
            if isinstance(part, Norm)
            else Linear(next(floats), next(floats))
        ),
    )
    rows, mask = noise(3, 11, 32), masks(3, 11)["right int64"]
    path = save(tmp_path / "m.onnx", arrays, attributes(encoder) | {"precision": precision}, mask=mask)
    assert np.array_equal(run(path, rows, mask)[0], expected(rounded, rows, mask, precision)[0])


@pytest.mark.parametrize("precision", ["int8", "int8-bf16"])
def test_int8_weights_input_scales_and_static_ranges(tmp_path, precision):
    encoder = random_encoder(hidden=32, heads=2, key_size=16, value_size=16, inner=64)
    int8 = quantized(encoder, np.linspace(0.5, 2, 32).astype(np.float32))
    rows, mask = noise(3, 11, 32), masks(3, 11)["holes"]
    settings = attributes(encoder) | {"precision": precision}
    path = save(tmp_path / "m.onnx", weights(int8, True), settings | {"weights_per_layer": 28}, mask=mask)
    assert np.array_equal(run(path, rows, mask)[0], expected(int8, rows, mask, precision)[0])
    ranges = [-4.0, 5.0, -2.0, 2.0, -6.0, 6.5, -1.0, 7.0] * 2
    path = save(tmp_path / "s.onnx", weights(encoder), settings | {"ranges": ranges}, mask=mask)
    static = run(path, rows, mask)[0]
    assert np.array_equal(static, expected(encoder, rows, mask, precision, ranges=ranges)[0])
    wide = [-200.0, 200.0, *ranges[2:]]  # too wide for 8 bits: that product finds its range per token, in every host
    path = save(tmp_path / "w.onnx", weights(encoder), settings | {"ranges": wide}, mask=mask)
    assert np.array_equal(run(path, rows, mask)[0], expected(encoder, rows, mask, precision, ranges=wide)[0])
    assert not np.array_equal(static, expected(encoder, rows, mask, precision)[0])


def test_norms_without_gain_and_bias(tmp_path):
    encoder = map_parts(
        random_encoder(), lambda _, part: replace(part, gain=None, bias=None) if isinstance(part, Norm) else part
    )
    path = save(tmp_path / "m.onnx", weights(encoder), attributes(encoder))
    rows = noise(2, 5, encoder.hidden_size)
    assert np.array_equal(run(path, rows)[0], expected(encoder, rows, None)[0])


def test_one_value_for_all_layers_and_defaults(tmp_path):
    encoder = random_encoder(key_size=4)
    blocks = [replace(block, after=replace(block.after, epsilon=1e-12)) for block in encoder.blocks]
    blocks[::2] = [changed_block(block, scale=0.5) for block in blocks[::2]]
    encoder = Encoder.of(encoder.hidden_size, tuple(blocks))
    path = save(tmp_path / "m.onnx", weights(encoder), {"heads": 3, "epsilon": 1e-12, "scale": 0})
    rows = noise(2, 5, encoder.hidden_size)
    assert np.array_equal(run(path, rows)[0], expected(encoder, rows, None)[0])


@pytest.mark.parametrize("padding", ["skip", "first", "compute"])
def test_padding_and_taps(tmp_path, padding):
    encoder = random_encoder(layers=3)
    rows = noise(4, 6, encoder.hidden_size)
    mask = np.array([[1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0]])
    settings = attributes(encoder) | {"padding": padding, "taps": [2, 0]}
    path = save(tmp_path / "m.onnx", weights(encoder), settings, mask=mask)
    encoded, last, first = run(path, rows, mask)
    want, states = expected(encoder, rows, mask, padding=padding)
    shown = mask.astype(bool) | (padding == "compute")
    if padding == "first":
        shown[:, 0] = True
    for have, whole in ((encoded, want), (last, states[2]), (first, states[0])):
        assert np.array_equal(have, np.where(shown[..., None], whole, 0))
    assert np.array_equal(encoded, last)
    assert (encoded[~shown] == 0).all()
    assert (np.abs(encoded[shown]).max(-1) > 0).all()


def test_flat_rows_take_their_shape_from_the_mask(tmp_path):
    encoder = random_encoder()
    rows, mask = noise(3, 8, encoder.hidden_size), masks(3, 8)["left bool"]
    path = save(tmp_path / "m.onnx", weights(encoder), attributes(encoder), rank=2, mask=mask)
    (encoded,) = run(path, rows.reshape(24, -1), mask)
    assert np.array_equal(encoded, expected(encoder, rows, mask)[0].reshape(24, -1))
    with pytest.raises(Exception, match="24 rows do not fit a mask of 3 x 7"):
        run(path, rows.reshape(24, -1), mask[:, 1:])
    path = save(tmp_path / "n.onnx", weights(encoder), attributes(encoder), rank=2)
    with pytest.raises(Exception, match="flat rows need a mask"):
        run(path, rows.reshape(24, -1))


@pytest.mark.parametrize("shape", [(0, 5), (3, 0)])
def test_no_rows(tmp_path, shape):
    encoder = random_encoder()
    for mask in (None, np.zeros(shape, np.int64), np.zeros((1, 1, 1, shape[1]), np.float32)):
        path = save(tmp_path / "m.onnx", weights(encoder), attributes(encoder), mask=mask)
        assert run(path, noise(*shape, encoder.hidden_size), mask)[0].shape == (*shape, encoder.hidden_size)


def test_callers_and_sessions_side_by_side(tmp_path):
    encoder = random_encoder()
    path = save(tmp_path / "m.onnx", weights(encoder), attributes(encoder), mask=np.zeros((1, 1), np.int64))
    sessions = [fusebert.onnxruntime.session(path, threads=threads) for threads in (1, 2, 2, None)]
    cases = []
    for seed, shape in enumerate([(1, 5), (2, 30), (5, 12), (3, 1)]):
        rows, mask = noise(*shape, encoder.hidden_size, seed=seed), masks(*shape)["holes"]
        cases.append(({"rows": rows, "mask": mask}, expected(encoder, rows, mask)[0]))

    def call(i: int) -> bool:
        feeds, want = cases[i % 4]
        return np.array_equal(sessions[i // 4 % 4].run(None, feeds)[0], want)

    with ThreadPoolExecutor(8) as callers:
        assert all(callers.map(call, range(160)))


def test_a_larger_graph_around_it(tmp_path):
    """Other operators before and after, optimised by ONNX Runtime, with a fixed shape declared."""
    encoder = random_encoder()
    path = save(tmp_path / "m.onnx", weights(encoder), attributes(encoder), mask=np.zeros((1, 1), np.int32))
    model = onnx.load(path)
    node = model.graph.node[0]
    node.input[0], node.input[1], node.output[0] = "twice", "kept", "inner"
    before = [helper.make_node("Add", ["rows", "rows"], ["twice"]), helper.make_node("Cast", ["mask"], ["kept"], to=9)]
    after = helper.make_node("ReduceMean", ["inner"], ["encoded"], axes=[1])
    nodes = [*before, node, after]
    graph = helper.make_graph(nodes, "g", model.graph.input, model.graph.output, model.graph.initializer)
    model.graph.CopyFrom(graph)
    onnx.save(model, path)
    rows, mask = noise(2, 9, encoder.hidden_size), masks(2, 9)["right int32"]
    want = expected(encoder, rows + rows, mask)[0].mean(1, keepdims=True)
    assert np.abs(run(path, rows, mask)[0] - want).max() < 1e-6


def changed(arrays: list[np.ndarray], place: int, array: np.ndarray) -> list[np.ndarray]:
    return [*arrays[:place], array, *arrays[place + 1 :]]


ENCODER = random_encoder()
PLAIN, SETTINGS = weights(ENCODER), attributes(ENCODER)
WRONG = {
    "few weights": (PLAIN[:-1], {}, "31 weights, but every layer has 16"),
    "odd layers": (PLAIN, {"weights_per_layer": 17}, "weights_per_layer is 16 or 28, not 17"),
    "wide key": (changed(PLAIN, 2, noise(15, 25)), {}, "block 0 key: the weight is 15 x 25, expected 15 x 24"),
    "short bias": (changed(PLAIN, 17, noise(3)), {}, r"layer 1 query.bias \(input 19\) has 3 elements, not 15"),
    "flat weight": (changed(PLAIN, 4, noise(21 * 24)), {}, "value.weight .* has 1 dimensions, not 2"),
    "type": (changed(PLAIN, 0, PLAIN[0].astype(np.int32)), {}, "query.weight .* is not float32, float16"),
    "norm type": (changed(PLAIN, 8, np.ones(24, np.int8)), {}, "layer 0 after.gain .* is not float32, float16"),
    "no scales": (changed(PLAIN, 0, PLAIN[0].astype(np.int8)), {}, "query.weight .* is int8 and has no scales"),
    "nan": (changed(PLAIN, 0, PLAIN[0] * np.nan), {}, "block 0 query, key, value weight row 0: value 0 is not finite"),
    "heads": (PLAIN, {"heads": 4}, "a width of 15 cannot be shared by 4 heads"),
    "no heads": (PLAIN, {"heads": 0}, "heads: 0 is not a number of heads"),
    "heads missing": (PLAIN, {"heads": None}, "heads holds 0 values; 2 layers need one for all, or 2"),
    "heads type": (PLAIN, {"heads": [3.0, 3.0]}, "attribute heads holds whole numbers"),
    "epsilons": (PLAIN, {"epsilon": [1e-5, 1e-5]}, "epsilon holds 2 values; 2 layers need one for all, or 4"),
    "activation": (PLAIN, {"activation": "swish"}, "activation 'swish' is unknown; use one of identity, gelu_erf"),
    "precision": (PLAIN, {"precision": "fp16"}, "precision 'fp16' is unknown; use one of fp32, bf16"),
    "precision type": (PLAIN, {"precision": 8}, "attribute precision is a string"),
    "padding": (PLAIN, {"padding": "auto"}, "padding 'auto' is unknown; use one of skip, first, compute"),
    "ranges": (PLAIN, {"precision": "int8", "ranges": [0.0, 1.0]}, "ranges hold 2 numbers; 4 blocks need 16"),
    "fp32 ranges": (PLAIN, {"ranges": [0.0, 1.0]}, "ranges belong to int8 and int8-bf16, not to fp32"),
    "upside down": (PLAIN, {"precision": "int8", "ranges": [1.0, 0.0] * 8}, "every low must be finite and not above"),
    "taps": (PLAIN, {"taps": [2]}, "taps are different layers from 0 to 1"),
    "same taps": (PLAIN, {"taps": [1, 1]}, "taps are different layers|[Dd]uplicate"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_when_loaded(tmp_path, case):
    arrays, settings, message = WRONG[case]
    settings = {key: value for key, value in (SETTINGS | settings).items() if value is not None}
    path = save(tmp_path / "m.onnx", arrays, settings)
    with pytest.raises(FusebertError, match=message) as error:
        fusebert.onnxruntime.session(path)
    assert str(path) in str(error.value)
    if case != "same taps":
        assert "fusebert.Encoder 'enc'" in str(error.value)


def test_int8_weights_in_float_products_are_refused(tmp_path):
    arrays = weights(quantized(ENCODER), True)
    path = save(tmp_path / "m.onnx", arrays, SETTINGS | {"weights_per_layer": 28})
    with pytest.raises(FusebertError, match="int8 weights need precision int8 or int8-bf16, not fp32"):
        fusebert.onnxruntime.session(path)


def test_weights_that_are_not_constant_are_refused(tmp_path):
    path = save(tmp_path / "m.onnx", PLAIN, SETTINGS, inputs=("w2",))
    with pytest.raises(FusebertError, match=r"layer 0 key.weight \(input 4\) is not constant"):
        fusebert.onnxruntime.session(path)


WRONG_MASKS = {
    "two": (np.full((2, 4), 2), "with 2 dimensions it holds only 0 and 1"),
    "nan": (np.full((2, 4), np.nan, np.float32), "with 2 dimensions it holds only 0 and 1"),
    "shape": (np.ones((2, 5), np.int64), r"mask has shape \(2, 5\), but the rows belong to 2 sequences of 4"),
    "lengths": (np.array([4, 5]), "2 whole lengths from 0 to 4 are expected"),
    "negative": (np.array([-1, 2], np.int32), "2 whole lengths from 0 to 4 are expected"),
    "float lengths": (np.array([1, 2], np.float32), "2 whole lengths from 0 to 4 are expected"),
    "heads": (np.zeros((2, 2, 4, 4), np.float32), r"mask has shape \(2, 2, 4, 4\); .* or \(B, 3, S, S\)"),
    "rank": (np.zeros((2, 1, 1, 1, 4), np.float32), r"mask has shape \(2, 1, 1, 1, 4\)"),
    "whole": (np.zeros((2, 1, 1, 4), np.int64), "with four dimensions it is boolean, or floats"),
    "additive nan": (np.full((2, 1, 1, 4), np.nan, np.float32), "mask holds NaN"),
    "type": (np.zeros((2, 4), np.float16), "mask must be int32, int64, float32 or bool"),
}


@pytest.mark.parametrize("case", WRONG_MASKS)
def test_masks_that_do_not_fit_are_refused(tmp_path, case):
    mask, message = WRONG_MASKS[case]
    path = save(tmp_path / "m.onnx", PLAIN, SETTINGS, mask=mask)
    with pytest.raises(Exception, match=message) as error:
        run(path, noise(2, 4, 24), mask)
    assert "Name:'enc'" in str(error.value)


def test_rows_of_another_width_are_refused(tmp_path):
    path = save(tmp_path / "m.onnx", PLAIN, SETTINGS)
    with pytest.raises(Exception, match=r"rows must be \(B, S, 24\) or \(B \* S, 24\)"):
        run(path, noise(2, 4, 23))


def test_threads(tmp_path):
    import onnxruntime

    path = save(tmp_path / "m.onnx", PLAIN, SETTINGS)
    for wrong in (0, 1025, "2", 1.5):
        with pytest.raises(FusebertError, match="threads: a whole number from 1 to 1024"):
            fusebert.onnxruntime.session(path, threads=wrong)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    fusebert.onnxruntime.session(path, options)
    assert options.get_session_config_entry("fusebert.threads") == "1"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.register_custom_ops_library(fusebert.onnxruntime.library())
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "1"
    path = save(tmp_path / "n.onnx", PLAIN, SETTINGS | {"threads": -1})
    with pytest.raises(FusebertError, match="threads: 1 to 1024, or 0"):
        fusebert.onnxruntime.session(path)
    fusebert.onnxruntime.session(path, threads=1)
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("fusebert.threads", "many")
    with pytest.raises(Exception, match="threads: 'many' is not a number"):
        options.register_custom_ops_library(fusebert.onnxruntime.library())


def test_options_serve_several_sessions(tmp_path):
    import onnxruntime

    path = save(tmp_path / "m.onnx", PLAIN, SETTINGS)
    options = onnxruntime.SessionOptions()
    rows = noise(1, 3, 24)
    one, two = (fusebert.onnxruntime.session(path, options).run(None, {"rows": rows})[0] for _ in range(2))
    assert np.array_equal(one, two)
    with pytest.raises(FusebertError, match="have the operator already, with other threads"):
        fusebert.onnxruntime.session(path, options, threads=1)


def test_a_file_that_is_no_model(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"rubbish")
    with pytest.raises(FusebertError, match=r"m\.onnx"):
        fusebert.onnxruntime.session(tmp_path / "m.onnx")
    with pytest.raises(FusebertError, match=r"gone\.onnx"):
        fusebert.onnxruntime.session(tmp_path / "gone.onnx")


def test_the_library_needs_nothing_of_the_package(tmp_path):
    """A process that never imports fusebert, and drops everything in the worst order."""
    encoder = random_encoder()
    path = save(tmp_path / "m.onnx", weights(encoder), attributes(encoder))
    script = f"""
import gc, numpy, onnxruntime
options = onnxruntime.SessionOptions()
options.register_custom_ops_library({fusebert.onnxruntime.library()!r})
session = onnxruntime.InferenceSession({str(path)!r}, options)
del options; gc.collect()
print(float(session.run(None, {{"rows": numpy.ones((2, 3, 24), numpy.float32)}})[0].sum()))
del session; gc.collect()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    want = expected(encoder, np.ones((2, 3, 24), np.float32), None)[0].sum()
    assert abs(float(done.stdout) - want) < 1e-3
