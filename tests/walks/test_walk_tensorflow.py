"""The documents about TensorFlow from start to end, as their reader goes, with the command lines of
docs/coming-from.md: a pattern of one's own, the pattern tools, and BERT-large up to its server."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import make_checkpoint
from documented import lines, rename, switch, words
from serve_process import Served
from zoo import long

from fusebert.formats.tensorflow.messages import message
from fusebert.measure.compare import compare
from fusebert.source import open_tensorflow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
pytest.importorskip("tensorflow")

GUIDE_FUNCTION = "__inference_bert_encoder_layer_call_and_return_conditional_losses_9174"
WEIGHTS = [f"self_attention/{name}/{part}/ReadVariableOp" for name in ("query", "key", "value", "attention_output")
           for part in ("einsum/Einsum", "add")]  # fmt: skip
WEIGHTS += [f"self_attention_layer_norm/batchnorm/{part}ReadVariableOp" for part in ("mul/", "")]
WEIGHTS += [f"{name}/{part}/ReadVariableOp" for name in ("intermediate", "output") for part in ("einsum/Einsum", "add")]
WEIGHTS += [f"output_layer_norm/batchnorm/{part}ReadVariableOp" for part in ("mul/", "")]


def guide_model(folder: Path) -> Path:
    """tf-models' encoder, of odd sizes, with the names that the guide's author read off his own."""
    model = long.get("official-saved_model").path
    names = {
        "bert_encoder/transformer/layer_2/output_layer_norm/batchnorm/add_1":
            "transformer/layer_11/output_layer_norm/batchnorm/add_1",
        "bert_encoder/dropout_11/Identity": "dropout/Identity",
        "bert_encoder/self_attention_mask/BroadcastTo": "self_attention_mask/mul",
        served_function(model): GUIDE_FUNCTION,
    }  # fmt: skip
    return rename(model, folder, names)


def served_function(model: Path) -> str:
    file = open_tensorflow(model).file
    (name,) = (s.function for s in file.scopes(file.meta(0)) if s.function.startswith("__inference_serve_"))
    return name


def write_node(pattern: Path, file: Path) -> None:
    """The node as the guide's reader writes it: inputs picked from the pattern's text, sorted, and the guide's
    attributes with the sizes of this model."""
    inputs = re.findall(r'^inputs: "(.*)"$', pattern.read_text(), re.MULTILINE)
    chosen = [name for end in ("dropout/Identity", "self_attention_mask/mul") for name in inputs if name == end]
    for layer in range(3):
        for weight in WEIGHTS:
            (found,) = (name for name in inputs if f"layer_{layer}/{weight}" in name)
            chosen.append(found)
    attributes = {
        "HiddenAct": 's: "gelu_tanh"', "HiddenSize": "i: 65", "IntermediateSize": "i: 99", "MaskT": "type: DT_FLOAT",
        "NumAttentionHeads": "i: 5", "NumWeights": "i: 48",
        "_output_shapes": "list { shape { unknown_rank: true } }",
    }  # fmt: skip
    text = ['name: "fused_bert"', 'op: "Bert"', *(f'input: "{name}"' for name in chosen)]
    text += [f'attr {{ key: "{key}" value {{ {value} }} }}' for key, value in attributes.items()]
    file.write_text("\n".join(text))


def test_a_pattern_of_your_own(run, tmp_path, monkeypatch):
    original, model = guide_model(tmp_path / "original"), guide_model(tmp_path / "model")
    named = {"bert_model": model, "extracted_bert_pattern": tmp_path / "pattern.pbtxt",
             "node_def": tmp_path / "node_def.pbtxt", "recipe": tmp_path / "recipe.pb"}  # fmt: skip
    extract, make, replace, configure = (words(line, tmp_path, **named) for line in lines("A pattern of your own"))
    assert GUIDE_FUNCTION in run("inspect", model)
    run(*extract)
    write_node(named["extracted_bert_pattern"], named["node_def"])
    run(*make)
    run(*replace)
    switch(model)
    monkeypatch.chdir(model)
    Path("modified_model.pb").symlink_to("modified_saved_model.pb")
    assert "MaxSequenceLength" in run(*configure)

    fused = message("SavedModel").FromString((model / "modified_saved_model.pb").read_bytes())
    nodes = [node for function in fused.meta_graphs[0].graph_def.library.function for node in function.node_def]
    assert sum(node.op == "Bert" for node in nodes) >= 1
    assert compare(original, model, samples=3, sequence_length=16).same


def test_the_pattern_tools(run, tmp_path):
    last = "bert/encoder/layer_{}/output/LayerNorm/batchnorm/add_1"
    names = {
        last.format(2): last.format(11),
        "strided_slice": "bert/encoder/strided_slice", "strided_slice_1": "bert/encoder/strided_slice_2",
    }  # fmt: skip
    source = long.get("tf1-saved_model").path
    model = rename(source, tmp_path / "uncased_L-12_H-768_A-12", names)
    extract, replace = (words(line, tmp_path) for line in lines("The pattern tools"))
    run(*extract)
    run("make-recipe", tmp_path / "bert_pattern.pb", tmp_path / "bert_recipe.pb", "--model", model)
    run(*replace)
    switch(model)
    assert compare(source, model, samples=3, sequence_length=16).same
    shutil.move(model / "original_saved_model.pb", model / "saved_model.pb")  # and back again
    assert compare(source, model, samples=1, sequence_length=16).same


def mrpc_model(folder: Path) -> Path:
    """What the demo's appendix exports: TensorFlow 1, with two inputs that no answer depends on."""
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    shutil.copytree(long.get("tf1-saved_model").path, folder)
    saved = SavedModel.FromString((folder / "saved_model.pb").read_bytes())
    (graph,) = saved.meta_graphs
    for name in ("label_ids", "is_real_example"):
        node = graph.graph_def.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = 3  # int32
        node.attr["shape"].shape.dim.add(size=-1)
        declared = graph.signature_def["serving_default"].inputs[name]
        declared.name, declared.dtype = f"{name}:0", 3
        declared.tensor_shape.dim.add(size=-1)
    (folder / "saved_model.pb").write_bytes(saved.SerializeToString())
    return folder


