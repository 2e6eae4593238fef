"""The defects of the earlier pattern tools, one after the other: each test fails on what they did.

 1 readers of inner nodes     2 sinks of the main graph    3 ret and control_ret       4 what inputs stand for
 5 attributes and constants   6 ports                      7 seeds that feed seeds     8 no seed
 9 a producer read twice     10 unknown barriers          11 arguments of functions   12 control inputs
13 recorded shapes           14 swaps, optional nodes     15 several occurrences      16 ops other than Bert
17 devices, shapes           18 nothing was compared      19 unused copies            20 quadratic work
test_N_... is the test of number N; those of 1, 14 and 18 that need real models are in test_pattern_families.py,
the op's shape function and its own defects in test_tensorflow_op.py: test_shapes_are_inferred, test_defect_N_..."""

import pytest
from costs import assert_in_proportion
from toys import frozen, function_of, graph_of, main_of, recipe, saved

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.messages import message
from fusebert.recipes.equivalence import Attributes
from fusebert.recipes.extract import extract_pattern
from fusebert.recipes.pattern import load, save
from fusebert.recipes.replace import NotFoundError, replace_pattern

LAYER = """
    x Placeholder
    w Const value=2
    half Const value=0.5
    a Mul x w T=DT_FLOAT
    b Tanh a T=DT_FLOAT
    c AddV2 b half T=DT_FLOAT
    out Softmax c T=DT_FLOAT
"""
BODY = """
    a Mul x w T=DT_FLOAT
    b Tanh a:z:0 T=DT_FLOAT
    h Const value=0.5
    c AddV2 b:y:0 h:output:0 T=DT_FLOAT
"""  # the same in a function


@pytest.fixture
def model(tmp_path):
    return frozen(tmp_path / "model.pb", LAYER)


@pytest.fixture
def simple(tmp_path, model):
    """A recipe for a = x * w, b = tanh(a), c = b + 0.5, by one node that reads x and w."""
    return recipe(tmp_path / "recipe.pb", model, "c", "x w", "Const", target="fused Fused x w")


def changed(tmp_path, text, simple, **options):
    source = frozen(tmp_path / "source.pb", text)
    replace_pattern(source, simple, tmp_path / "out.pb", **options)
    return graph_of(tmp_path / "out.pb")


def refused(tmp_path, text, simple, **options):
    with pytest.raises(NotFoundError) as error:
        changed(tmp_path, text, simple, **options)
    assert not (tmp_path / "out.pb").exists()
    return str(error.value)


def test_the_pattern_is_replaced(tmp_path, simple):
    nodes = changed(tmp_path, LAYER, simple)
    assert nodes["fused"].op == "Fused"
    assert list(nodes["fused"].input) == ["x", "w"]
    assert set(nodes) == {"x", "w", "c", "out", "fused"}
    assert (nodes["c"].op, list(nodes["c"].input)) == ("Identity", ["fused"])


# ---- 1: readers of inner nodes ----


def test_1_a_reader_of_an_inner_node_is_not_wired_to_the_result(tmp_path, simple):
    reason = refused(tmp_path, LAYER + "tap Relu b T=DT_FLOAT", simple)
    assert "tap (Relu), outside the pattern, reads b" in reason


def test_1_in_a_function_too_unless_nobody_wants_what_is_read(tmp_path, simple):
    dead = "s Shape b:y:0 T=DT_FLOAT\nn Cast s:output:0"
    kept = saved(
        tmp_path / "kept", functions=[("f", "x w", BODY + "tap Relu b:y:0", {"o": "c:z:0", "t": "tap:activations:0"})]
    )
    with pytest.raises(NotFoundError, match="tap"):
        replace_pattern(kept, _in_function(tmp_path), tmp_path / "kept_out")
    gone = saved(tmp_path / "gone", functions=[("f", "x w", BODY + dead, {"o": "c:z:0"})])
    report = replace_pattern(gone, _in_function(tmp_path), tmp_path / "gone_out")
    assert set(function_of(tmp_path / "gone_out", "f")[1]) == {"fused"}
    assert "n, s" in " ".join(report.notes)


