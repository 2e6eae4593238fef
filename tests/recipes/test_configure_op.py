"""configure-op: attributes of Bert nodes, checked without running anything, written whole or not at all."""

import pytest
from toys import add, frozen, graph_of, main_of, saved

from fusebert.errors import FusebertError
from fusebert.formats.tensorflow.messages import message
from fusebert.recipes.configure import Settings, configure_op
from fusebert.recipes.equivalence import plain

HIDDEN, INNER = 8, 12
SHAPES = (
    [(HIDDEN, HIDDEN), (HIDDEN,)] * 4 + [(HIDDEN,)] * 2 + [(HIDDEN, INNER), (INNER,), (INNER, HIDDEN)] + [(HIDDEN,)] * 3
)
BASE = f"MaskT=DT_FLOAT NumWeights=16 HiddenSize={HIDDEN} NumAttentionHeads=2 IntermediateSize={INNER}"


def bert(name="fused", more=BASE, prefix="w", op="Bert"):
    return f"{name} {op} x m {' '.join(f'{prefix}{i}' for i in range(16))} {more}"


def with_shapes(path):
    """Weights with the shapes that a layer has."""
    graph = message("GraphDef")
    graph.ParseFromString(path.read_bytes())
    for node in graph.node:
        if node.op == "Const":
            tensor = next(entry.value.tensor for entry in node.attr if entry.key == "value")
            for size in SHAPES[int(node.name[1:])]:
                tensor.tensor_shape.dim.add(size=size)
    path.write_bytes(graph.SerializeToString())
    return path


TEXT = "x Placeholder\nm Placeholder\n" + "\n".join(f"w{i} Const value={i}" for i in range(16)) + "\n"


@pytest.fixture
def model(tmp_path):
    return with_shapes(frozen(tmp_path / "model.pb", TEXT + bert() + "\nout Relu fused"))


def attributes(path, name="fused"):
    return {entry.key: plain(entry.value) for entry in graph_of(path)[name].attr}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"quantization": False, "bfloat16": False}, {"QuantizableDataType": 1, "NonQuantizableDataType": 1}),
        ({"quantization": True, "bfloat16": True}, {"QuantizableDataType": 11, "NonQuantizableDataType": 14}),
        ({"max_seq_len": 64, "activation": "gelu_erf"}, {"MaxSequenceLength": 64, "HiddenAct": b"gelu_erf"}),
        ({"mask_type": "int64", "layers": 1, "threads": 2}, {"MaskT": 9, "NumWeights": 16, "NumThreads": 2}),
        ({"num_attention_heads": 4, "padding": "skip"}, {"NumAttentionHeads": 4, "Padding": b"skip"}),
        ({}, {}),
    ],
)
def test_what_is_given_is_set_and_the_rest_stays(model, settings, expected):
    before = attributes(model)
    configure_op(model, settings=Settings(**settings))
    assert attributes(model) == before | expected
    assert graph_of(model)["out"].op == "Relu"


def test_c_no_attribute_appears_that_was_not_set(model):
    before = model.read_bytes()
    configure_op(model)
    assert attributes(model).keys() == {"MaskT", "NumWeights", "HiddenSize", "NumAttentionHeads", "IntermediateSize"}
    assert len(model.read_bytes()) == len(before)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"hidden_size": 16}, "weight 0 of layer 0 .* is 8x8, but the attributes say 16x16 or 16x2x8"),
        ({"intermediate_size": 24}, "weight 10 of layer 0 .* is 8x12, but the attributes say 8x24"),
        ({"layers": 2}, "NumWeights is 32, but the node has 16 weights, 1 layers"),
        ({"num_attention_heads": 3}, "HiddenSize 8 cannot be shared by 3 heads"),
        ({"activation": "swish"}, "HiddenAct is swish; use one of gelu_tanh, gelu_erf"),
        ({"mask_type": "float64"}, "unsupported mask type 'float64'; use one of int32, int64"),
        ({"mask_type": "qint8"}, "unsupported mask type 'qint8'"),
        ({"calibrate": True}, "calibration needs a file"),
        ({"calibrate": True, "quant_factors_path": "f", "quantization": True}, "calibration runs in floats"),
        ({"calibrate": True, "quant_factors_path": "f", "bfloat16": True}, "calibration runs in floats"),
        ({"epsilon": -1.0}, "LayerNormEpsilon is -1"),
        ({"padding": "none"}, "Padding is none"),
    ],
)
def test_what_the_op_would_refuse_is_refused_and_nothing_changes(model, settings, reason):
    before = model.read_bytes()
    with pytest.raises(FusebertError, match=reason):
        configure_op(model, settings=Settings(**settings))
    assert model.read_bytes() == before
    assert [file.name for file in model.parent.iterdir()] == ["model.pb"]


def test_a_gelu_erf_is_an_activation_like_any_other(model):
    configure_op(model, settings=Settings(activation="gelu_erf"))
    assert attributes(model)["HiddenAct"] == b"gelu_erf"


def test_b_calibration_mode_writes_no_factors(model, tmp_path):
    configure_op(model, settings=Settings(calibrate=True, quant_factors_path=str(tmp_path / "factors.txt")))
    assert not (tmp_path / "factors.txt").exists()
    assert attributes(model)["CalibrateQuantFactors"] is True