def test_bert_large_up_to_its_server(run, tmp_path, monkeypatch):
    model = mrpc_model(tmp_path / "savedmodel")
    for number, line in enumerate(lines("The BERT-large server")[:2]):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        said = run(*words(line, tmp_path, BERT_LARGE_SAVED_MODEL=model))
        assert "--batch_size is left out: a model keeps its batch size" in said
        assert ("int8-bf16" in said) == (number == 0)  # which --aggressive_optimizations stands for
        assert compare(model, Path("bert-saved-model-neuron"), samples=3, sequence_length=16).same


def test_tensorflow_says_nothing_of_its_own():
    """Neither when it is imported nor when it loads variables of TensorFlow 1."""
    model = str(long.get("tf1-saved_model").path)
    command = [sys.executable, "-m", "fusebert", "compare", model, model, "--samples", "1", "--sequence-length", "8"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_server_and_a_client(run, tmp_path):
    """Of the SavedModel that `optimize` wrote; what it has no place for, a tokenizer, is given."""
    model = tmp_path / "bert-saved-model-neuron"
    run("optimize", mrpc_model(tmp_path / "savedmodel"), "-o", model, "--no-verify")
    given = "--tokenizer", str(make_checkpoint(tmp_path / "checkpoint", vocab=True))
    serve, ask = (words(line, tmp_path) for line in lines("The BERT-large server")[2:])
    server = Served(*(str(model) if word == model.name else word for word in serve[1:]), *given, log=tmp_path / "log")
    try:
        said = json.loads(run(*ask, f"http://127.0.0.1:{server.port}", "--warmup", "0s", "--json"))
    finally:
        server.stop()
    assert "--batch is left out" in (tmp_path / "log").read_text()
    assert (said["requests"], said["answered"]) == (128, 128)