def _in_function(tmp_path, target="fused Fused x w", outputs=(("c", "result", 0, 0),)):
    if not (tmp_path / "reference").exists():
        saved(tmp_path / "reference", functions=[("f", "x w", BODY, {"o": "c:z:0"})])
    return recipe(
        tmp_path / "in_function.pb", tmp_path / "reference", "c", "x w", "Const", "f", target=target, outputs=outputs
    )


# ---- 2: sinks of the main graph ----


def test_2_outputs_and_other_sinks_of_a_main_graph_stay(tmp_path, simple):
    nodes = changed(tmp_path, LAYER + "init NoOp\nrestore Assign\nfar Relu x", simple)
    assert {"out", "init", "restore", "far", "fused"} <= set(nodes)
    assert list(nodes["out"].input) == ["c"]


def test_2_a_seed_that_is_the_output_keeps_its_name(tmp_path, simple):
    nodes = changed(tmp_path, LAYER.replace("out Softmax c T=DT_FLOAT", ""), simple)
    assert (nodes["c"].op, list(nodes["c"].input)) == ("Identity", ["fused"])
    assert "fused" in nodes


def test_2_outputs_of_signatures_and_what_collections_name_are_kept(tmp_path, simple):
    with pytest.raises(NotFoundError, match="output 'b' of signature"):
        replace_pattern(saved(tmp_path / "tapped", LAYER, outputs=["b"]), simple, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    source = saved(tmp_path / "collected", LAYER, outputs=["out"])
    model = message("SavedModel")
    model.ParseFromString((source / "saved_model.pb").read_bytes())
    extra = b"\x0a\x03ops\x12\x07\x0a\x05\x0a\x03" + b"a:0"  # key, node_list of one name
    model.meta_graphs[0].collection_def.add().ParseFromString(extra)
    (source / "saved_model.pb").write_bytes(model.SerializeToString())
    with pytest.raises(NotFoundError, match="named in a collection"):
        replace_pattern(source, simple, tmp_path / "out")


def test_2_dead_nodes_go_with_all_that_only_served_them(tmp_path, simple):
    text = LAYER.replace("half Const value=0.5", "k Const value=0.5\nhalf Identity k")
    nodes = changed(tmp_path, text, simple)
    assert set(nodes) == {"x", "w", "c", "out", "fused"}


# ---- 3: what a function returns ----


def test_3_what_a_function_returns_is_rewritten(tmp_path):
    source = saved(tmp_path / "source", functions=[("g", "x w", BODY, {"o": "c:z:0"}, {"done": "c"})])
    replace_pattern(source, _in_function(tmp_path), tmp_path / "out")
    function, nodes = function_of(tmp_path / "out", "g")
    assert set(nodes) == {"fused"}
    assert function.ret[0].value == "fused:result:0"
    assert function.control_ret[0].value == "fused"


def test_3_a_control_output_inside_is_refused(tmp_path):
    source = saved(tmp_path / "source", functions=[("g", "x w", BODY, {"o": "c:z:0"}, {"done": "b"})])
    with pytest.raises(NotFoundError, match=r"b .*: it is control output 'done'"):
        replace_pattern(source, _in_function(tmp_path), tmp_path / "out")


# ---- 4: what inputs stand for ----

RESIDUAL = """
    x Placeholder
    y Placeholder
    w Const value=2
    a Mul x w T=DT_FLOAT
    c AddV2 a x T=DT_FLOAT
    out Relu c
"""


def test_4_one_input_is_one_tensor(tmp_path):
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", RESIDUAL), "c", "x w", target="fused Fused x w")
    assert "fused" in changed(tmp_path, RESIDUAL, made)
    (tmp_path / "out.pb").unlink()
    reason = refused(tmp_path, RESIDUAL.replace("AddV2 a x", "AddV2 a y"), made)
    assert "x is already bound to x" in reason


def test_4_two_inputs_are_two_tensors(tmp_path):
    text = RESIDUAL.replace("AddV2 a x", "Sub a y")
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "c", "x y w", target="fused Fused x y w")
    reason = refused(tmp_path, text.replace("Sub a y", "Sub a x"), made)
    assert "is already bound to x of the pattern" in reason


