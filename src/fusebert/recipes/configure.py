"""Configure: a model -> the same model with changed attributes in every Bert node. The attributes are checked against
the op's rules and against the shapes of the weights; nothing is run, and no other file is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusebert.errors import FusebertError
from fusebert.formats.ranges import read_factors
from fusebert.formats.tensorflow.bert_op import ATTRIBUTES, OPS, PER_LAYER, WEIGHTS, check_node, shapes_of, typed
from fusebert.formats.tensorflow.file import TensorFlowFile
from fusebert.formats.tensorflow.messages import set_attribute
from fusebert.match import inline
from fusebert.ops.graph import Graph, Node
from fusebert.report import Report, Table
from fusebert.source import open_tensorflow

# Attributes that the graph determines; a reset keeps them.
_OF_THE_GRAPH = ("MaskT", "NumWeights", "NumHiddenStates", "_output_shapes")
# Attributes that may differ from encoder to encoder; all others must be the same in every node.
_OF_THE_ENCODER = frozenset((
    *_OF_THE_GRAPH, "HiddenSize", "NumAttentionHeads", "IntermediateSize", "HiddenAct", "LayerNormEpsilon",
    "AttentionScale", "AdditiveMask", "MaskValue", "InputScales", "QuantizationFactors", "Padding",
))  # fmt: skip
_PASSED_ON = ("ReadVariableOp", "Identity", "identity", "StopGradient", "Snapshot")


@dataclass(frozen=True)
class Settings:
    """The attributes to set; None leaves an attribute unchanged."""

    mask_type: str | None = None
    quantization: bool | None = None
    bfloat16: bool | None = None
    layers: int | None = None
    hidden_size: int | None = None
    num_attention_heads: int | None = None
    intermediate_size: int | None = None
    max_seq_len: int | None = None
    activation: str | None = None
    calibrate: bool | None = None
    quant_factors_path: str | None = None
    epsilon: float | None = None
    padding: str | None = None
    threads: int | None = None

    def attributes(self) -> Iterator[tuple[str, Any]]:
        """The op's attributes that these settings change, with their values."""
        if self.mask_type is not None:
            name = "float32" if self.mask_type == "float" else self.mask_type
            if name not in (allowed := ATTRIBUTES["Bert"]["MaskT"].allowed):
                raise FusebertError(f"unsupported mask type {name!r}; use one of {', '.join(allowed)}")
            yield "MaskT", name
        if self.quantization is not None:
            yield "QuantizableDataType", "qint8" if self.quantization else "float32"
        if self.bfloat16 is not None:
            yield "NonQuantizableDataType", "bfloat16" if self.bfloat16 else "float32"
        if self.layers is not None:
            yield "NumWeights", PER_LAYER * self.layers
        plain = {
            "HiddenSize": self.hidden_size, "NumAttentionHeads": self.num_attention_heads,
            "IntermediateSize": self.intermediate_size, "MaxSequenceLength": self.max_seq_len,
            "HiddenAct": self.activation, "CalibrateQuantFactors": self.calibrate,
            "QuantizationFactorsPath": self.quant_factors_path,
            "LayerNormEpsilon": self.epsilon, "Padding": self.padding, "NumThreads": self.threads,
        }  # fmt: skip
        yield from ((key, value) for key, value in plain.items() if value is not None)


