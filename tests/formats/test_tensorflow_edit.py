"""The TensorFlow editor: what is replaced, what goes with it, and what stays."""

import numpy as np
import pytest

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.edit import Editor, NewNode
from fusebert.formats.tensorflow.messages import message
from fusebert.formats.tensorflow.scope import function_scope, main_scope

BODY = "a Mul x:0 w:0\nb Tanh a:z:0\nc Relu b:y:0\nd Neg b:y:0"


def add(nodes, text):
    for line in text.splitlines():
        name, op, *inputs = line.split()
        nodes.add(name=name, op=op).input.extend(inputs)


def function(text, returned, controls=()):
    made = message("Function")
    made.signature.name = "f"
    for name in ("x", "w"):
        made.signature.input_arg.add(name=name, type=1)
    add(made.node_def, text.replace(":0 ", " ").replace("x:0", "x").replace("w:0", "w"))
    for key, value in returned.items():
        made.ret.add(key=key, value=value)
    for name in controls:
        made.control_ret.add(key=name, value=name)
    return made


def nodes(messages):
    return {node.name: (node.op, list(node.input)) for node in messages}


def test_readers_in_a_function_follow_the_alias_by_its_new_port():
    made = function(BODY, {"out": "c:activations:0", "more": "d:y:0"})
    Editor(function_scope(made), []).replace([NewNode("Fused", "new", ("x",))], {"b:y:0": "new:encoded:0"})
    assert nodes(made.node_def) == {
        "b": ("Identity", ["new:encoded:0"]), "c": ("Relu", ["b:output:0"]), "d": ("Neg", ["b:output:0"]),
        "new": ("Fused", ["x"]),
    }  # fmt: skip


def test_a_new_node_that_reads_a_replaced_tensor_reads_its_alias():
    """Two encoders, one behind the other in a function: the second reads what takes the place of the first's result."""
    made = function(BODY, {"out": "c:activations:0"})
    new = [NewNode("Fused", "one", ("x",)), NewNode("Fused", "two", ("b:y:0",))]
    Editor(function_scope(made), []).replace(new, {"b:y:0": "one:encoded:0", "c:activations:0": "two:encoded:0"})
    assert nodes(made.node_def)["two"] == ("Fused", ["b:output:0"])
    assert made.ret[0].value == "c:output:0"


def test_what_is_named_outside_and_other_outputs_stay():
    made = function("s TopKV2 x w\nb Tanh s:values:0\nc Relu b:y:0\nt Neg s:indices:0", {"o": "c:z:0", "t": "t:y:0"})
    Editor(function_scope(made), []).replace([NewNode("Fused", "new", ("x",))], {"b:y:0": "new:encoded:0"})
    assert nodes(made.node_def)["t"] == ("Neg", ["s:indices:0"])
    assert "s" in nodes(made.node_def)


def meta(text, outputs=()):
    made = message("MetaGraph")
    add(made.graph_def.node, text)
    for name in outputs:
        made.signature_def.add(key="serving_default").value.outputs.add(key=name).value.name = f"{name}:0"
    return made


MAIN = "x Placeholder\nv VarHandleOp\nr ReadVariableOp v\na Mul x r\nb Tanh a\nc Relu b\n"


@pytest.mark.parametrize(("outputs", "kept"), [(["c"], set()), ([], {"n"})])
def test_shape_arithmetic_that_nobody_reads_goes_where_outputs_are_known(outputs, kept):
    made = meta(MAIN + "s Shape a\nz StridedSlice s\nn Cast a", outputs)
    Editor(main_scope(made), []).replace([NewNode("Fused", "new", ("x",))], {"b:0": "new:0"})
    assert set(nodes(made.graph_def.node)) == {"x", "v", "b", "c", "new"} | ({"n", "a", "r"} if kept else set())


def test_constants_become_payloads_and_names_are_unique():
    made, payloads = meta(MAIN), []
    editor = Editor(main_scope(made), payloads)
    editor.add(NewNode("Const", "k", (), {"value": np.arange(3, dtype=np.int32)}))
    assert payloads == [np.arange(3, dtype=np.int32).tobytes()]
    with pytest.raises(FusebertError, match="main graph already has a node named a"):
        editor.add(NewNode("Fused", "a", ()))