def test_4_two_pattern_nodes_are_two_nodes(tmp_path):
    text = "x Placeholder\na Tanh x\nb Tanh x\nc Sub a b\nout Relu c"
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "c", "x")
    reason = refused(tmp_path, text.replace("Sub a b", "Sub a a"), made)
    assert "it is already bound to a of the pattern" in reason


def test_4_a_weight_is_a_weight(tmp_path, simple):
    text = LAYER.replace("w Const value=2", "v Placeholder\nw Tanh v")
    assert "w is not a weight" in refused(tmp_path, text, simple)


# ---- 5: attributes and constants ----


def test_5_attributes_are_compared(tmp_path):
    text = "x Placeholder\nw Const value=2\na MatMul x w T=DT_FLOAT transpose_b=false\nout Relu a"
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "a", "x w")
    assert "fused" in changed(tmp_path, text.replace(" transpose_b=false", ""), made)  # its default
    (tmp_path / "out.pb").unlink()
    other = text.replace("transpose_b=false", "transpose_b=true")
    assert "attribute transpose_b is True, not False" in refused(tmp_path, other, made)
    assert "fused" in changed(tmp_path, other, made, attributes=Attributes(ignored=["transpose_b"]))


@pytest.mark.parametrize("change", ["equation=abc,cd->abd", "T=DT_INT32", ""])
def test_5_einsum_equations_and_types_are_compared(tmp_path, change):
    text = "x Placeholder\nw Const value=2\na Einsum x w equation=abc,cd->abd T=DT_FLOAT\nout Relu a"
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "a", "x w")
    other = text.replace("abc,cd->abd", "abc,dc->abd") if not change else text.replace("T=DT_FLOAT", "T=DT_INT32")
    if change.startswith("equation"):
        assert "fused" in changed(tmp_path, text, made)
    else:
        reason = refused(tmp_path, other, made)
        assert ("attribute T is int32" if change else "attribute equation is abc,dc->abd") in reason


def test_5_constants_that_the_node_does_not_read_are_compared(tmp_path, simple):
    assert "fused" in changed(tmp_path, LAYER.replace("w Const value=2", "w Const value=3"), simple)  # a weight
    (tmp_path / "out.pb").unlink()
    reason = refused(tmp_path, LAYER.replace("value=0.5", "value=0.25"), simple)
    assert "the constant half is 0.25, but half of the pattern is 0.5" in reason
    reason = refused(tmp_path, LAYER.replace("half Const value=0.5", "half Placeholder"), simple)
    assert "half is not a constant" in reason


def test_5_an_erf_pattern_is_not_replaced_by_a_tanh_op(tmp_path):
    text = "x Placeholder\nm Placeholder\n" + "\n".join(f"w{i} Const value={i}" for i in range(16))
    text += "\na Erf x\nb Mul a m\n" + "\n".join(f"s{i} Sub {'b' if not i else f's{i - 1}'} w{i}" for i in range(16))
    source = frozen(tmp_path / "m.pb", text + "\nout Relu s15")
    node = "fused Bert x m " + " ".join(f"w{i}" for i in range(16)) + " MaskT=DT_FLOAT NumWeights=16 HiddenAct="
    inputs = "x m " + " ".join(f"w{i}" for i in range(16))
    wrong = recipe(tmp_path / "wrong.pb", source, "s15", inputs, target=node + "gelu_tanh")
    with pytest.raises(FusebertError, match="GELU by Erf, but fused has HiddenAct gelu_tanh"):
        replace_pattern(source, wrong, tmp_path / "out.pb")
    assert not (tmp_path / "out.pb").exists()
    assert (
        "The node does not compute what the pattern does"
        in replace_pattern(source, wrong, tmp_path / "out.pb", force=True).notes[0]
    )
    right = recipe(tmp_path / "right.pb", source, "s15", inputs, target=node + "gelu_erf")
    assert replace_pattern(source, right, tmp_path / "out2.pb").facts["occurrences"] == 1


# ---- 6: ports ----


