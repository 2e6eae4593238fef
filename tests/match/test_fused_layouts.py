"""Fused operators with a layout are spelled out in primitive operations, which compute what their blocks do: what
fusebert wrote is a graph like any other, whatever the form of its encoder."""

import families
import numpy as np
import pytest
import stock

from fusebert.match import translate
from fusebert.match.translate import translate_with_rows
from fusebert.ops.primitives import MEANING
from fusebert.rewrite.network import write_onnx, write_saved_model
from fusebert.source import open, open_graph
from fusebert.values.target import FusedOnnx, FusedTensorFlow

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
TARGETS = {
    "onnx": (write_onnx, "made.onnx", FusedOnnx("fp32"), 1e-5),
    "onnx int8": (write_onnx, "made.onnx", FusedOnnx("int8"), 0.2),
    "tensorflow": (write_saved_model, "made", FusedTensorFlow("fp32"), 1e-5),
    "tensorflow compact": (write_saved_model, "made", FusedTensorFlow("int8", compact=True), 0.2),
}


def answer(graph, feeds: dict[str, np.ndarray]) -> np.ndarray:
    """What a graph of primitive operations makes of its inputs: the encoder's rows."""
    values = {name: array for name in graph.inputs for role, array in feeds.items() if role in name}
    for node in graph.nodes:
        given = [values[name] if name in values else graph.weights[name].read() for name in node.inputs]
        made = MEANING[node.op](*given, **node.attributes)
        values |= zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False)
    return next(values[name] for name in graph.outputs if "last_hidden_state" in name)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", ["modernbert", "deberta-v2", "deberta-v3", "mpnet", "gemma", "albert", "nomic"])
def test_a_layout_is_spelled_as_what_it_computes(case, target, tmp_path):
    write, name, chosen, tolerance = TARGETS[target]
    folder, _ = families.make(tmp_path / "checkpoint", case)
    network = open(folder).network()
    write(network, tmp_path / name, chosen)
    graph, rows = translate_with_rows(open_graph(tmp_path / name).graph)
    assert not [row for row in rows if row.reason]
    ids, mask = np.random.default_rng(1).integers(5, 97, (2, 19)), stock.masks(2, 19, "left", seed=1)
    feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    got, want = answer(graph, feeds), families.compute(network, ids, mask)["last_hidden_state"]
    assert stock.error(got[mask == 1], want[mask == 1]) < tolerance


def test_a_layout_that_does_not_fit_stays_one_operator(tmp_path):
    folder, _ = families.make(tmp_path / "checkpoint", "nomic")
    write_onnx(open(folder).network(), tmp_path / "made.onnx", FusedOnnx("fp32"))
    data = (tmp_path / "made.onnx").read_bytes()
    (tmp_path / "made.onnx").write_bytes(data.replace(b"input block.0.query.weight", b"input block.0.kwery.weight"))
    graph = open_graph(tmp_path / "made.onnx").graph
    reasons = [row.reason for row in translate_with_rows(graph)[1] if row.reason]
    assert any("has no tensor block.0.query.weight" in reason for reason in reasons)
    assert "fusebert.Encoder" in {node.op for node in translate(graph).nodes}
