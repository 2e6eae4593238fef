"""The op Bert and its kin as data: the same as what the library registers with TensorFlow."""

import json
import subprocess
import sys

import numpy as np
import pytest

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow import bert_op
from fusebert.formats.tensorflow.messages import message, set_attribute
from fusebert.formats.tensorflow.types import dtype_name

REGISTERED = (
    f"NAMES = {bert_op.FUSED}"
    + """
import json
import fusebert.tensorflow
from google.protobuf.json_format import MessageToDict
from tensorflow.python.framework import op_def_registry

ops = {name: op_def_registry.get(name) for name in NAMES}
print("ops", json.dumps({name: MessageToDict(op, use_integers_for_enums=True) for name, op in ops.items()}))
"""
)
KINDS = {
    "type": "type",
    "int": "i",
    "string": "s",
    "bool": "b",
    "float": "f",
    "list(float)": "list",
    "list(type)": "list",
}


@pytest.fixture(scope="module")
def registered():
    """The OpDefs, as the library registers them: in a process of its own, without this one's modules."""
    pytest.importorskip("tensorflow")
    ended = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    return json.loads(ended.stdout.split("ops ")[-1])


def value_of(kind, value):
    """An AttrValue in JSON as its Python value."""
    if kind == "list":
        return tuple(value["list"].get("f", ()))
    plain = {"type": lambda v: dtype_name(v), "i": int, "s": lambda v: _decoded(v), "b": bool, "f": np.float32}
    return plain[kind](value[kind])


def _decoded(text):
    from base64 import b64decode

    return b64decode(text).decode()


@pytest.mark.parametrize("op", bert_op.FUSED)
def test_attributes_are_those_of_the_registered_op(registered, op):
    theirs = {one["name"]: one for one in registered[op]["attr"]}
    ours = bert_op.ATTRIBUTES[op]
    assert set(theirs) == set(ours)
    for name, attribute in ours.items():
        one = theirs[name]
        assert attribute.kind == KINDS[one["type"]], name
        if attribute.default is None:
            assert "defaultValue" not in one, name
        else:
            wanted = np.float32(attribute.default) if attribute.kind == "f" else attribute.default
            assert value_of(attribute.kind, one["defaultValue"]) == wanted, name
        allowed = one.get("allowedValues", {}).get("list", {})
        names = {*map(dtype_name, allowed.get("type", ())), *map(_decoded, allowed.get("s", ()))}
        assert names == set(attribute.allowed), name
        if attribute.kind == "i" or one["type"] == "list(type)":
            assert int(one.get("minimum", 0)) == attribute.least, name


@pytest.mark.parametrize("op", bert_op.FUSED)
def test_inputs_and_outputs_are_those_of_the_registered_op(registered, op):
    inputs = {one["name"]: (one.get("numberAttr"), one.get("typeAttr")) for one in registered[op]["inputArg"]}
    assert tuple(inputs) == bert_op.INPUTS
    typed = op in (*bert_op.COMPACT, bert_op.FORM)
    weights = (None, None) if typed else ("NumWeights", None)
    assert inputs == {"embedded": (None, None), "input_mask": (None, "MaskT"), "weights": weights}
    if typed:
        assert registered[op]["inputArg"][2]["typeListAttr"] == "WeightTypes"
    outputs = {one["name"]: one.get("numberAttr") for one in registered[op]["outputArg"]}
    assert tuple(outputs) == bert_op.OUTPUTS[op]
    assert outputs.get("hidden_states", "NumHiddenStates") == "NumHiddenStates"


def test_the_order_of_the_weights():
    assert bert_op.PER_LAYER == 16
    assert bert_op.WEIGHTS[6:10] == (
        ("attention.out", "weight"), ("attention.out", "bias"),
        ("attention.after", "gain"), ("attention.after", "bias"),
    )  # fmt: skip
    shapes = bert_op.weight_shapes(8, 2, 12)
    assert tuple(shapes) == bert_op.WEIGHTS
    assert shapes["attention.query", "weight"] == ((8, 8), (8, 2, 4))
    assert shapes["feed_forward.down", "weight"] == ((12, 8),)


def test_the_order_of_a_compact_layers_weights():
    assert bert_op.COMPACT_WEIGHTS[:16] == bert_op.WEIGHTS
    assert len(bert_op.COMPACT_WEIGHTS) == 28
    assert bert_op.COMPACT_WEIGHTS[16] == ("attention.query", "scales")
    assert bert_op.COMPACT_WEIGHTS[27] == ("feed_forward.down", "input_scales")


def node(op="Bert", layers=1, **attributes):
    made = message("NodeDef")
    made.name, made.op = "fused", op
    made.input.extend(["x", "m", *(f"w{i}" for i in range(16 * layers))])
    settings = {"MaskT": "float32", "NumWeights": 16 * layers, **attributes}
    for name, value in bert_op.typed({key: value for key, value in settings.items() if value is not None}).items():
        set_attribute(made.attr.add(key=name).value, value)
    return made


def test_settings_have_the_defaults():
    settings = bert_op.check_node(node(HiddenSize=24, NumAttentionHeads=2))
    assert settings["HiddenSize"] == 24
    assert settings["HiddenAct"] == "gelu_tanh"
    assert "NumHiddenStates" not in settings
    assert bert_op.check_node(node("BertHiddenStates", 2, NumHiddenStates=2))["NumHiddenStates"] == 2


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (node(NumHiddenStates=1), "the op Bert has no attribute NumHiddenStates"),
        (node("BertHiddenStates"), "has no attribute NumHiddenStates, which the op BertHiddenStates needs"),
        (node("BertHiddenStates", 2, NumHiddenStates=1), "NumHiddenStates must be the number of layers, 2"),
        (node(MaskT=None), "has no attribute MaskT"),
        (node(HiddenSize=0), "HiddenSize is 0; it must be at least 1"),
        (node(MaskT="bfloat16"), "MaskT is bfloat16; use one of int32, int64, float32, bool"),
        (node(QuantizationFactors=(1.0, 2.0), QuantizableDataType="qint8"), "holds 2 numbers; 1 layers need 8"),
        (node(MaskValue=float("inf")), "MaskValue is inf; it must be finite"),
    ],
)
def test_what_the_op_would_refuse_is_refused(made, reason):
    with pytest.raises(FusebertError, match=reason):
        bert_op.check_node(made)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8", "int8-bf16"])
def test_precisions(precision):
    assert bert_op.precision_of(bert_op.precision_types(precision)) == precision