def test_6_ports_are_compared(tmp_path):
    text = "x Placeholder\ns Split x num_split=2\na Tanh s:1\nout Relu a"
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "a", "x", target="fused Fused x")
    assert "fused" in changed(tmp_path, text, made)
    (tmp_path / "out.pb").unlink()
    assert "its output s is read, but the pattern reads s:1" in refused(tmp_path, text.replace("s:1", "s"), made)


def test_6_ports_of_inputs_are_kept_apart(tmp_path):
    text = "x Placeholder\ns Split x num_split=2\na Sub s s:1\nout Relu a"
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "a", "s", target="fused Fused s:1 s:0")
    nodes = changed(tmp_path, text, made)
    assert list(nodes["fused"].input) == ["s:1", "s"]


# ---- 7, 8: seeds ----


def test_7_a_seed_that_feeds_another_is_matched_too(tmp_path):
    text = "x Placeholder\na Tanh x\nb Exp a\nc Neg b\nout Relu c\ntap Relu b"
    outputs = (("b", "inner", 0, 1), ("c", "last", 0, 0))
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "c b", "x", outputs=outputs)
    nodes = changed(tmp_path, text, made)
    assert set(nodes) == {"x", "b", "c", "out", "tap", "fused"}
    assert (list(nodes["b"].input), list(nodes["c"].input)) == (["fused:1"], ["fused"])
    (tmp_path / "out.pb").unlink()
    assert "it is Log, but the pattern has Exp" in refused(tmp_path, text.replace("b Exp a", "b Log a"), made)


def test_8_no_seed_is_an_error(tmp_path, model):
    with pytest.raises(FusebertError, match="at least one seed"):
        extract_pattern(model, tmp_path / "p.pb", [], ["x"])
    assert not (tmp_path / "p.pb").exists()
    made = message("Recipe")
    made.source_pattern.SetInParent()
    made.target_node.name, made.target_node.op = "f", "Fused"
    save(tmp_path / "r.pb", made)
    with pytest.raises(FusebertError, match="the pattern has no seed"):
        replace_pattern(model, tmp_path / "r.pb", tmp_path / "out.pb")


# ---- 9, 10, 11: extraction ----


def test_9_a_producer_may_be_used_twice(tmp_path):
    text = "x Placeholder\ny Mul x x\ns Split y num_split=2\nz Mul s s:1\nc Neg z"
    extract_pattern(frozen(tmp_path / "m.pb", text), tmp_path / "p.pb", ["c"], ["x"])
    pattern = load(tmp_path / "p.pb", "Pattern")
    assert [node.name for node in pattern.internal_nodes] == ["z", "s", "y"]


def test_10_names_that_are_not_there_are_errors(tmp_path):
    model = frozen(tmp_path / "m.pb", "enc/x Placeholder\nenc/dense/mul Mul enc/x enc/x")
    with pytest.raises(FusebertError, match=r"barrier 'enc/xx' is not in main graph; did you mean enc/x\?"):
        extract_pattern(model, tmp_path / "p.pb", ["enc/dense/mul"], ["enc/xx"])
    with pytest.raises(FusebertError, match=r"seed 'enc/mul' is not in main graph; did you mean enc/dense/mul"):
        extract_pattern(model, tmp_path / "p.pb", ["enc/mul"], ["enc/x"])