def configure_op(
    path: str | Path,
    out: str | Path | None = None,
    settings: Settings | None = None,
    reset: bool = False,
    overwrite: bool = False,
) -> Report:
    """Sets attributes of every Bert node in all graphs and functions of a model; in place unless `out` is given.

    reset: first remove all attributes except those that the graph determines."""
    graphs = open_tensorflow(path).file
    changes = dict((settings or Settings()).attributes())
    nodes = list(_nodes(graphs))
    if not nodes:
        raise FusebertError(f"{path} contains no Bert node; add one with replace-pattern or optimize")
    notes: list[str] = []
    for _, node in nodes:
        if reset:
            for i in reversed(range(len(node.attr))):
                if node.attr[i].key not in _OF_THE_GRAPH:
                    del node.attr[i]
        for key, value in changes.items():
            _set(node, key, value)
    checked = [check_node(node) for _, node in nodes]
    _check_same(nodes, checked)
    notes += _check_factors(checked[0])
    notes += _check_shapes(graphs, nodes, checked)
    target = Path(out) if out is not None else graphs.file
    graphs.write(target, overwrite or out is None)
    rows = [(where or "main graph", n.name, n.op, len(n.input) // PER_LAYER) for where, n in nodes]
    attributes = [(key, _shown(value)) for key, value in sorted(checked[0].items()) if _is_shown(key, nodes[0][1])]
    tables = (
        Table("nodes", ("where", "node", "op", "layers"), tuple(rows)),
        Table("attributes", ("attribute", "value"), tuple(attributes)),
    )
    if len(nodes) > 1:
        notes.append(f"The attributes shown are those of {nodes[0][1].name}; sizes may differ in the other nodes.")
    return Report(
        f"{path} -> {target}", {"nodes": len(nodes), "changed": ", ".join(sorted(changes))}, tables, tuple(notes)
    )


def _nodes(graphs: TensorFlowFile) -> Iterator[tuple[str, Any]]:
    """Every Bert node with the name of its function."""
    for meta in graphs.metas:
        yield from (("", node) for node in meta.graph_def.node if node.op in OPS)
        for function in meta.graph_def.library.function:
            yield from ((function.signature.name, node) for node in function.node_def if node.op in OPS)


def _set(node: Any, key: str, value: Any) -> None:
    entry = next((entry for entry in node.attr if entry.key == key), None)
    if entry is None:
        entry = node.attr.add(key=key)
    entry.value.Clear()
    set_attribute(entry.value, typed({key: value})[key])


def _check_same(nodes: list[tuple[str, Any]], checked: list[dict[str, Any]]) -> None:
    for (_, node), settings in zip(nodes, checked, strict=True):
        for key, value in settings.items():
            if key not in _OF_THE_ENCODER and value != checked[0].get(key):
                raise FusebertError(
                    f"{key} is {_shown(value)} in {node.name}, but {_shown(checked[0].get(key))} in "
                    f"{nodes[0][1].name}; set it for all nodes, or remove the old attributes with --reset"
                )


def _check_factors(settings: Mapping[str, Any]) -> list[str]:
    """Checks that the op can read the file of input ranges that int8 products need; a missing file gives a note."""
    name = settings["QuantizationFactorsPath"]
    if settings["QuantizableDataType"] != "qint8" or not name:
        return []
    if not Path(name).is_file():
        return [f"{name} was not found; the machine that runs the model needs it."]
    read_factors(Path(name), settings["NumWeights"] // PER_LAYER, forms=("bert-op",))
    return []


def _is_shown(key: str, node: Any) -> bool:
    """Whether an attribute is set in the node or has an informative default."""
    return any(entry.key == key for entry in node.attr) or ATTRIBUTES[node.op][key].default not in ((), "", 0)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} numbers"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _check_shapes(graphs: TensorFlowFile, nodes: list[tuple[str, Any]], checked: list[dict[str, Any]]) -> list[str]:
    """Checks the sizes against the weights whose shapes are known without running the model."""
    settings = {(where, node.name): one for (where, node), one in zip(nodes, checked, strict=True)}
    flat = _flat(graphs) or Graph((), (), (), {})
    makers = {name: node for node in flat.nodes for name in node.outputs}
    seen = 0
    for node in flat.nodes:
        one = settings.get((node.function, node.name))
        if node.op not in OPS or one is None:
            continue
        for number, tensor in enumerate(node.inputs[2 : 2 + one["NumWeights"]]):
            shape = _shape(flat, makers, tensor)
            allowed = shapes_of(one)[WEIGHTS[number % PER_LAYER]]
            if shape is not None and shape not in allowed:
                raise FusebertError(
                    f"{node.name}: weight {number % PER_LAYER} of layer {number // PER_LAYER} ({tensor}) is "
                    f"{_sizes(shape)}, but the attributes say {' or '.join(map(_sizes, allowed))}"
                )
            seen += shape is not None
    return [] if seen else ["The sizes were not checked: the shapes of the weights are unknown."]


def _flat(graphs: TensorFlowFile) -> Graph | None:
    """The graph with its functions inlined, or None if that is not possible."""
    try:
        return inline(graphs.serving_graph())
    except FusebertError:
        return None


def _shape(graph: Graph, makers: Mapping[str, Node], tensor: str) -> tuple[int, ...] | None:
    for _ in range(64):
        if tensor in graph.weights:
            return graph.weights[tensor].shape
        node = makers.get(tensor)
        if node is None or node.op not in _PASSED_ON:
            return None
        tensor = node.inputs[0]
    return None


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a scalar"