def test_factors_are_looked_at(model, tmp_path):
    file = tmp_path / "factors.txt"
    settings = Settings(quantization=True, quant_factors_path=str(file))
    assert "was not found" in configure_op(model, settings=settings).notes[0]
    file.write_text("-1 1 -1 1 -1 1")
    with pytest.raises(FusebertError, match="holds 6 numbers, but there must be 8 for 1 layers"):
        configure_op(model, settings=settings)
    file.write_text("-1 1 -1 1 -1 1 2 1")
    with pytest.raises(FusebertError, match="every low must be finite and not above its high"):
        configure_op(model, settings=settings)
    file.write_text('{"format": "fusebert-factors"}')
    with pytest.raises(FusebertError, match="has the form 'ours'; write it with --format bert-op"):
        configure_op(model, settings=settings)
    file.write_text("-1 1 -1 1 0 0 -2 1 and more")
    assert configure_op(model, settings=settings).notes == ()


def test_all_nodes_are_set_and_must_agree(tmp_path):
    text = TEXT + bert() + "\n" + bert("other", BASE + " MaxSequenceLength=64") + "\nout AddV2 fused other"
    model = with_shapes(frozen(tmp_path / "m.pb", text))
    with pytest.raises(
        FusebertError, match=r"MaxSequenceLength is 64 in other, but 128 in fused; set it for all nodes, or .* --reset"
    ):
        configure_op(model, settings=Settings(quantization=True))
    configure_op(model, settings=Settings(max_seq_len=32))
    assert attributes(model)["MaxSequenceLength"] == attributes(model, "other")["MaxSequenceLength"] == 32


def test_reset_forgets_all_but_what_the_graph_decides(model):
    configure_op(model, settings=Settings(quantization=True, max_seq_len=16))
    with pytest.raises(FusebertError, match="is 8x8, but the attributes say 768x768"):
        configure_op(model, reset=True)
    sizes = Settings(hidden_size=HIDDEN, num_attention_heads=2, intermediate_size=INNER)
    configure_op(model, settings=sizes, reset=True)
    assert attributes(model).keys() == {"MaskT", "NumWeights", "HiddenSize", "NumAttentionHeads", "IntermediateSize"}


def test_functions_and_main_graph_of_a_saved_model(tmp_path):
    arguments = "x m " + " ".join(f"w{i}" for i in range(16))
    node, open_ended = bert(), TEXT.replace("Const", "Placeholder")
    folder = saved(
        tmp_path / "saved", open_ended + bert("top"), functions=[("f", arguments, node, {"o": "fused:encoded:0"})]
    )
    report = configure_op(folder, settings=Settings(bfloat16=True))
    assert report.facts["nodes"] == 2
    top = {entry.key: plain(entry.value) for entry in main_of(folder)["top"].attr}
    assert top["NonQuantizableDataType"] == 14
    configure_op(folder, tmp_path / "copy", Settings(max_seq_len=16))
    configure_op(folder / "saved_model.pb", tmp_path / "graph.pb", Settings(max_seq_len=16))
    assert (tmp_path / "copy" / "saved_model.pb").read_bytes() == (tmp_path / "graph.pb").read_bytes()


def test_d_a_write_that_fails_leaves_the_model_alone(model, monkeypatch):
    import os

    before = model.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(FusebertError, match="cannot be written: disk full"):
        configure_op(model, settings=Settings(max_seq_len=16))
    assert model.read_bytes() == before
    assert [file.name for file in model.parent.iterdir()] == ["model.pb"]


def test_text_stays_text(tmp_path):
    from google.protobuf import text_format

    graph = message("GraphDef")
    add(graph.node, TEXT + bert())
    path = tmp_path / "model.pbtxt"
    path.write_text(text_format.MessageToString(graph))
    with pytest.raises(FusebertError, match="is a scalar, but"):
        configure_op(path, settings=Settings(max_seq_len=16))
    for node in graph.node:
        if node.op == "Const":
            tensor = next(entry.value.tensor for entry in node.attr if entry.key == "value")
            for size in SHAPES[int(node.name[1:])]:
                tensor.tensor_shape.dim.add(size=size)
    path.write_text(text_format.MessageToString(graph))
    configure_op(path, settings=Settings(max_seq_len=16))
    assert 'key: "MaxSequenceLength"' in path.read_text()


def test_a_model_without_the_op_is_refused(tmp_path):
    with pytest.raises(FusebertError, match="contains no Bert node"):
        configure_op(frozen(tmp_path / "m.pb", "x Placeholder\nout Relu x"))
    with pytest.raises(FusebertError, match="does not exist"):
        configure_op(tmp_path / "gone")
    with pytest.raises(FusebertError, match="is not a supported model"):
        configure_op(tmp_path)


def test_input_scales_and_factors_exclude_each_other(model, tmp_path):
    graph = message("GraphDef")
    graph.ParseFromString(model.read_bytes())
    node = next(node for node in graph.node if node.op == "Bert")
    node.attr.add(key="InputScales").value.list.f.extend([1.0] * 16)
    model.write_bytes(graph.SerializeToString())
    configure_op(model, settings=Settings(quantization=True))
    with pytest.raises(FusebertError, match="has InputScales, which need no quantisation factors"):
        configure_op(model, settings=Settings(quant_factors_path=str(tmp_path / "f")))


def test_a_bert_node_has_no_hidden_states(tmp_path):
    model = with_shapes(frozen(tmp_path / "m.pb", TEXT + bert(more=BASE + " NumHiddenStates=1")))
    with pytest.raises(FusebertError, match="fused: the op Bert has no attribute NumHiddenStates; remove it"):
        configure_op(model, settings=Settings(max_seq_len=16))
    states = frozen(tmp_path / "states.pb", TEXT + bert(more=BASE + " NumHiddenStates=1", op="BertHiddenStates"))
    shown = [table for table in configure_op(with_shapes(states)).tables if table.title == "attributes"]
    assert ("NumHiddenStates", "1") in shown[0].rows
    with pytest.raises(FusebertError, match="NumHiddenStates"):
        configure_op(with_shapes(frozen(tmp_path / "without.pb", TEXT + bert(op="BertHiddenStates"))))