def test_11_arguments_of_functions_are_barriers_or_are_met(tmp_path):
    body = "a Mul x w\nb Tanh a:z:0\nc AddV2 b:y:0 m"
    source = saved(tmp_path / "source", functions=[("f", "x w m", body, {"o": "c:z:0"})])
    extract_pattern(source, tmp_path / "named.pb", ["c"], ["x", "w", "m"], function="f")
    extract_pattern(source, tmp_path / "met.pb", ["c"], function="f")
    for name in ("named.pb", "met.pb"):
        assert list(load(tmp_path / name, "Pattern").inputs) == ["m", "w", "x"]
    with pytest.raises(FusebertError, match="has no function 'ff'"):
        extract_pattern(source, tmp_path / "p.pb", ["c"], function="ff")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("x Placeholder\nc Neg x", {"seeds": ["c", "c"], "barriers": ["x"]}, "given twice"),
        ("x Placeholder\nc Neg x", {"seeds": ["c"], "barriers": ["c", "x"]}, r"both a seed and a barrier \(by name\)"),
        ("x Placeholder\nc Neg x", {"seeds": ["c"], "barrier_ops": ["Neg"]}, "because every Neg is one"),
        ("x Placeholder\nc Neg x", {"seeds": ["c"]}, "add -b x or -B Placeholder"),
        ("x Placeholder\ny PartitionedCall x\nc Neg y", {"seeds": ["c"], "barriers": ["x"]}, "is a function call"),
        ("c Neg gone", {"seeds": ["c"]}, "which is not in main graph"),
        ("x Placeholder\nx Neg x", {"seeds": ["x"]}, "same name"),
    ],
)
def test_what_cannot_be_extracted_is_said_in_a_sentence(tmp_path, text, options, message):
    with pytest.raises(FusebertError, match=message):
        extract_pattern(frozen(tmp_path / "m.pb", text), tmp_path / "p.pb", **options)
    assert not (tmp_path / "p.pb").exists()


# ---- 12: control inputs ----


def test_12_a_control_input_is_carried_over(tmp_path, simple):
    text = LAYER.replace("b Tanh a", "check Assert x\nb Tanh a ^check") + "after NoOp ^a"
    nodes = changed(tmp_path, text, simple)
    assert list(nodes["fused"].input) == ["x", "w", "^check"]
    assert list(nodes["after"].input) == ["^fused"]
    assert "check" in nodes


def test_12_one_candidate_that_is_refused_does_not_stop_the_others(tmp_path, simple):
    other = LAYER.replace("x Placeholder\n", "").replace("w Const value=2\n", "").replace("half Const value=0.5\n", "")
    other = "\n".join(
        line.replace(" a", " a2").replace(" b", " b2").replace(" c", " c2") for line in other.splitlines()
    )
    other = other.replace("out Softmax", "out2 Softmax").replace("a2 Mul x", "a2 Mul c") + "\nloop Relu a2"
    text = LAYER + other
    nodes = changed(tmp_path, text, simple, explain=True)
    assert list(nodes["fused"].input) == ["x", "w"]
    assert {"a2", "b2", "c2"} <= set(nodes)


def test_12_what_would_make_a_cycle_is_refused(tmp_path, simple):
    text = LAYER.replace("half Const value=0.5", "half Const value=0.5").replace(
        "c AddV2 b half", "late NoOp ^a\nc AddV2 b half ^late"
    )
    assert "an input of the pattern is computed from it" in refused(tmp_path, text, simple)


# ---- 13: recorded shapes ----


def test_13_recorded_shapes_do_not_count_unless_asked(tmp_path):
    text = "x Placeholder\na Tanh x _output_shapes=[8,128]\nout Relu a"
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "a", "x")
    for other in (text.replace("[8,128]", "[1,64]"), text.replace(" _output_shapes=[8,128]", "")):
        assert "fused" in changed(tmp_path, other, made)
        (tmp_path / "out.pb").unlink()
        reason = refused(tmp_path, other, made, attributes=Attributes(compared=["_output_shapes"]))
        assert "attribute _output_shapes is" in reason


# ---- 14: swapped inputs, nodes that do nothing ----


def test_14_inputs_of_commutative_operations_may_be_swapped(tmp_path, simple):
    swapped = LAYER.replace("Mul x w", "Mul w x").replace("AddV2 b half", "AddV2 half b")
    assert list(changed(tmp_path, swapped, simple)["fused"].input) == ["x", "w"]


def test_14_a_swap_that_is_seen_late_is_undone(tmp_path):
    text = """
        x Placeholder
        a1 Tanh x\nb1 Exp a1\nc1 Neg b1\nd1 Abs c1\ne1 Sin d1
        a2 Tanh x\nb2 Exp a2\nc2 Neg b2\nd2 Abs c2\ne2 Cos d2
        f1 Sqrt e1\nf2 Sqrt e2\ng1 Rsqrt f1\ng2 Rsqrt f2\nh1 Sign g1\nh2 Sign g2
        s AddV2 h1 h2\nout Relu s"""
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "s", "x")
    assert "fused" in changed(tmp_path, text.replace("AddV2 h1 h2", "AddV2 h2 h1"), made)


def test_14_order_counts_where_it_changes_the_result(tmp_path):
    text = "x Placeholder\ny Placeholder\na Tanh x\nc Sub a y\nout Relu c"
    made = recipe(tmp_path / "r.pb", frozen(tmp_path / "m.pb", text), "c", "x y")
    assert "the pattern has Tanh" in refused(tmp_path, text.replace("Sub a y", "Sub y a"), made)


def test_14_nodes_that_pass_on_what_they_are_given_may_be_there_or_not(tmp_path, simple):
    more = LAYER.replace("b Tanh a", "i Identity a\nj StopGradient i\nb Tanh j")
    nodes = changed(tmp_path, more, simple)
    assert set(nodes) == {"x", "w", "c", "out", "fused"}
    fewer = recipe(tmp_path / "r2.pb", frozen(tmp_path / "m2.pb", more), "c", "x w", "Const", target="fused Fused x w")
    (tmp_path / "out.pb").unlink()
    assert set(changed(tmp_path, LAYER, fewer)) == {"x", "w", "c", "out", "fused"}


# ---- 15, 16, 17: the new nodes ----


def test_15_every_occurrence_is_replaced_under_a_name_of_its_own(tmp_path, simple):
    second = "v Const value=3\na2 Mul out v T=DT_FLOAT\nb2 Tanh a2 T=DT_FLOAT\nc2 AddV2 b2 half T=DT_FLOAT\nfused NoOp"
    nodes = changed(tmp_path, LAYER + second, simple)
    assert list(nodes["fused_1"].input) == ["x", "w"]
    assert list(nodes["fused_2"].input) == ["out", "v"]
    assert nodes["fused"].op == "NoOp"


def test_15_occurrences_one_after_the_other_in_a_function(tmp_path):
    body = "\n".join(
        f"a{i} Mul {x} w T=DT_FLOAT\nb{i} Tanh a{i}:z:0 T=DT_FLOAT\nc{i} AddV2 b{i}:y:0 h:output:0 T=DT_FLOAT"
        for i, x in enumerate(("x", "c0:z:0", "c1:z:0"))
    )
    source = saved(tmp_path / "source", functions=[("f", "x w", body + "\nh Const value=0.5", {"o": "c2:z:0"})])
    replace_pattern(source, _in_function(tmp_path), tmp_path / "out")
    function, nodes = function_of(tmp_path / "out", "f")
    assert [list(node.input) for node in nodes.values()] == [
        ["x", "w"], ["fused:result:0", "w"], ["fused_1:result:0", "w"],
    ]  # fmt: skip
    assert function.ret[0].value == "fused_2:result:0"


def test_16_any_op_works_inside_functions(tmp_path):
    body = BODY + "d Neg c:z:0"
    source = saved(tmp_path / "source", functions=[("f", "x w", body, {"o": "d:y:0"})])
    replace_pattern(source, _in_function(tmp_path), tmp_path / "out")
    assert list(function_of(tmp_path / "out", "f")[1]["d"].input) == ["fused:result:0"]
    with pytest.raises(FusebertError, match="does not name the output of Fused"):
        replace_pattern(source, _in_function(tmp_path, outputs=()), tmp_path / "out2")


def test_17_device_shapes_and_waiting_go_over_to_the_new_node(tmp_path, simple):
    placed = "\n".join(
        line + (" device=/cpu:0" if line.split()[:1] and line.split()[0] in "abc" else "")
        for line in LAYER.splitlines()
    )
    text = placed + "\nnear Relu x _class=loc:@b\nbeside Relu x _class=loc:@x"
    nodes = changed(tmp_path, text, simple)
    assert nodes["fused"].device == "/cpu:0"
    assert not any(entry.key == "_class" for entry in nodes["near"].attr)
    assert any(entry.key == "_class" for entry in nodes["beside"].attr)


def test_17_the_recorded_shape_of_the_result_is_kept(tmp_path):
    text = "x Placeholder\nm Placeholder\n" + "\n".join(f"w{i} Const value={i}" for i in range(16)) + "\nb Mul x m\n"
    text += "\n".join(f"s{i} Sub {'b' if not i else f's{i - 1}'} w{i}" for i in range(16)) + " _output_shapes=[8,128]"
    inputs = "x m " + " ".join(f"w{i}" for i in range(16))
    source = frozen(tmp_path / "m.pb", text + "\nout Relu s15")
    node = f"fused Bert {inputs} MaskT=DT_FLOAT NumWeights=16 _output_shapes=[-1,-1]"
    made = recipe(tmp_path / "r.pb", source, "s15", inputs, target=node)
    replace_pattern(source, made, tmp_path / "out.pb")
    fused = graph_of(tmp_path / "out.pb")["fused"]
    shape = next(entry.value.list.shape[0] for entry in fused.attr if entry.key == "_output_shapes")
    assert [dim.size for dim in shape.dim] == [8, 128]


# ---- 19, 20 ----


def test_19_functions_that_nothing_refers_to_can_be_left_away(tmp_path):
    functions = [("used", "x w", BODY, {"o": "c:z:0"}), ("copy", "x w", BODY, {"o": "c:z:0"})]
    source = saved(tmp_path / "source", "call PartitionedCall f=used", functions)
    replace_pattern(source, _in_function(tmp_path), tmp_path / "kept.pb")
    assert function_of(tmp_path / "kept.pb", "copy")[1].keys() == {"fused"}
    replace_pattern(source, _in_function(tmp_path), tmp_path / "pruned.pb", prune=True)
    assert function_of(tmp_path / "pruned.pb", "copy") is None
    assert function_of(tmp_path / "pruned.pb", "used") is not None


def test_20_work_grows_with_the_graph_and_not_with_its_square(tmp_path):
    def work(layers):
        lines = "\n".join(
            f"a{i} Mul {f'd{i - 1}' if i else 'x'} w\nb{i} Tanh a{i}\nc{i} AddV2 b{i} a{i}\nd{i} AddV2 c{i} half"
            for i in range(layers)
        )
        last, out = f"d{layers - 1}", tmp_path / "out.pb"
        text = f"x Placeholder\nw Const value=2\nhalf Const value=0.5\n{lines}\nout Relu {last}"
        source = frozen(tmp_path / "m.pb", text)
        replace_pattern(source, recipe(tmp_path / "r.pb", source, last, "x w", "Const"), out)
        assert set(graph_of(out)) == {"x", "w", last, "out", "fused"}
        out.unlink()

    assert_in_proportion(work, 20)


def test_other_meta_graphs_and_main_graphs_stay_as_they_were(tmp_path, simple):
    source = saved(tmp_path / "source", LAYER, outputs=["out"], inputs=["x"])
    with pytest.raises(FusebertError, match="has 1 meta graphs, so none of number 1"):
        replace_pattern(source, simple, tmp_path / "out.pb", meta_graph=1)
    (source / "assets").mkdir()
    (source / "assets" / "vocab.txt").write_text("words")
    replace_pattern(source, simple, tmp_path / "out")
    assert (tmp_path / "out" / "assets" / "vocab.txt").read_text() == "words"
    assert main_of(tmp_path / "out").keys() == {"x", "w", "c", "out", "fused"}
    with pytest.raises(FusebertError, match="exists"):
        replace_pattern(source, simple, tmp_path / "out")


def test_a_pattern_from_a_function_is_found_in_a_main_graph_and_the_other_way_round(tmp_path, simple):
    nodes = changed(tmp_path, LAYER, _in_function(tmp_path))
    assert set(nodes) == {"x", "w", "c", "out", "fused"}
    made = load(simple, "Recipe")
    made.outputs.add(seed="c", name="result", index=0, number=0)
    save(tmp_path / "named.pb", made)
    source = saved(tmp_path / "source", functions=[("f", "x w", BODY, {"o": "c:z:0"})])
    replace_pattern(source, tmp_path / "named.pb", tmp_path / "out")
    assert function_of(tmp_path / "out", "f")[0].ret[0].value == "fused:result:0"
